"""`lexbench show`: what a method does to a model at one length, as data, as text and as a picture."""

import math
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lexbench.attention import (
    Attention,
    Blocks,
    Chunks,
    Floats,
    Positions,
    Remap,
    Remapping,
    Stairs,
    Window,
    seen_distances,
)
from lexbench.model import Model

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SLOTS = tuple(field.name for field in fields(Attention))
BLUE, VERMILION, GREY = "#0072B2", "#D55E00", "#666666"  # told apart without colour vision (Okabe and Ito)


def as_data(model: Model, label: str, attention: Attention, length: int) -> dict[str, Any]:
    """What `table` and `plot` show, as plain JSON values; what does not exist is None.

    Pairs: radians per token, wavelength 2 pi / radians in tokens, turns within the trained length, and how many times
    slower than the model's own pair. A pair that never turns has no wavelength.
    """
    scale = attention.scale or 1.0
    remap, query_scale = attention.remap, attention.query_scale
    some = _positions(model, attention, length)
    return {
        "model": {key: value for key, value in asdict(model).items() if value is not None},
        "method": label,
        "length": length,
        "multiple": length / model.trained_length,
        "attention": attention.as_data(),
        "pairs": _pairs(model, attention),
        "scale": scale,
        "logits_factor": scale**2,
        "distances": remap and _rows("distance", some, "seen_as", _seen(remap, some, length)),
        "query_scales": query_scale and _rows("position", some, "factor", query_scale(some)),
    }


def _pairs(model: Model, attention: Attention) -> list[dict[str, float | None]] | None:
    """One row a rotary pair; None where neither method nor model states frequencies."""
    own = _own(model)
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


def _seen(remap: Remapping, distances: Positions, length: int) -> Floats:
    """[n] distance at which the last query of `length` tokens sees keys that are so many tokens before it."""
    query = np.array([length - 1])
    return np.asarray(seen_distances(remap, query, length - 1 - distances)[0])


def _own(model: Model) -> Floats | None:
    """[pairs] the model's own radians per token, where they are plain RoPE."""
    return model.inv_freq() if model.rope_base is not None and model.rope_scaling is None else None


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


def table(model: Model, label: str, attention: Attention, length: int) -> str:
    """The same as Markdown that reads well in a terminal; slots that are left alone are named last."""
    data = as_data(model, label, attention, length)
    parts = [_headline(model, label, length), "", *_pair_table(model, attention, data["pairs"]), ""]
    parts += [f"- {line}" for line in _slots(model, attention, data)]
    alone = [name for name in SLOTS if name not in (*attention.slots(), "layers", "otherwise", "mixture")]
    parts.append(f"- the model's own: {', '.join(alone) or 'nothing'}")
    return "\n".join(parts)


def _headline(model: Model, label: str, length: int) -> str:
    multiple = length / model.trained_length
    times = f"{multiple:.4g} times the trained {model.trained_length}" if multiple != 1 else "as trained"
    return f"**{model.name}** under **{label}** at {length} tokens ({times})"


def _pair_table(model: Model, attention: Attention, pairs: list[dict[str, float | None]] | None) -> Iterator[str]:
    if pairs is None:
        yield _without_pairs(model)
        return
    yield f"Rotary pairs {'as the method sets them' if attention.inv_freq is not None else 'of the model itself'}:"
    yield ""
    head = ("pair", "radians per token", "wavelength (tokens)", f"turns in {model.trained_length}", "times slower")
    yield "| " + " | ".join(head) + " |"
    yield "| " + " | ".join("-" * (len(name) - 1) + ":" for name in head) + " |"
    for row in pairs:
        cells = (_number(value) for value in row.values())
        yield "| " + " | ".join(cell.rjust(len(name)) for cell, name in zip(cells, head, strict=True)) + " |"


def _without_pairs(model: Model) -> str:
    """Why there are no frequencies to show."""
    if model.rope_scaling is None:
        return "The model has no rotary positions, there are no frequencies to show."
    kind = model.rope_scaling.get("rope_type", "each kind of layers its own way")
    return f"The model scales its angles itself ({kind}), and they stay so: its frequencies are not shown here."


def _slots(model: Model, attention: Attention, data: dict[str, Any]) -> Iterator[str]:
    """A line for every slot in use, but for the pairs."""
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
    if (remap := attention.remap) is not None:
        steps = ", ".join(f"{row['distance']} as {row['seen_as']:.6g}" for row in data["distances"])
        yield f"remap: {_remap(remap)}; the last query sees distances {steps}"
    if (mask := attention.mask) is not None:
        yield f"mask: {_mask(mask)}"
    if (bias := attention.bias) is not None:
        low, high = min(bias.slopes), max(bias.slopes)
        yield f"bias: {len(bias.slopes)} heads lose {low:.4g} to {high:.4g} of their logits per token of distance"
    if attention.layers is not None:
        total = f" of {model.layers}" if model.layers else ""
        yield f"layers: only {', '.join(map(str, attention.layers))}{total}"
        for line in (
            _slots(model, attention.otherwise, as_data(model, "", attention.otherwise, data["length"]))
            if (attention.otherwise)
            else ["the model's own"]
        ):
            yield f"  other layers: {line}"
    for number, one in enumerate(attention.mixture or ()):
        inner = as_data(model, "", one, data["length"])
        if one.inv_freq is not None:
            slowest = _number(inner["pairs"][-1]["radians_per_token"])
            yield f"pass {number + 1}: inv_freq, {slowest} radians per token at the slowest"
        for line in _slots(model, one, inner):
            yield f"pass {number + 1}: {line}"


