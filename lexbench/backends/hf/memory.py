"""Freed memory of the process, and out-of-memory errors."""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from lexbench.core.record import Deferred

M_MMAP_THRESHOLD = -3
"""Parameter of glibc's `mallopt`: blocks of this size or more are mapped on their own."""
APART = 4 << 20
"""Bytes: a head's keys of 16,384 tokens in float32."""


def return_freed() -> None:
    """Let glibc give blocks of `APART` and more back to the system as soon as they are freed.

    Its own threshold grows with each large block that is freed, up to 32 MiB: the process then keeps smaller ones, in
    pieces that fit no later one. Nothing happens with another C library, or if the user has set a threshold.
    """
    if sys.platform == "linux" and "MALLOC_MMAP_THRESHOLD_" not in os.environ:
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(M_MMAP_THRESHOLD, APART)


class OutOfMemory(Deferred):
    """Not enough memory now; the cell may succeed later or on another machine."""


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error means out of memory; some of torch's and of CUDA's libraries are known by their text only."""
    words = ("can't allocate memory", "not enough memory", "out of memory", "ALLOC_FAILED")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(each in str(error) for each in words)


@contextmanager
def deferring(what: str) -> Iterator[None]:
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
        torch.cuda.empty_cache()
        raise OutOfMemory(f"out of memory for {what}: use fewer tokens, a smaller dtype, or a device with more memory")


@contextmanager
def trying() -> Iterator[None]:
    """End the block at an error: a family's code raises any of them where it cannot go on."""
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            raise
