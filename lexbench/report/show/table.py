"""`lexbench show`: what a method does to a model at one length, as data and as text; `show_plots` draws it."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from lexbench.checkpoints.structure import format_ranges
from lexbench.core.attention import (
    Attention,
    Blocks,
    Chunks,
    Floats,
    Positions,
    Remap,
    Remapping,
    Segments,
    Stairs,
    TopKMask,
    Window,
    count_bands,
    seen_distances,
)
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.methods.scaled import ropes_of_model
from lexbench.report.formats import markdown_columns

SLOT_NAMES = tuple(field.name for field in fields(Attention))


def attention_data(model: Model, label: str, attention: Attention, length: int) -> dict[str, Any]:
    """Content of `attention_table` as plain JSON values; missing parts are None.

    Pairs: radians per token, wavelength 2 pi / radians in tokens, turns within the trained length, and how many times
    slower than the model's own pair. A pair that never turns has no wavelength.
    """
    whole, attention = attention, _changed_first(model, attention)
    scale = attention.scale or 1.0
    remap, query_scale = attention.remap, attention.query_scale
    some = _positions(model, attention, length)
    return {
        "model": {key: value for key, value in asdict(model).items() if value is not None},
        "method": label,
        "length": length,
        "multiple": length / model.trained_length,
        "attention": whole.as_data(),
        "pairs": _pairs(model, attention),
        "scale": scale,
        "logits_factor": scale**2,
        "distances": remap and _rows("distance", some, "seen_as", distances_seen_by_last(remap, some, length)),
        "query_scales": query_scale and _rows("position", some, "factor", query_scale(some)),
    }


def _changed_first(model: Model, attention: Attention) -> Attention:
    """Reorder an Attention so that the layers that it changes come first: only the first ones are shown in full."""
    other = attention.otherwise
    if attention.at((attention.layers or (0,))[0]).slots() or other is None or other.layers is not None:
        return attention
    count = model.layers or len(model.layer_types or ())
    changed = tuple(layer for layer in range(count) if layer not in (attention.layers or ()))
    return replace(other, layers=changed) if changed else attention


def _pairs(model: Model, attention: Attention) -> list[dict[str, float | None]] | None:
    """Rows of the frequencies, one for each rotary pair; None where neither method nor model states frequencies."""
    own = own_frequencies(model)
    used = own if attention.inv_freq is None else attention.inv_freq
    if used is None:
        return None
    return [
        {
            "pair": pair,
            "radians_per_token": float(radians),
            "wavelength": 2 * math.pi / radians if radians > 0 else None,
            "turns": model.trained_length * radians / (2 * math.pi),
            "slower": float(own[pair] / radians) if own is not None and radians > 0 else None,
        }
        for pair, radians in enumerate(used.tolist())
    ]


def distances_seen_by_last(remap: Remapping, distances: Positions, length: int) -> Floats:
    """[n] distance at which the last query of `length` tokens sees keys that are so many tokens before it.

    [n, bands] where bands of pairs see distances of their own.
    """
    query = np.array([length - 1])
    return np.asarray(seen_distances(remap, query, length - 1 - distances)[0])


def own_frequencies(model: Model) -> Floats | None:
    """[pairs] the model's own radians per token, where they are plain RoPE."""
    return model.inv_freq() if model.rope_base is not None and model.rope_scaling is None else None


def _rope_lines(model: Model) -> Iterator[str]:
    """Lines on the RoPE from which methods start, one for each RoPE of a model that scales its RoPE or has several."""
    if model.rope_scaling is None:
        return
    try:
        found = ropes_of_model(model)
    except Refused as refusal:
        yield refusal.reason
        yield ""
        return
    for rope in found:
        layers = "" if rope.layers is None else f" of the {rope.kind} layers {format_ranges(rope.layers)}"
        kind, base = rope.parameters["rope_type"], rope.parameters["rope_theta"]
        line = f"- RoPE{layers}: {kind}, base {base:,.0f}"
        if rope.scaled:
            plain = rope.parameters.get("original_max_position_embeddings") or model.trained_length
            line += (
                f"; over=scaled (default) starts from its scaled frequencies and {model.trained_length} tokens, "
                f"over=plain from the base and {plain} tokens"
            )
        kept = rope.windowed and len(found) > 1
        yield line + ("; kept, unless layers=all" if kept else "")
    yield ""


