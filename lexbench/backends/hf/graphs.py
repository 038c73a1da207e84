"""Repeat a step of writing as a CUDA graph: a GPU then waits for no launches, which take longer than small kernels."""

from collections.abc import Callable

import torch
from torch import Tensor

from lexbench.backends.hf.memory import trying

LEAST = 8
"""Fewest steps for which one is recorded: to record takes about two steps."""
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
        self._records = True

    def __call__(self, given: Tensor) -> Found:
        """What the step makes of tensors of one shape."""
        if self._given is None:
            self._given, self._records = given.clone(), given.is_cuda
            return self._step(self._given)
        self._given.copy_(given)
        if self._graph is None and self._records:
            self._records = False
            with trying():
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    self._made = self._step(self._given)
                self._graph = graph
        if self._graph is None:
            return self._step(self._given)
        self._graph.replay()
        # The next step writes into the same tensors.
        return tuple(each.clone() for each in self._made)
