"""The tokenizer that tests of tasks use."""

from tests.tasks.conftest import lexlet

__all__ = ["lexlet"]
