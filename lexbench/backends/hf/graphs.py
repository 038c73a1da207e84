"""Repeat a step of writing as a CUDA graph: a GPU then waits for no launches, which take longer than small kernels."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lexbench.backends.hf.memory import trying

LEAST = 8
"""Fewest steps for which one is recorded: to record takes about as long as two single steps."""
Found = tuple[Tensor, ...]


class Repeated:
    """Calls a step with one tensor after another: the first as it is, later ones as a graph that the second records.

    On a CPU, and where a step waits for the device, which no graph can hold, every step is called as it is.

    Args:
        step: makes tensors, by the same calls on the device each time.
    """

    def __init__(self, step: Callable[[Tensor], Found]) -> None:
        self._step = step
        self._given: Tensor | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._made: Found = ()
        self.done = 0
        """Steps that were taken."""
        self.recorded: bool | None = None
        """Whether the second step could be recorded; None: not tried, as on a CPU."""

    def __call__(self, given: Tensor) -> Found:
        """The step's tensors; those given have one shape in all calls."""
        if self._given is None:
            self._given = given.clone()
        else:
            self._given.copy_(given)
            if self.recorded is None and given.is_cuda:
                self._record(self._given)
        if self._graph is None:
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
                with trying():
                    graph = torch.cuda.CUDAGraph()
                    # A stream of this device: torch has one for all recordings, of the device of the first.
                    stream: Any = torch.cuda.Stream  # untyped
                    with torch.cuda.graph(graph, stream=stream()):
                        self._made = self._step(given)
                    self._graph, self.recorded = graph, True
            finally:
                torch.cuda.set_stream(before)  # torch stays in the other one where a recording fails
