"""Shows on a CPU what no CUDA graph can hold: a step that copies from the host, or waits for the device."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode

FROM_HOST = ("lift_fresh", "lift_fresh_copy")
"""Made of a number, a list or an array."""
WAITS = ("_local_scalar_dense", "item", "equal", "is_nonzero", "nonzero", "masked_select", "_unique2", "bincount")
"""Their result, or its size, must be known on the host."""


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in FROM_HOST, "a tensor is made of numbers on the host"
        assert name not in WAITS, f"{name} waits for the device"
        picks = args[1] if name in ("index", "index_put", "index_put_") else ()
        assert all(each is None or each.dtype != torch.bool for each in picks), f"{name} waits to count a mask"
        return func(*args, **(kwargs or {}))


@contextmanager
def on_device() -> Iterator[None]:
    """AssertionError in the block at what a CUDA graph cannot hold."""

    def refused(*given: Any) -> Any:
        raise AssertionError("an array of the host becomes a tensor")

    watch: Any = _Watch  # untyped
    with patch.object(torch, "from_numpy", refused), watch():
        yield
