"""Setups by which a served model may rotate: the one of its config, and frequent mistakes of servers."""

import functools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from lexbench.core.attention import Attention, ConstantScale, Floats, LogScale, Window
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.methods.scaled import LayerRope, join_layers, ropes_of_model

OWN_SETUP_LABEL = "as its config says"
TRIED_FACTORS = (2.0, 4.0, 8.0, 16.0)
TRIED_BASES = (10_000.0, 500_000.0, 1_000_000.0)
"""Bases that servers fall back to, or that other models of a family have."""
EXACT_POSITIONS_OF_DTYPE = {"bfloat16": 256, "float16": 2048}
"""Positions up to which half precision holds all."""
READ_CHUNK_SIZES = (512, 2048, 8192)
"""Tokens that engines read at once, usually."""
WRONG_BASE_FACTOR = 1.01
"""A base that is off by a percent."""
WRONG_SOFTMAX_FACTOR = 1.3
"""A softmax scale that is off, to either side: one that is off by less lies between this and the own one."""

Angles = tuple[Floats, float]
"""[pairs] radians per token, and scale of cos and sin."""


@dataclass(frozen=True)
class AttentionSetup:
    """One way in which a server may rotate queries and keys: a label and the Attention that does the same."""

    label: str
    attention: Attention
    mispaired: bool = False
    """Whether wrong pairs are rotated: halves where the model rotates neighbours, or neighbours for halves."""
    rounded: str | None = None
    """Dtype of half precision in which positions, frequencies and angles are; None: float32."""
    chunk: int | None = None
    """Tokens behind which positions begin at 0 again; None: never."""


def possible_setups(model: Model, length: int) -> list[AttentionSetup]:
    """All setups of a model for texts of a length, its own first.

    Setups with equal angles have one entry with both labels. Refused for a model without rotary positions.
    """
    if not ropes_of_model(model):
        raise Refused(f"{model.name} has no rotary positions to name: fingerprint a model with RoPE")
    found: dict[str, AttentionSetup] = {}
    for each in [
        AttentionSetup(OWN_SETUP_LABEL, Attention()),
        *_angle_setups(model, length),
        *_other_setups(model, length),
    ]:
        # An empty Attention leaves the own angles: spelt out, so that a setup of the same angles is known as the same.
        angles = (
            each.attention
            if each.attention.slots()
            else _attention_by_rope(model, length, lambda rope: rope.own(length))
        )
        same = json.dumps([angles.as_data(), each.mispaired, each.rounded, each.chunk], sort_keys=True)
        known = found.get(same)
        found[same] = each if known is None else replace(known, label=f"{known.label} = {each.label}")
    return list(found.values())


def _angle_setups(model: Model, length: int) -> Iterator[AttentionSetup]:
    """Setups of other frequencies and scales in the layers that see all keys, or in all where none does."""
    for label in _angle_variants(_scaled_ropes(model)[0], length):
        yield AttentionSetup(
            label, _attention_by_rope(model, length, functools.partial(_angles_of_rope, label=label, length=length))
        )
    kinds = {rope.kind: rope for rope in ropes_of_model(model)}
    for kind, rope in kinds.items() if len(kinds) > 1 else ():
        if all(each.plain.rotated == rope.plain.rotated for each in kinds.values()):
            angles = rope.own(length)
            label = f"layer types lost: all rotate as {kind}"
            yield AttentionSetup(label, _attention_by_rope(model, length, lambda _, angles=angles: angles, True))  # type: ignore[misc]
    yield AttentionSetup("wrong pairs rotate", Attention(), mispaired=True)


def _angles_of_rope(rope: LayerRope, *, label: str, length: int) -> Angles:
    return _angle_variants(rope, length).get(label) or rope.own(length)


