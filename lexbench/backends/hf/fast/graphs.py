"""Repeat a step of writing as a CUDA graph: a GPU then waits for no launches, which take longer than small kernels."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch import Tensor

MIN_RECORDED_STEPS = 8
"""Fewest steps for which one is recorded: to record takes about as long as two single steps."""
Found = tuple[Tensor, ...]


class RepeatedStep:
    """Calls a step with one tensor after another: the first as it is, later ones as a graph that the second records.

    On a CPU, and where a step waits for the device, which no graph can hold, every step is called as it is.

    Args:
        step: makes tensors, by the same calls on the device each time.
        tried: take the second step under `forbid_device_waits`, and record the third. A step that waits raises an error
            there; while it is recorded, it would spoil torch's allocator for the rest of the process.
    """

    def __init__(self, step: Callable[[Tensor], Found], tried: bool = False) -> None:
        self._step, self._tried = step, tried
        self._given: Tensor | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._made: Found = ()
        self.done = 0
        """Steps that were taken."""
        self.recorded: bool | None = None
        """Whether a step could be recorded; None: not tried, as on a CPU."""

    def __call__(self, given: Tensor) -> Found:
        """The step's tensors; those given have one shape in all calls."""
        watched = self._tried and self.done == 1 and given.is_cuda
        if self._given is None:
            self._given = given.clone()
        else:
            self._given.copy_(given)
            if self.recorded is None and given.is_cuda and not watched:
                self._record(self._given)
        if self._graph is None:
            with forbid_device_waits() if watched else nullcontext():
                found = self._step(self._given)
        else:
            self._graph.replay()
            # The next step writes into the same tensors.
            found = tuple(each.clone() for each in self._made)
        self.done += 1
        return found

    def _record(self, given: Tensor) -> None:
        """Make the graph, which runs nothing yet."""
        self.recorded = False
        with torch.cuda.device(given.device):
            before = torch.cuda.current_stream()
            try:
                # Also of memory: single steps, which take less, go on.
                with suppress(Exception):
                    graph = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(graph, stream=_stream(given.device)):
                        self._made = self._step(given)
                    self._graph, self.recorded = graph, True
            finally:
                torch.cuda.set_stream(before)  # torch stays in the other one where a recording fails


@contextmanager
def forbid_device_waits() -> Iterator[None]:
    """RuntimeError where the host waits for the device, as `nonzero` and a copy from the host do."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


@functools.cache
def _stream(device: torch.device) -> Any:
    """The stream on which a device's steps are recorded: torch's own is of the device of the first recording.

    One for all: cuBLAS keeps memory to work in for each stream. A product asks for it here, as what is asked for while
    a step is recorded belongs to that graph.
    """
    kind: Any = torch.cuda.Stream  # untyped
    stream = kind(device)
    with torch.cuda.stream(stream):
        for dtype in (torch.float32, torch.bfloat16):
            torch.ones(16, 16, device=device, dtype=dtype).matmul(torch.ones(16, 16, device=device, dtype=dtype))
    return stream
