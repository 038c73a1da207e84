"""Errors that mean out of memory, of torch and of other libraries."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from lexbench.core.record import Deferred

OUT_OF_MEMORY_PHRASES = ("can't allocate memory", "not enough memory", "out of memory", "alloc_failed")
"""Words in messages of torch (on a CPU, Windows, accelerators), JAX and CUDA's libraries: they raise no own class."""


class OutOfMemory(Deferred):
    """Not enough memory now; the cell may succeed later or on another machine."""


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error means out of memory."""
    return isinstance(error, MemoryError) or any(words in str(error).lower() for words in OUT_OF_MEMORY_PHRASES)


@contextmanager
def defer_on_oom(what: str) -> Iterator[None]:
    """Turn out-of-memory errors inside into OutOfMemory, which defers the cell."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        short = True
    else:
        short = False
    if short:  # after the except block: the error held there keeps the tensors of its traceback alive
        if torch := sys.modules.get("torch"):
            torch.cuda.empty_cache()
        raise OutOfMemory(f"out of memory for {what}: use fewer tokens, a smaller dtype, or a device with more memory")