def _angle_variants(rope: LayerRope, length: int) -> dict[str, Angles]:
    """Angles of one RoPE by the name of the setup."""
    own, base, dims = rope.parameters, rope.plain.rotary_base(), rope.plain.rotated
    original = own.get("original_max_position_embeddings") or rope.plain.trained_length

    def put(kind: str, to: float = base, **more: float) -> Angles:
        parameters = {"rope_type": kind, "rope_theta": to, "original_max_position_embeddings": original, **more}
        return replace(rope, plain=replace(rope.plain, rope_base=to), parameters=parameters).own(length)

    def kept(to: float = base, **more: float) -> Angles:
        parameters = {**own, "rope_theta": to, **more}
        return replace(rope, plain=replace(rope.plain, rope_base=to), parameters=parameters).own(length)

    found = {"plain (scaling not applied)" if rope.scaled else "plain": put("default")}
    for factor in TRIED_FACTORS:
        found[f"linear {factor:g}"] = put("linear", factor=factor)
        # NTK-aware scaling: b s^(d / (d - 2)) stretches the slowest pair by s and leaves the fastest as it is.
        found[f"NTK {factor:g}"] = put("default", base * factor ** (dims / (dims - 2)))
        found[f"YaRN {factor:g}"] = put("yarn", factor=factor)
        found[f"YaRN {factor:g} without attention factor"] = put("yarn", factor=factor)[0], 1.0
        found[f"llama3 {factor:g}"] = put("llama3", factor=factor, low_freq_factor=1.0, high_freq_factor=4.0)
    # transformers' dynamic NTK is plain inside the trained length.
    if length > (rope.plain.max_position_embeddings or rope.plain.trained_length):
        found |= {f"dynamic NTK {factor:g}": put("dynamic", factor=factor) for factor in (1.0, *TRIED_FACTORS[:2])}
    if rope.scaled and rope.own(length)[1] != 1:
        found["its scaling without attention factor"] = rope.own(length)[0], 1.0
    if rope.scaled and own.get("factor"):
        for times in (0.5, 2.0):
            found[f"its scaling with factor {times * own['factor']:g}"] = kept(factor=times * own["factor"])
    for label, to in (("a percent above", base * WRONG_BASE_FACTOR), ("a percent below", base / WRONG_BASE_FACTOR)):
        found[f"base {label}"] = kept(to)
    return {**found, **{f"base {to:g}": kept(to) for to in TRIED_BASES if to != base}}


def _other_setups(model: Model, length: int) -> Iterator[AttentionSetup]:
    """Setups of positions that half precision cannot hold, or that begin again in a chunk, of hidden keys, and of a
    softmax that is sharper or flatter."""
    for dtype, exact in EXACT_POSITIONS_OF_DTYPE.items():
        if length > exact:
            yield AttentionSetup(f"angles in {dtype}", Attention(), rounded=dtype)
    for size in READ_CHUNK_SIZES:
        if length > size:
            yield AttentionSetup(f"positions begin again every {size} tokens", Attention(), chunk=size)
    for size in (length // 2, length // 4):
        yield AttentionSetup(f"window of {size} tokens", Attention(mask=Window(size)))
    factor = WRONG_SOFTMAX_FACTOR
    yield AttentionSetup(f"softmax scale times {factor:g}", Attention(query_scale=ConstantScale(factor)))
    yield AttentionSetup(f"softmax scale divided by {factor:g}", Attention(query_scale=ConstantScale(1 / factor)))
    if length > model.trained_length:
        yield AttentionSetup(
            "a temperature over positions (log n)", Attention(query_scale=LogScale(model.trained_length))
        )


def changes_softmax(label: str) -> bool:
    """Whether the setup of a label is the own one with another softmax: what it changes, any rotation may have, too."""
    return label.startswith(("softmax scale", "a temperature over positions"))


def window_size(label: str) -> int | None:
    """Tokens of the window in the label of a setup; None: it has none."""
    found = re.match(r"window of (\d+) tokens", label)
    return int(found[1]) if found else None


def _scaled_ropes(model: Model) -> list[LayerRope]:
    """The RoPEs that a scaling is meant for: those of layers that see all keys, where there are such."""
    found = ropes_of_model(model)
    return [rope for rope in found if not rope.windowed] or found


def _attention_by_rope(
    model: Model, length: int, angles: Callable[[LayerRope], Angles], every: bool = False
) -> Attention:
    """The Attention in which each RoPE turns by these angles; windowed layers by their own, unless `every`."""
    parts: dict[int | None, Attention] = {}
    changed = ropes_of_model(model) if every else _scaled_ropes(model)
    for rope in ropes_of_model(model):
        own = rope.own(length)
        frequencies, scale = angles(rope) if rope in changed else own
        part = Attention(inv_freq=frequencies, scale=None if scale == own[1] == 1 else scale)
        parts |= dict.fromkeys((None,) if rope.layers is None else rope.layers, part)
    if None in parts:
        return parts[None]
    return join_layers([parts.get(layer, Attention()) for layer in range(len(model.layer_types or ()))])
