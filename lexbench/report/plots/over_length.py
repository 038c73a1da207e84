"""A metric over multiples of the trained length: a line and a band per method."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.ticker
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import ScaledTranslation, Transform, blended_transform_factory

from lexbench.report.plots.style import (
    COLOURS,
    STYLE,
    band,
    colour,
    legend,
    looks,
    mark_trained_length,
    save,
    save_numbers,
    title,
    value_limits,
)
from lexbench.stats.metrics import MEASURES
from lexbench.stats.tables import Table, chances

LINES = len(COLOURS)
"""Methods that can be told apart; of more, the first row and the best are, the others are grey."""
CHANCE: dict[str, Any] = {"color": "0.35", "linewidth": 1.1, "linestyle": ":"}
SEEN = 0.01
"""No chance line below this."""
DODGE = 30.0
"""Points over which marks at the edges spread that would lie on one another."""
ROOM = 2**0.25
"""Times that the axis of lengths goes on beyond the first and the last."""
STEP = 2.4
"""Points from a method's line to the next one's where their values are equal."""


def plot(table: Table, stem: Path) -> None:
    """The figure as stem.svg and stem.png, its numbers as stem.csv."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 4.0), layout="constrained")
        axes = figure.add_subplot()
        top = _value_axis(axes, table)
        _length_axis(axes, table)
        mark_trained_length(axes, 1.0, low=table.better > 0)
        shown = told_apart(table)
        for method in table.methods:
            if method not in shown:
                _grey(axes, table, method)
        _chance(axes, table)
        for place, method in enumerate(shown):
            _line(axes, table, method, place, len(shown), top)
        _legend(axes, table, shown, top)
        differs = f"\n{table.differs}" if table.differs else ""
        title(axes, f"{table.cell.task} on {table.cell.model}, {table.cell.n} samples a cell{differs}", pad=14)
        save(figure, stem)
    names = ("method", "length", "multiple", "metric", "value", "low", "high", "n", "refused")
    rows = [[getattr(record, name) for name in names] for method in table.methods for record in table.of(method)]
    save_numbers(stem, names, rows)


def told_apart(table: Table) -> list[str]:
    """Methods with a colour: all where they are few; else the first row, and the best past the trained length.

    Where no side is better, the first by name are.
    """
    if len(table.methods) <= LINES:
        return table.methods

    def worth(method: str) -> tuple[int, float]:
        past = [record.value for record in table.of(method) if record.multiple > 1 and record.value is not None]
        mean = math.fsum(past) / len(past) if past else 0.0
        return -len(past), -table.better * mean

    first, *others = table.methods
    best = {first, *sorted(others, key=worth)[: LINES - 1]}
    return [method for method in table.methods if method in best]


def labelled(lengths: Sequence[int], trained_length: int) -> list[int]:
    """The lengths that have room for a label on a log axis; the trained length always, if it is one of them."""
    gap = (ROOM**2 * lengths[-1] / lengths[0]) ** 0.1
    kept: list[int] = []
    for length in lengths:
        if length == trained_length:
            kept = [other for other in kept if length / other >= gap]
        if not kept or length / kept[-1] >= gap:
            kept.append(length)
    return kept


def _value_axis(axes: Axes, table: Table) -> float:
    """Set up the y axis, and give its upper end."""
    sides = {1: ", higher is better", -1: ", lower is better", 0: ""}
    axes.set_ylabel(f"{table.label}{sides[table.better]}")
    logarithmic = table.metric in ("perplexity", "word_perplexity")
    known = [[record.value for record in table.of(method) if record.value is not None] for method in table.methods]
    worst = [max(values) for values in known if values]
    if table.scored or not worst:
        axes.set_ylim(-0.04, 1.04)
        return 1.04
    every = [record for record in table.entries.values() if record.value is not None]
    ends = [end for record in every for end in (record.value, record.low, record.high) if end is not None]
    if table.metric in MEASURES:  # all of it is shown
        margin = 0.05 * (max(ends) - min(ends)) or 0.05 * abs(ends[0]) or 1.0
        axes.set_ylim(min(ends) - margin, max(ends) + margin)
        return math.inf
    if not logarithmic:
        axes.set_ylim(*value_limits(worst, min(ends), max(ends)))
        return float(axes.get_ylim()[1])
    low, top = value_limits([math.log(value) for value in worst], math.log(min(ends)), math.log(max(ends)))
    axes.set_yscale("log")
    axes.set_ylim(math.exp(low), math.exp(top))
    steps = (1.0, 2.0, 5.0) if top - low > 3 else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)
    axes.yaxis.set_major_locator(mpl.ticker.LogLocator(subs=steps, numticks=20))
    axes.yaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(mpl.ticker.NullLocator())
    return math.exp(top)


