"""The fixtures `assert_rope` and `assert_attention` for pytest; load neither torch nor transformers before their use.

    pytest_plugins = ["lexbench.pytest_plugin"]  # in conftest.py

    def test_rope(assert_rope):
        assert_rope(trainer.model, "yarn", factor=4, length=131072)

They are no entry point: pytest would rewrite the asserts of all of lexbench in every test suite beside it.
"""

from collections.abc import Callable

import pytest


@pytest.fixture(scope="session")
def assert_rope() -> Callable[..., None]:
    """`lexbench.assert_rope`: fails where a loaded model does not rotate as it was asked to."""
    from lexbench.backends.hf.exact.assert_rope import assert_rope

    return assert_rope


@pytest.fixture(scope="session")
def assert_attention() -> Callable[..., tuple[str, ...]]:
    """`lexbench.assert_attention`: fails where a loaded model's attention is not the one its config states."""
    from lexbench.backends.hf.exact.assert_attention import assert_attention

    return assert_attention
