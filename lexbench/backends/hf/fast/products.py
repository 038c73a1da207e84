"""Products with weights of half precision, on a processor that has no instructions for them."""

import functools
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from lexbench.kernels import likelihood
from lexbench.kernels.halves import half_matmul_is_slow

MIN_WIDENED_ROWS = 8
"""Fewest rows for which it pays to make float32 of a weight first."""


def widen_half_products(network: Any) -> None:
    """Let the linear layers of a network on a CPU multiply in float32 where halves are slow, and round to halves after.

    Products of two halves are exact in float32, and every kernel for halves adds them up in it: results differ by the
    order of the sum, as they do between processors.
    """
    layers: list[Any] = [each for each in network.modules() if type(each) is nn.Linear]
    for layer in layers:
        if half_matmul_is_slow(layer.weight.dtype):
            layer.forward = functools.partial(_linear, layer)


def _linear(layer: nn.Linear, states: Tensor) -> Tensor:
    if states[..., 0].numel() < MIN_WIDENED_ROWS:
        return F.linear(states, layer.weight, layer.bias)
    return likelihood.linear_head(layer.weight, layer.bias)(states).to(states.dtype)
