"""Memory that a model runs in: what is left of it, and what becomes of a cell where it ends."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from lexbench.core.machine import free_bytes
from lexbench.core.record import Deferred


def free_memory(device: torch.device) -> int:
    """Bytes that can still be taken there; of a GPU, those that are kept for later, too."""
    if device.type != "cuda":
        return free_bytes() or 0
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0] + kept)


class OutOfMemory(Deferred):
    """For what was asked at once; another machine, or this one when it is idle, may have enough."""


def is_out_of_memory(error: Exception) -> bool:
    """Whether that is what an error says."""
    words = ("can't allocate memory", "not enough memory")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(each in str(error) for each in words)


@contextmanager
def deferring(what: str) -> Iterator[None]:
    """Running out of memory puts a cell off; a GPU says so by an error of its own, a CPU by a RuntimeError's words."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        short = True
    else:
        short = False
    if short:
        torch.cuda.empty_cache()
        raise OutOfMemory(f"out of memory for {what}: take fewer tokens, or a dtype or device that holds them")
