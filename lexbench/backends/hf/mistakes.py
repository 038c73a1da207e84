"""Mistakes of servers, made on purpose, so that a served model that makes them is recognised."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from lexbench.backends.hf.backend import Hf
from lexbench.core.attention import Attention, PositionMap, Remap


def rotate_wrong_pairs(hf: Hf) -> None:
    """Rotate other pairs than the model's: neighbours in place of halves of the head, or halves of neighbours.

    Until the next `attend`. Refused as a remap that changes nothing would be.
    """
    hf.attend(Attention(remap=Remap(1 << 40, PositionMap(), PositionMap())))
    hook = hf.reader.passes[0].hook
    assert hook is not None, "a remap needs our attention function"
    hook.layers = [replace(each, turn=each.turn and each.turn.with_wrong_pairs()) for each in hook.layers]


@contextmanager
def round_to_eight_bits(hf: Hf) -> Iterator[None]:
    """Inputs of all linear layers are rounded to 8 bits inside the block, as servers round activations."""
    linear = [module for module in hf.reader.network.modules() if isinstance(module, torch.nn.Linear)]
    handles = [module.register_forward_pre_hook(_in_eight_bits) for module in linear]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _in_eight_bits(module: torch.nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """The first input in 127 steps to either side of 0, the largest number of each token the last."""
    x = given[0]
    step = (x.abs().amax(dim=-1, keepdim=True) / 127).clamp(min=1e-12)
    return ((x / step).round() * step, *given[1:])
