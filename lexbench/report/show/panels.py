"""The panels of `show_plots`: each draws one kind of thing that Attentions change, and gives the numbers drawn.

frequencies    wavelength 2 pi / radians of each rotary pair, how many times slower than the model's own
remap, mask    the distance that the last query sees; the distance at which each query sees each key, what is masked
bias           what a head's logits lose with distance
query_scale    the factor of each query
head_ratios    what the positions of each head are divided by
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import matplotlib.ticker
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.transforms import ScaledTranslation

from lexbench.core.attention import Attention, Floats, seen_distances
from lexbench.core.method_key import BASELINE_METHOD, MethodKey
from lexbench.core.model import Model
from lexbench.report import looks
from lexbench.report.plots.style import LEGEND_LINE_CHARACTERS, line_style, series_style, wrap_name
from lexbench.report.show.table import own_frequencies, why_no_frequencies

LEGEND_OFFSET_POINTS = 30.0
"""Points from an axis to the legend below its labels."""
SHORT_LABEL_CHARACTERS = 24
"""Characters of a label of which two stand side by side."""
MAP_SIDE_POSITIONS = 96
"""Positions along each side of a map of distances."""
MAX_LINE_POINTS = 1000
"""Most points of a line over distances or positions."""
TRAINED_LENGTH_LINE: dict[str, Any] = {"color": "0.45", "linewidth": 1.0, "linestyle": (0, (4, 3)), "zorder": 0}
ASKED_LENGTH_LINE: dict[str, Any] = {"color": "0.45", "linewidth": 1.0, "linestyle": ":", "zorder": 0}
BEYOND_TRAINED_FILL: dict[str, Any] = {"facecolor": "#E08A4F", "edgecolor": "0.15", "hatch": "////", "linewidth": 0.0}
"""Fill of distances that are larger than any in training."""
UNCHANGED_LINE: dict[str, Any] = {"color": looks.INK_COLOUR, "linewidth": 1.5}
"""Line of numbers that a method leaves unchanged."""
MASKED_KEYS_FILL: dict[str, Any] = {"facecolor": "0.85", "edgecolor": "0.6", "linewidth": 0.0}


Row = tuple[str, str, float, float, int | None]
"""Panel, name, x, y, and the query's position where there is one."""
Panel = Callable[[Axes, "ShownAttention"], list[Row]]


