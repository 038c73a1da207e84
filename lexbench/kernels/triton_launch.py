"""Launch a Triton kernel in blocks that a GPU has room for."""

from collections.abc import Callable, Iterable
from typing import Any

from triton.runtime.errors import OutOfResources


def launch_first_fitting(launch: Callable[..., Any], sizes: Iterable[tuple[int, ...]]) -> bool:
    """Whether one of the sizes of blocks could be launched: the first for which shared memory and registers suffice."""
    for size in sizes:
        try:
            launch(*size)
        except OutOfResources:
            continue
        return True
    return False
