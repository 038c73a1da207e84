"""Freed memory of the process, and errors that mean out of memory, of torch and of other libraries."""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from lexbench.core.machine import free_bytes
from lexbench.core.record import Deferred

OUT_OF_MEMORY_PHRASES = ("can't allocate memory", "not enough memory", "out of memory", "alloc_failed")
"""Words in messages of torch (on a CPU, Windows, accelerators), JAX and CUDA's libraries: they raise no own class."""

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's `mallopt`, in bytes: what is free at the end of the heap before it is given back, and the size
of a block that is mapped on its own, and unmapped when it is freed."""
MIN_RETURNED_BLOCK_BYTES, MAX_KEPT_BLOCK_BYTES = 1 << 20, 1 << 30
"""Bytes: a span of queries; and beyond the logits of 512 places of any vocabulary."""
SHARE_OF_MEMORY_TO_KEEP = 8
"""Freed memory that the process keeps for its next blocks is at most this part of what the machine has free."""


def keep_freed() -> None:
    """Let glibc keep freed blocks for later ones, while memory is plenty; for a process that computes on a CPU.

    Blocks of logits and attention come and go with every span of a text: mapped anew each time, their page faults take
    a fifth of the processor's time. Where little memory is free, blocks of `MIN_RETURNED_BLOCK_BYTES` and more go back
    at once, as what is kept lies in pieces that fit no later block. Nothing happens with another C library, or if the
    user has set a threshold.
    """
    if sys.platform == "linux" and not {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"} & os.environ.keys():
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        share = (free_bytes() or 0) // SHARE_OF_MEMORY_TO_KEEP
        kept = min(max(MIN_RETURNED_BLOCK_BYTES, share), MAX_KEPT_BLOCK_BYTES)
        if mallopt is not None:
            mallopt(M_MMAP_THRESHOLD, kept)
            mallopt(M_TRIM_THRESHOLD, kept)


def return_freed() -> None:
    """Give freed memory back to the system, with glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


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