@dataclass(frozen=True, eq=False)
class ShownAttention:
    """The subject of a figure."""

    model: Model
    method: MethodKey
    length: int
    parts: Mapping[str, Attention]
    """Attentions to draw, by name: the method's, or those of its passes, or of its layers where they differ."""

    def places(self, *slots: str) -> list[tuple[int, str, Attention]]:
        """The parts that use one of the slots, with their place; 0 is the model's."""
        named = enumerate(self.parts.items(), 1)
        return [(place, name, part) for place, (name, part) in named if set(slots) & set(part.slots())]

    def line(self, place: int) -> dict[str, Any]:
        """The line of the part at a place: a method's own look, or one of a series where parts are of one method."""
        if len(self.parts) > 1 or self.method == BASELINE_METHOD:
            return series_style(place)
        drawn = (BASELINE_METHOD, self.method)
        return line_style(looks.looks_of_methods(drawn)[drawn[place]])

    def sparse(self, place: int, points: int) -> dict[str, Any]:
        """Line of the part at a place, with about eight markers over `points` points."""
        every = max(1, points // 8)
        look = self.line(place)
        look.update(markersize=4, linewidth=1.3, markevery=(place * every // 8 % every, every))
        return look


def panels_of(shown: ShownAttention) -> list[Panel]:
    """Panels that fit the method; the model's own wavelengths if nothing else does."""
    frequencies = shown.places("inv_freq", "dynamic", "growing")
    panels: list[Panel] = [wavelengths_panel] if frequencies else []
    if frequencies and own_frequencies(shown.model) is not None:
        panels.append(slowdown_panel)
    panels += [distances_seen_panel] if shown.places("remap") else []
    panels += [_distance_map_panel(name, part) for _, name, part in shown.places("remap", "mask")]
    panels += [_biases_panel] if shown.places("bias") else []
    panels += [query_scales_panel] if shown.places("query_scale") else []
    panels += [_head_ratios_panel] if shown.places("head_ratios") else []
    return panels or [wavelengths_panel]


def _rows(panel: str, name: str, x: np.ndarray, y: np.ndarray, query: int | None = None) -> list[Row]:
    return [(panel, name, *pair, query) for pair in zip(x.tolist(), y.tolist(), strict=True)]


# frequencies


def part_frequencies(model: Model, part: Attention, length: int) -> Floats | None:
    """[pairs] radians per token at a length; None where the model's own are unknown.

    Those of `growing` are the last query's. Those of `dynamic` are transformers', at a text of that length: b (s n / L
    - (s - 1))^(d / (d - 2)).
    """
    if part.growing is not None:
        return np.asarray(part.growing.inv_freq(np.array([length - 1]))[0])
    if part.dynamic is not None and own_frequencies(model) is not None:
        longest = max(length, part.dynamic.trained_length)
        stretch = part.dynamic.factor * longest / part.dynamic.trained_length - (part.dynamic.factor - 1)
        return model.inv_freq(model.rotary_base() * stretch ** (model.rotated / (model.rotated - 2)))
    return own_frequencies(model) if part.inv_freq is None else part.inv_freq


def _curves(shown: ShownAttention) -> Iterator[tuple[int, str, Floats]]:
    """The model's own frequencies, then those of each part that changes them."""
    own = own_frequencies(shown.model)
    if own is not None:
        yield 0, f"{shown.model.name}, plain RoPE", own
    for place, name, part in shown.places("inv_freq", "dynamic", "growing"):
        found = part_frequencies(shown.model, part, shown.length)
        if found is not None:
            yield place, name, found


def wavelengths_panel(axes: Axes, shown: ShownAttention) -> list[Row]:
    """2 pi / radians in tokens, over the pairs; in words where no frequencies are known."""
    curves = list(_curves(shown))
    if not curves:
        words = wrap_name(why_no_frequencies(shown.model), 40, lines=6)
        axes.text(0.5, 0.5, words, ha="center", va="center", transform=axes.transAxes)
        axes.set_axis_off()
        return []
    axes.set_title("wavelength of each rotary pair")
    handles: list[Any] = []
    rows: list[Row] = []
    for place, name, radians in curves:
        turning = np.flatnonzero(radians)
        waves = 2 * np.pi / radians[turning]
        [line] = axes.plot(
            turning, waves, label=wrap_name(name, LEGEND_LINE_CHARACTERS), **shown.sparse(place, len(turning))
        )
        handles.append(line)
        rows += [
            ("wavelength", name, float(pair), float(wave), None) for pair, wave in zip(turning, waves, strict=True)
        ]
        still = np.flatnonzero(radians == 0)
        axes.plot(still, [0.985] * len(still), "|", color=line.get_color(), transform=axes.get_xaxis_transform())
        rows += _rows("wavelength", name, still, np.full(len(still), math.inf))
    if any((radians == 0).any() for _, _, radians in curves):
        handles.append(Line2D([], [], label="never turns", marker="|", color="0.4", linestyle="none"))
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: f"{value:,.10g}"))
    trained = shown.model.trained_length
    handles.append(axes.axhline(trained, label=f"trained length, {trained}", **TRAINED_LENGTH_LINE))
    if shown.length != trained:
        handles.append(axes.axhline(shown.length, label=f"length, {shown.length}", **ASKED_LENGTH_LINE))
    top = axes.get_ylim()[1]
    if top > trained:
        handles.append(
            axes.axhspan(trained, top, color="0.94", linewidth=0, zorder=-1, label="no full turn in training")
        )
        axes.set_ylim(top=top)
    axes.set(xlabel="pair, fast to slow", ylabel="wavelength (tokens)")
    axes.xaxis.set_major_locator(mpl.ticker.MaxNLocator(integer=True))
    _draw_legend_below(axes, handles)
    return rows


def slowdown_panel(axes: Axes, shown: ShownAttention) -> list[Row]:
    """The model's own radians over the method's, of the pairs that turn."""
    own = own_frequencies(shown.model)
    assert own is not None
    axes.set_title("times slower than the model's own")
    axes.axhline(1.0, **UNCHANGED_LINE)
    handles: list[Any] = []
    rows: list[Row] = []
    for place, name, radians in list(_curves(shown))[1:]:
        turning = np.flatnonzero(radians)
        times = own[turning] / radians[turning]
        handles += axes.plot(
            turning, times, label=wrap_name(name, LEGEND_LINE_CHARACTERS), **shown.sparse(place, len(turning))
        )
        rows += _rows("slower", name, turning, times)
    stretch = shown.length / shown.model.trained_length
    if stretch > 1:
        handles.append(axes.axhline(stretch, label=f"length / trained, {stretch:.4g}", **ASKED_LENGTH_LINE))
    if max((row[3] for row in rows), default=1.0) > 8 * max(stretch, 1.0):  # one runs away from the others
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.set(xlabel="pair, fast to slow", ylabel="times slower")
    axes.xaxis.set_major_locator(mpl.ticker.MaxNLocator(integer=True))
    _draw_legend_below(axes, handles)
    return rows


# distances


def _spread_positions(length: int, count: int) -> np.ndarray:
    """[count, or fewer] whole numbers from 0 to length - 1, evenly spread."""
    return np.unique(np.linspace(0, length - 1, min(length, count)).round().astype(np.int64))


def distances_seen_panel(axes: Axes, shown: ShownAttention) -> list[Row]:
    """Distances as the last query sees them, over true ones; a gap where keys are masked."""
    axes.set_title("distance that the last query sees")
    distances, last = _spread_positions(shown.length, MAX_LINE_POINTS), np.array([shown.length - 1])
    [unchanged] = axes.plot(distances, distances, label="unchanged", **UNCHANGED_LINE)
    handles: list[Any] = [unchanged]
    rows: list[Row] = []
    for place, name, part in shown.places("remap"):
        seen, look = _seen_distances(part, last, last[0] - distances)[0], shown.sparse(place, len(distances))
        bands = seen.shape[1]
        label = wrap_name(name, LEGEND_LINE_CHARACTERS) + (f"\n{bands} bands of pairs" if bands > 1 else "")
        handles += axes.plot(distances, seen[:, 0], label=label, **look)
        for band in range(1, bands):
            axes.plot(distances, seen[:, band], **look)
        known = ~np.isnan(seen[:, 0])
        for band in range(bands):
            of = f"{name}, band {band}" if bands > 1 else name
            rows += _rows("distance", of, distances[known], seen[known, band], int(last[0]))
    if shown.length > shown.model.trained_length:
        axes.axhline(shown.model.trained_length, **TRAINED_LENGTH_LINE)
    _mark_trained(axes, shown, handles)
    axes.set(xlabel="distance of the key (tokens)", ylabel="distance as seen (tokens)")
    _draw_legend_below(axes, handles)
    return rows


def _seen_distances(part: Attention, queries: np.ndarray, keys: np.ndarray) -> Floats:
    """[queries, keys, bands of pairs] the distance at which a key is seen; NaN where it is not."""
    seen = seen_distances(part.remap, queries, keys).reshape(len(queries), len(keys), -1)
    return seen if part.mask is None else np.where(part.mask.allowed(queries, keys)[:, :, None], seen, np.nan)


def _distance_map_panel(name: str, part: Attention) -> Panel:
    """The panel of one part: queries down, keys across."""

    def panel(axes: Axes, shown: ShownAttention) -> list[Row]:
        places, trained = _spread_positions(shown.length, MAP_SIDE_POSITIONS), shown.model.trained_length
        each = _seen_distances(part, places, places)
        seen = each.max(axis=2)
        causal = places[None, :] <= places[:, None]
        axes.set_title(("largest " if each.shape[2] > 1 else "") + "distance at which each key is seen")
        axes.set_facecolor("white")
        edges = (-0.5, shown.length - 0.5, shown.length - 0.5, -0.5)
        hidden = np.where(causal & np.isnan(seen), 1.0, np.nan)
        axes.imshow(
            hidden, cmap=mpl.colors.ListedColormap([MASKED_KEYS_FILL["facecolor"]]), extent=edges, aspect="auto"
        )
        near = np.where(seen < trained, seen, np.nan)
        image = axes.imshow(near, cmap="cividis", vmin=0, vmax=trained - 1, extent=edges, aspect="auto")
        handles = [Patch(label="masked", **MASKED_KEYS_FILL)] if np.nansum(hidden) else []
        if (seen >= trained).any():
            axes.imshow(
                np.where(seen >= trained, 1.0, np.nan),
                cmap=mpl.colors.ListedColormap([BEYOND_TRAINED_FILL["facecolor"]]),
                extent=edges,
                aspect="auto",
            )
            # imshow knows no hatches: contours draw them over it, for prints without colour.
            far = np.where(np.isnan(seen), 0.0, seen)
            axes.contourf(places, places, far, levels=[trained - 1, far.max() + 1], colors="none", hatches=["////"])
            handles.append(Patch(label=f"as {trained} or more, never trained", **BEYOND_TRAINED_FILL))
        axes.set(xlabel="key (position)", ylabel="query (position)")
        figure = axes.get_figure(root=True)
        assert figure is not None
        bar = figure.colorbar(image, ax=axes, aspect=18, shrink=0.9, pad=0.02)
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelsize=7)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(mpl.ticker.MaxNLocator(5, integer=True))
        _draw_legend_below(
            axes, [Line2D([], [], label=wrap_name(name, LEGEND_LINE_CHARACTERS), linestyle="none"), *handles]
        )
        known = ~np.isnan(seen)
        whole = zip(places.tolist(), seen, known, strict=True)
        return [row for query, line, held in whole for row in _rows("map", name, places[held], line[held], query)]

    return panel


