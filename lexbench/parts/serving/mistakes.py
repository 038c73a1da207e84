"""Mistakes of servers, made on purpose, so that a served model that makes them is recognised."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lexbench.backends.hf.backend import Hf
from lexbench.backends.hf.exact.layers import as_cos_sin, rotary_frequencies, rotary_kinds, rotary_scale
from lexbench.core.attention import Attention, PositionMap, Remap
from lexbench.core.record import Refused


def rotate_wrong_pairs(hf: Hf) -> None:
    """Rotate other pairs than the model's: neighbours in place of halves of the head, or halves of neighbours.

    Until the next `attend`. Refused as a remap that changes nothing would be.
    """
    hf.attend(Attention(remap=Remap(1 << 40, PositionMap(), PositionMap())))
    hook = hf.reader.passes[0].hook
    assert hook is not None, "a remap needs our attention function"
    hook.layers = [replace(each, turn=each.turn and each.turn.with_wrong_pairs()) for each in hook.layers]


@contextmanager
def change_angles(hf: Hf, dtype: str | None = None, chunk: int | None = None) -> Iterator[None]:
    """Rotate by angles in half precision, or by positions that begin at 0 again, inside the block.

    Args:
        hf: a model with rotary modules; Refused where positions have several axes.
        dtype: of positions, frequencies, angles, cos and sin; None: as they are.
        chunk: tokens behind which positions begin again; None: never.
    """

    def changed(module: torch.nn.Module, given: tuple[Any, ...], named: dict[str, Any], made: Any) -> Any:
        # transformers calls (x, position_ids), and a kind of layers where each has its own.
        _, positions, kind = (*given, *named.values(), None)[:3]
        if positions.dim() != 2:
            raise Refused(f"changed angles are known for positions [texts, tokens], got {positions.dim()} axes")
        places, inv_freq = positions % chunk if chunk else positions, rotary_frequencies(module, kind)
        to = inv_freq.dtype if dtype is None else getattr(torch, dtype)
        return _as_made(made, places.to(to)[..., None] * inv_freq.to(to), rotary_scale(module, kind))

    changes = dtype is not None or chunk is not None
    modules = [module for module in hf.reader.network.modules() if rotary_kinds(module)] if changes else []
    handles = [module.register_forward_hook(changed, with_kwargs=True) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _as_made(made: Any, angles: Tensor, scale: float) -> Any:
    """Cos and sin of angles [B, T, pairs], in the layout and dtype in which a rotary module made its own."""
    if isinstance(made, Tensor):
        return torch.polar(torch.full_like(angles, scale).float(), angles.float()).to(made.dtype)
    tables = as_cos_sin(made)
    assert tables is not None
    pairs, width = angles.shape[-1], tables[0].shape[-1]
    cos, sin = ((scale * table).to(tables[0].dtype) for table in (angles.cos(), angles.sin()))
    if width == pairs:
        return cos, sin
    if torch.equal(tables[1][..., :pairs], tables[1][..., pairs:]):
        return cos.repeat(1, 1, 2), sin.repeat(1, 1, 2)
    return cos.repeat_interleave(2, -1), sin.repeat_interleave(2, -1)


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