def _positions(model: Model, attention: Attention, length: int) -> Positions:
    """A few positions or distances that tell a map apart: both ends, every doubling of 1/8 of the trained length."""
    steps = [0, 1, length - 1, model.trained_length - 1]
    step = max(1, model.trained_length // 8)
    while step < length:
        steps.append(step)
        step *= 2
    if isinstance(attention.remap, Remap):
        window = attention.remap.window
        steps += [window - 1, window, window + 1]
    elif isinstance(attention.remap, Chunks):
        steps += [attention.remap.size - 1, attention.remap.size]
    return np.array(sorted({step for step in steps if 0 <= step < length}), dtype=np.int64)


def _rows(left: str, keys: Positions, right: str, values: Floats) -> list[dict[str, float]]:
    return [{left: key, right: value} for key, value in zip(keys.tolist(), values.tolist(), strict=True)]


# as text


def attention_table(
    model: Model, label: str, attention: Attention, length: int, own: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Describe an Attention in Markdown for a terminal; unused slots are named last, then `own`.

    `own` holds the model's own properties (`lexbench.checkpoints.structure`).
    """
    data = attention_data(model, label, attention, length)
    attention = _changed_first(model, attention)
    parts = [
        attention_title(model, label, length),
        "",
        *_rope_lines(model),
        *_pair_table(model, attention, data["pairs"]),
        "",
    ]
    parts += [f"- {line}" for line in slot_lines(model, attention, data)]
    alone = [name for name in SLOT_NAMES if name not in (*attention.slots(), "layers", "otherwise", "mixture")]
    parts.append(f"- the model's own: {', '.join(alone) or 'nothing'}")
    if own:
        parts += ["", "The model itself, under every method:", "", *(f"- {name}: {said}" for name, said in own.items())]
    return "\n".join(parts)


def attention_title(model: Model, label: str, length: int) -> str:
    """Title in one line of Markdown."""
    multiple = length / model.trained_length
    times = f"{multiple:.4g} times the trained {model.trained_length}" if multiple != 1 else "as trained"
    return f"**{model.name}** under **{label}** at {length} tokens ({times})"


def _pair_table(model: Model, attention: Attention, pairs: list[dict[str, float | None]] | None) -> Iterator[str]:
    if pairs is None:
        yield why_no_frequencies(model)
        return
    yield f"Rotary pairs {'as the method sets them' if attention.inv_freq is not None else 'of the model itself'}:"
    yield ""
    head = ("pair", "radians per token", "wavelength (tokens)", f"turns in {model.trained_length}", "times slower")
    yield from markdown_columns(head, [[_number(value) for value in row.values()] for row in pairs])


def why_no_frequencies(model: Model) -> str:
    """Why there are no frequencies to show."""
    if model.rope_scaling is None:
        return "The model has no rotary positions, there are no frequencies to show."
    kind = model.rope_scaling.get("rope_type", "each kind of layers its own way")
    return f"The model scales its angles itself ({kind}), and they stay so: its frequencies are not shown here."


def slot_lines(model: Model, attention: Attention, data: dict[str, Any]) -> Iterator[str]:
    """A line for every slot in use, each beginning with the slot's name, but for the pairs. `data`: of
    `attention_data`."""
    if attention.scale is not None:
        yield f"scale: cos and sin times {attention.scale:.6g}, so logits times {attention.scale**2:.6g}"
    if attention.query_scale is not None:
        steps = ", ".join(f"{row['factor']:.4g} at {row['position']}" for row in data["query_scales"])
        yield f"query_scale: queries times {steps}"
    if (count := attention.keep_first) is not None:
        yield f"keep_first: the first {count} tokens turn as in the model itself"
    if (heads := attention.head_ratios) is not None:
        ratios = ", ".join(f"{ratio:.4g}" for ratio in heads.ratios)
        yield f"head_ratios: positions divided by {ratios}, by key head from the most aware of positions to the least"
    if (dynamic := attention.dynamic) is not None:
        yield f"dynamic: the base follows the longest input past {dynamic.trained_length}, rate {dynamic.factor:g}"
    if (growing := attention.growing) is not None:
        yield f"growing: the base follows each query past {growing.trained_length}, rate {growing.factor:g}"
    if (remap := attention.remap) is not None:
        steps = ", ".join(f"{row['distance']} as {_distance(row['seen_as'])}" for row in data["distances"])
        yield f"remap: {_remap(remap)}; the last query sees distances {steps}"
    if (mask := attention.mask) is not None:
        yield f"mask: {_mask(mask)}"
    if (bias := attention.bias) is not None:
        low, high = min(bias.slopes), max(bias.slopes)
        yield f"bias: {len(bias.slopes)} heads lose {low:.4g} to {high:.4g} of their logits per token of distance"
    if attention.cache is not None:
        yield f"cache: {attention.cache.words()}"
    if attention.layers is not None:
        total = f" of {model.layers}" if model.layers else ""
        yield f"layers: only {format_ranges(attention.layers)}{total}"
        for line in (
            slot_lines(model, attention.otherwise, attention_data(model, "", attention.otherwise, data["length"]))
            if (attention.otherwise)
            else ["the model's own"]
        ):
            yield f"  other layers: {line}"
    for number, one in enumerate(attention.mixture or ()):
        inner = attention_data(model, "", one, data["length"])
        if one.inv_freq is not None:
            slowest = _number(inner["pairs"][-1]["radians_per_token"])
            yield f"pass {number + 1}: inv_freq, {slowest} radians per token at the slowest"
        for line in slot_lines(model, one, inner):
            yield f"pass {number + 1}: {line}"


def _distance(seen: float | list[float]) -> str:
    """A distance; those of all bands of pairs where they differ."""
    each = [f"{value:.6g}" for value in np.ravel(seen)]
    return each[0] if len(set(each)) == 1 else "/".join(each)


def _remap(remap: Remapping) -> str:
    if isinstance(remap, Chunks):
        return f"positions begin anew every {remap.size} tokens, older chunks are seen from {remap.limit} at most"
    if isinstance(remap, Stairs):
        steps = ", ".join(f"{count} steps of {repeat}" for count, repeat in remap.steps)
        return f"distances grow in {steps} tokens"
    if isinstance(remap, Remap):
        bands = count_bands(remap)
        return f"distances from {remap.window} on are changed" + (f", in each of {bands} bands of pairs" * (bands > 1))
    return f"{remap}"


def _mask(mask: Window | TopKMask | Blocks | Segments) -> str:
    if isinstance(mask, TopKMask):
        return f"{_mask(Window(mask.size, mask.sinks))}, and the {mask.count} of largest logit between"
    if isinstance(mask, Segments):
        return f"a query sees its own segment of {mask.size} keys"
    if isinstance(mask, Blocks):
        return f"a query sees its own block of {mask.size} keys and the one before"
    if not isinstance(mask, Window):  # a method's own class
        return f"a query sees the keys that {mask} allows"
    sinks = f" and the first {mask.sinks}" if mask.sinks else ""
    return f"a query sees the last {mask.size} keys, itself counted{sinks}"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