# what else there is


def _biases_panel(axes: Axes, shown: ShownAttention) -> list[Row]:
    axes.set_title("bias on the logits of each head")
    distances = _spread_positions(shown.length, MAX_LINE_POINTS)
    handles: list[Any] = []
    rows: list[Row] = []
    for place, name, part in shown.places("bias"):
        assert part.bias is not None
        for head, slope in enumerate(part.bias.slopes):
            look = {**shown.line(place), "marker": "", "linewidth": 0.9}
            [line] = axes.plot(distances, -slope * distances, **look)
            rows += _rows("bias", f"{name}, head {head}", distances[[0, -1]], -slope * distances[[0, -1]])
        line.set_label(f"{wrap_name(name, LEGEND_LINE_CHARACTERS)}\n{len(part.bias.slopes)} heads")
        handles.append(line)
    _mark_trained(axes, shown, handles)
    axes.set(xlabel="distance of the key (tokens)", ylabel="added to the logit")
    _draw_legend_below(axes, handles)
    return rows


def query_scales_panel(axes: Axes, shown: ShownAttention) -> list[Row]:
    """Factor of each query."""
    axes.set_title("factor of each query")
    positions = _spread_positions(shown.length, MAX_LINE_POINTS)
    handles: list[Any] = [axes.axhline(1.0, label="unchanged", **UNCHANGED_LINE)]
    rows: list[Row] = []
    for place, name, part in shown.places("query_scale"):
        assert part.query_scale is not None
        factors = part.query_scale(positions)
        handles += axes.plot(
            positions, factors, label=wrap_name(name, LEGEND_LINE_CHARACTERS), **shown.sparse(place, len(positions))
        )
        rows += _rows("query_scale", name, positions, factors)
    _mark_trained(axes, shown, handles)
    axes.set(xlabel="position of the query (tokens)", ylabel="factor")
    _draw_legend_below(axes, handles)
    return rows


