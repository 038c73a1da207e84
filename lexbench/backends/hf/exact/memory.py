"""Freed memory of the process, and errors of code that is tried."""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from lexbench.core.memory import is_out_of_memory

M_MMAP_THRESHOLD = -3
"""Parameter of glibc's `mallopt`: blocks of this size or more are mapped on their own."""
MIN_RETURNED_BLOCK_BYTES = 1 << 20
"""Bytes: a span of queries. With 4 MiB, ReRoPE left 20 to 40 MB more behind at 16,384 tokens, in equal time."""


def return_freed() -> None:
    """Let glibc give blocks of `MIN_RETURNED_BLOCK_BYTES` and more back to the system as soon as they are freed.

    Its own threshold grows with each large block that is freed, up to 32 MiB: the process then keeps smaller ones, in
    pieces that fit no later one. Nothing happens with another C library, or if the user has set a threshold.
    """
    if sys.platform == "linux" and "MALLOC_MMAP_THRESHOLD_" not in os.environ:
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(M_MMAP_THRESHOLD, MIN_RETURNED_BLOCK_BYTES)


@contextmanager
def probe_forward() -> Iterator[None]:
    """End the block at an error: a family's code raises any of them where it cannot go on."""
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            raise
