"""The fixture `assert_rope` for pytest, which finds it by its entry point; loads neither torch nor transformers itself.

def test_rope(assert_rope):
    assert_rope(trainer.model, "yarn", factor=4, length=131072)
"""

from collections.abc import Callable

import pytest


@pytest.fixture(scope="session")
def assert_rope() -> Callable[..., None]:
    """`lexbench.assert_rope`: fails where a loaded model does not rotate as it was asked to."""
    from lexbench.backends.hf.assert_rope import assert_rope

    return assert_rope