def _head_ratios_panel(axes: Axes, shown: ShownAttention) -> list[Row]:
    axes.set_title("what positions are divided by")
    handles: list[Any] = [axes.axhline(1.0, label="unchanged", **UNCHANGED_LINE)]
    rows: list[Row] = []
    for place, name, part in shown.places("head_ratios"):
        assert part.head_ratios is not None
        ratios = part.head_ratios.ratios
        handles += axes.plot(
            range(len(ratios)),
            ratios,
            label=wrap_name(name, LEGEND_LINE_CHARACTERS),
            **shown.sparse(place, len(ratios)),
        )
        rows += _rows("head_ratios", name, np.arange(len(ratios)), np.array(ratios))
    axes.set(xlabel="key head, by how aware it is of positions, the most first", ylabel="ratio")
    axes.xaxis.set_major_locator(mpl.ticker.MaxNLocator(integer=True))
    _draw_legend_below(axes, handles)
    return rows


def _mark_trained(axes: Axes, shown: ShownAttention, handles: list[Any]) -> None:
    """The trained length, where it lies on the x axis."""
    trained = shown.model.trained_length
    axes.xaxis.set_major_locator(mpl.ticker.MaxNLocator(5, integer=True))
    if shown.length > trained:
        handles.append(axes.axvline(trained, label=f"trained length, {trained}", **TRAINED_LENGTH_LINE))


def legend_columns(labels: Iterable[str]) -> int:
    """Two where all labels are short."""
    return 2 if all(len(line) <= SHORT_LABEL_CHARACTERS for label in labels for line in label.split("\n")) else 1


def _draw_legend_below(axes: Axes, handles: Sequence[Any]) -> None:
    """The legend, where no line can cross it."""
    columns = legend_columns(str(each.get_label()) for each in handles)
    figure = axes.get_figure(root=True)
    assert figure is not None
    axes.legend(
        handles=handles,
        loc="upper center",
        bbox_to_anchor=(0.5, 0.0),
        bbox_transform=axes.transAxes + ScaledTranslation(0, -LEGEND_OFFSET_POINTS / 72, figure.dpi_scale_trans),
        ncols=columns,
        frameon=False,
        fontsize=8,
        handlelength=3.0,
    )