def _remap(remap: Remapping) -> str:
    if isinstance(remap, Chunks):
        return f"positions begin anew every {remap.size} tokens, older chunks are seen from {remap.limit} at most"
    if isinstance(remap, Stairs):
        steps = ", ".join(f"{count} steps of {repeat}" for count, repeat in remap.steps)
        return f"distances grow in {steps} tokens"
    assert isinstance(remap, Remap)
    return f"distances from {remap.window} on are changed"


def _mask(mask: Window | Blocks) -> str:
    if isinstance(mask, Blocks):
        return f"a query sees its own block of {mask.size} keys and the one before"
    sinks = f" and the first {mask.sinks}" if mask.sinks else ""
    return f"a query sees the last {mask.size} keys, itself counted{sinks}"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


# as a picture


def plot(model: Model, label: str, attention: Attention, length: int, file: Path) -> None:
    """Write the wavelengths, the seen distances and the query scale that there are, side by side.

    Raises ValueError unless the file's suffix is .png or .svg.
    """
    if file.suffix.lower() not in (".png", ".svg"):
        raise ValueError(f"plot must end in .png or .svg, got {file.name}: rename it")
    import matplotlib
    from matplotlib.figure import Figure

    panels = [_plot_wavelengths]
    panels += [_plot_distances] if attention.remap is not None else []
    panels += [_plot_query_scale] if attention.query_scale is not None else []
    # A fixed salt and no date: the same picture is the same file.
    with matplotlib.rc_context({"font.size": 10, "svg.hashsalt": "lexbench", "axes.grid": True, "grid.alpha": 0.25}):
        figure = Figure(figsize=(1.2 + 5.2 * len(panels), 5.2), layout="constrained")
        title = _headline(model, label, length).replace("**", "")
        figure.suptitle(textwrap.fill(title, width=75 * len(panels)), fontsize=11)
        for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            axes.spines[["top", "right"]].set_visible(False)
            panel(axes, model, textwrap.fill(label, width=36), attention, length)
            if axes.get_legend_handles_labels()[0]:  # below the axes, where no line can cross it
                axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, frameon=False)
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, dpi=150, metadata={"Date": None} if file.suffix.lower() == ".svg" else None)


def _plot_wavelengths(axes: "Axes", model: Model, label: str, attention: Attention, length: int) -> None:
    own = _own(model)
    axes.set_title("Wavelength of each rotary pair")
    if own is None and attention.inv_freq is None:
        words = textwrap.fill(_without_pairs(model), width=44)
        axes.text(0.5, 0.5, words, ha="center", va="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    curves = [(own, BLUE, "o", f"{model.name}, plain RoPE"), (attention.inv_freq, VERMILION, "^", label)]
    for radians, colour, marker, name in curves:
        if radians is not None:
            turning = np.flatnonzero(radians)
            axes.plot(turning, 2 * np.pi / radians[turning], marker, color=colour, markersize=4, label=name)
    axes.axhline(model.trained_length, color=GREY, linestyle="--", label=f"trained length, {model.trained_length:,}")
    if length != model.trained_length:
        axes.axhline(length, color=GREY, linestyle=":", label=f"length, {length:,}")
    axes.set(yscale="log", xlabel="pair, fast to slow", ylabel="wavelength (tokens)")


def _plot_distances(axes: "Axes", model: Model, label: str, attention: Attention, length: int) -> None:
    assert attention.remap is not None
    distances = np.unique(np.linspace(0, length - 1, 2000).astype(np.int64))
    seen = _seen(attention.remap, distances, length)
    axes.plot(distances, distances, color=BLUE, linewidth=1.5, label="unchanged")
    axes.plot(distances, seen, color=VERMILION, linewidth=2.5, linestyle="-.", label=label)
    axes.axhline(model.trained_length, color=GREY, linestyle="--", label=f"trained length, {model.trained_length:,}")
    axes.set(xlabel="distance of the key (tokens)", ylabel="distance as seen (tokens)")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_title("Distance that the last query sees")


def _plot_query_scale(axes: "Axes", model: Model, label: str, attention: Attention, length: int) -> None:
    assert attention.query_scale is not None
    positions = np.unique(np.linspace(0, length - 1, 2000).astype(np.int64))
    axes.axhline(1.0, color=BLUE, linewidth=1.5, label="unchanged")
    axes.plot(positions, attention.query_scale(positions), color=VERMILION, linewidth=2.5, linestyle="-.", label=label)
    axes.axvline(model.trained_length, color=GREY, linestyle="--", label=f"trained length, {model.trained_length:,}")
    axes.set(xlabel="position of the query (tokens)", ylabel="factor of the query")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_title("Scale of each query")
