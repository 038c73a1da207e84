"""The fixture `assert_rope` for pytest; loads neither torch nor transformers before it is used.

    pytest_plugins = ["lexbench.pytest_plugin"]  # in conftest.py

    def test_rope(assert_rope):
        assert_rope(trainer.model, "yarn", factor=4, length=131072)

It is no entry point: pytest would rewrite the asserts of all of lexbench in every test suite beside it.
"""

from collections.abc import Callable

import pytest


@pytest.fixture(scope="session")
def assert_rope() -> Callable[..., None]:
    """`lexbench.assert_rope`: fails where a loaded model does not rotate as it was asked to."""
    from lexbench.backends.hf.exact.assert_rope import assert_rope

    return assert_rope
