"""Free memory of a device, and out-of-memory errors."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from lexbench.core.machine import free_bytes
from lexbench.core.record import Deferred


def free_memory(device: torch.device) -> int:
    """Free bytes on the device; on a GPU, with those that torch has reserved but does not use."""
    if device.type != "cuda":
        return free_bytes() or 0
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0] + unused)


class OutOfMemory(Deferred):
    """Not enough memory now; the cell may succeed later or on another machine."""


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error means out of memory; on a CPU torch raises a RuntimeError, known by its text only."""
    words = ("can't allocate memory", "not enough memory")
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
