"""Errors of code that is tried."""

from collections.abc import Iterator
from contextlib import contextmanager

from lexbench.core.memory import is_out_of_memory


@contextmanager
def probe_forward() -> Iterator[None]:
    """End the block at an error: a family's code raises any of them where it cannot go on."""
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            raise
