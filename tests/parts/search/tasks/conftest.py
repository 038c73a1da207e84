"""The tokenizers and corpora that tests of tasks use."""

from tests.tasks.conftest import counting, counting_with_bos, counting_without_bos, lexlet, numbers

__all__ = ["counting", "counting_with_bos", "counting_without_bos", "lexlet", "numbers"]