def _length_axis(axes: Axes, table: Table) -> None:
    trained = table.cell.trained_length
    axes.set_xscale("log", base=2)
    kept = labelled(table.lengths, trained)
    axes.set_xticks([length / trained for length in kept], [f"{length / trained:.3g}x\n{length}" for length in kept])
    axes.xaxis.set_minor_locator(mpl.ticker.NullLocator())
    axes.set_xlim(min(table.lengths[0] / trained, 1.0) / ROOM, max(table.lengths[-1] / trained, 1.0) * ROOM)
    axes.set_xlabel("length: multiple of the trained length, tokens")


def _chance(axes: Axes, table: Table) -> None:
    """A dotted line at the score of guessing, where visible."""
    levels = chances(table)
    if max(levels.values(), default=0.0) < SEEN:
        return
    if len(set(levels.values())) == 1:
        axes.axhline(next(iter(levels.values())), zorder=1, **CHANCE)
    else:
        multiples = [length / table.cell.trained_length for length in levels]
        axes.plot(multiples, list(levels.values()), zorder=1, **CHANCE)


def _grey(axes: Axes, table: Table, method: str) -> None:
    records = [record for record in table.of(method) if record.value is not None]
    values = [record.value for record in records if record.value is not None]
    axes.plot([record.multiple for record in records], values, color="0.8", linewidth=0.8, zorder=1)


def _line(axes: Axes, table: Table, method: str, place: int, count: int, top: float) -> None:
    """A method: line, band, triangles where it leaves the axis, crosses above the frame where it is refused."""
    records = table.of(method)
    multiples = [record.multiple for record in records]
    values, low, high = (
        np.array([getattr(record, name) for record in records], np.float64) for name in ("value", "low", "high")
    )  # None becomes NaN, where a line breaks
    moved = _moved(axes, (place - (count - 1) / 2) * _step(table, count))
    shade: dict[str, Any] = {"color": colour(place), "alpha": band(count), "linewidth": 0}
    axes.plot(multiples, values, zorder=3, transform=moved, **looks(place))
    axes.fill_between(multiples, low, high, zorder=2, transform=moved, **shade)
    axes.vlines(multiples, low, high, color=colour(place), alpha=0.7, linewidth=0.9, zorder=2, transform=moved)
    aside = (place - (count - 1) / 2) * DODGE / max(6, count)
    beyond = [multiple for multiple, value in zip(multiples, values, strict=True) if value > top]
    refused = [record.multiple for record in records if record.refused]
    _edge(axes, beyond, 0.985, "^", colour(place), aside)
    _edge(axes, refused, 1.03, "x", colour(place), aside)


def _step(table: Table, count: int) -> float:
    """Points from a method's line to the next one's: less where lengths lie close."""
    octaves = np.log2(table.lengths)
    if len(octaves) < 2:
        return STEP
    closest = 300 * float(np.diff(octaves).min()) / max(1.0, float(octaves[-1] - octaves[0]))
    return min(STEP, 0.3 * closest / count)


def _moved(axes: Axes, aside: float) -> Transform:
    """Move data points sideways, by so many points."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    return axes.transData + ScaledTranslation(aside / 72, 0, figure.dpi_scale_trans)


def _edge(axes: Axes, x: Sequence[float], height: float, marker: str, colour: str, aside: float) -> None:
    """Marks at a height of the axes (0 to 1), moved aside by so many points."""
    if not x:
        return
    where = blended_transform_factory(_moved(axes, aside), axes.transAxes)
    [marks] = axes.plot(
        x, [height] * len(x), marker, color=colour, transform=where, markersize=5, zorder=4, clip_on=False
    )
    marks.set_in_layout(False)


def _legend(axes: Axes, table: Table, shown: Sequence[str], top: float) -> None:
    handles = [Line2D([], [], label=name, **looks(place)) for place, name in enumerate(shown)]
    records = table.entries.values()

    def mark(label: str, marker: str) -> None:
        handles.append(Line2D([], [], label=label, marker=marker, color="0.4", linestyle="none", markersize=5))

    if others := len(table.methods) - len(shown):
        handles.append(Line2D([], [], label=f"{others} others", color="0.8", linewidth=0.8))
    if any(record.value is not None and record.value > top for record in records):
        mark("above the axis", "^")
    if any(record.refused for record in records):
        mark("refused", "x")
    if max(chances(table).values(), default=0.0) >= SEEN:
        handles.append(Line2D([], [], label="chance", **CHANCE))
    legend(axes, handles, band=any(record.low is not None for record in records))
