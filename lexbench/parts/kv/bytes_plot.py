"""Divergence against bytes a token at one length, as a figure with its numbers beside it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import matplotlib.ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lexbench.core.method_key import MethodKey
from lexbench.core.model import Model
from lexbench.core.record import Cell
from lexbench.parts.kv.compression import Compression
from lexbench.parts.kv.divergence import DivergenceLevel, level
from lexbench.parts.kv.table import KvRow, full_bytes, stored_bytes
from lexbench.report.plots.cost_plots import PARETO_FRONT_LINE, PARETO_FRONT_RING, pareto_front
from lexbench.report.plots.style import (
    MATPLOTLIB_STYLE,
    SERIES_COLOURS,
    SERIES_MARKERS,
    draw_legend,
    draw_title,
    save_figure,
    save_numbers,
)

REFERENCE_LINE: dict[str, Any] = {"color": "0.55", "linewidth": 1.0, "linestyle": (0, (4, 3)), "zorder": 0}


class BytesPoint(NamedTuple):
    """A setting at the length of the figure."""

    key: MethodKey
    cache: Compression
    bytes: float
    """Bytes of a token's keys and values in all layers."""
    found: DivergenceLevel
    front: bool = False
    """Whether no other setting has as few bytes and as little divergence, and less of one of the two."""


def plot_bytes(
    rows: Sequence[KvRow], about: Cell, model: Model, length: int, margin: float, stem: Path, png: bool = False
) -> bool:
    """The figure as stem.svg, its numbers as stem.csv; False, and none, with fewer than two settings that diverge.

    None either where a model's bytes are not known.

    Args:
        rows: the settings.
        about: one of the measured cells.
        model: whose cache it is.
        length: in tokens.
        margin: nats per token, drawn as a line.
        stem: path of the files without their suffix.
        png: whether to write stem.png, too.
    """
    points, full = points_at(rows, model, length), full_bytes(model, length)
    if len(points) < 2 or full is None:
        return False
    with mpl.rc_context(MATPLOTLIB_STYLE):
        title = f"{about.model}, corpus {about.corpus}\ndivergence from the uncompressed cache, at {length:,} tokens"
        save_figure(_figure(points, title, full, margin), stem, png)
    numbers = ([p.key, length, p.bytes, p.found.value, p.found.low, p.found.high, p.found.n, p.front] for p in points)
    save_numbers(stem, ("setting", "length", "bytes_per_token", "kld", "low", "high", "n", "front"), numbers)
    return True


def points_at(rows: Sequence[KvRow], model: Model, length: int) -> list[BytesPoint]:
    """The settings that diverge at a length, in the order of the rows."""
    points = []
    for row in rows:
        found, size = level(row.divergences.get(length, ())), stored_bytes(row, model, length)
        if row.cache is None or size is None:
            continue
        if found is not None and found.value > 0:  # 0 has no place on a logarithmic axis
            points.append(BytesPoint(row.key, row.cache, size, found))
    best = pareto_front([(point.bytes, point.found.value) for point in points])
    return [point._replace(front=on) for point, on in zip(points, best, strict=True)]


def _figure(points: Sequence[BytesPoint], title: str, full: float, margin: float) -> Figure:
    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    axes = figure.add_subplot(xscale="log", yscale="log")
    axes.set_xlim(min(point.bytes for point in points) / 1.12, full * 1.12)
    values = [*(point.found.value for point in points), margin]
    axes.set_ylim(min(values) / 2, 2 * max(*values, *(point.found.high or 0.0 for point in points)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: f"{value:,.6g}"))
        axis.set_minor_locator(mpl.ticker.NullLocator())
    axes.xaxis.set_major_locator(mpl.ticker.LogLocator(subs=(1.0, 2.0, 5.0), numticks=20))
    axes.set_xlabel("bytes a token as stored, all layers (logarithmic)")
    axes.set_ylabel("KL divergence, nats per token (logarithmic)")
    _draw_reference_lines(axes, full, margin)
    kinds, handles = list(dict.fromkeys(_kind_of_cache(point.cache) for point in points)), []
    for point in points:
        kind = _kind_of_cache(point.cache)
        alike = [other.key for other in points if _kind_of_cache(other.cache) == kind]
        marker = SERIES_MARKERS[alike.index(point.key) % len(SERIES_MARKERS)]
        handles.append(_draw_point(axes, point, SERIES_COLOURS[kinds.index(kind) % len(SERIES_COLOURS)], marker))
    front = sorted((point for point in points if point.front), key=lambda point: point.bytes)
    x, y = [point.bytes for point in front], [point.found.value for point in front]
    axes.plot(x, y, zorder=3, **{**PARETO_FRONT_RING, "linestyle": "none"})
    # On to the right edge: with more bytes the best so far stays.
    axes.plot([*x, axes.get_xlim()[1]], [*y, y[-1]], drawstyle="steps-post", zorder=1, **PARETO_FRONT_LINE)
    handles.append(Line2D([], [], label="Pareto front", **PARETO_FRONT_RING))
    draw_legend(axes, handles, "bars")
    draw_title(axes, title)
    return figure


def _kind_of_cache(cache: Compression) -> tuple[bool, ...]:
    """Settings of one kind share a colour."""
    return cache.bits is not None, cache.hadamard, cache.format is not None, cache.drops_tokens


def _draw_reference_lines(axes: Axes, full: float, margin: float) -> None:
    """The margin, and the bytes of 16 bits a number."""
    words: dict[str, Any] = {"color": "0.4", "fontsize": 7.5, "textcoords": "offset points"}
    axes.axhline(margin, **REFERENCE_LINE)
    axes.annotate(f"{margin:g} nats", (0, margin), (3, 3), xycoords=("axes fraction", "data"), **words)
    axes.axvline(full, **REFERENCE_LINE)
    place: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "rotation": 90, "ha": "right", "va": "top"}
    axes.annotate("16 bits a number", (full, 0.98), (-3, 0), **place, **words)


def _draw_point(axes: Axes, point: BytesPoint, colour: str, marker: str) -> Line2D:
    """A mark with its interval; the same for the legend."""
    low, high = point.found.low, point.found.high
    if low is not None and high is not None:
        axes.vlines(point.bytes, max(low, axes.get_ylim()[0]), high, color=colour, alpha=0.7, linewidth=0.9, zorder=2)
    style: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 5.5, "linestyle": "none"}
    axes.plot(point.bytes, point.found.value, zorder=4, **style)
    return Line2D([], [], label=str(point.key), **style)
