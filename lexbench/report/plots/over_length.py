"""A metric over multiples of the trained length: differences to the unmodified model, and levels beside them.

Better is upwards in every panel, and grey is the trained length: no other part of an axis has a ground. Differences are
paired, over the same questions, with their 95 % intervals; a filled marker is significant after Holm's correction, a
hollow one is not. They are for deciding: intervals of levels hold what all methods share, such as how
hard the texts are. Where nothing can be paired, levels stand alone. A panel a family where methods are many.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.ticker
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.transforms import ScaledTranslation, Transform, blended_transform_factory

from lexbench.core.method_key import BASELINE_METHOD, MethodKey
from lexbench.report import looks
from lexbench.report.looks import Look
from lexbench.report.plots import value_axis
from lexbench.report.plots.style import (
    DOWN_ARROW,
    MATPLOTLIB_STYLE,
    OFF_AXIS_ARROW,
    NotebookFigure,
    draw_background_curves,
    draw_legend,
    line_style,
    mark_trained_length,
    pairs_for,
    panels_for,
    save_figure,
    save_numbers,
    value_limits,
)
from lexbench.report.plots.value_axis import ValueScale
from lexbench.report.titles import title_of
from lexbench.report.wording import format_ratio, metric_label
from lexbench.stats.differences import Difference, Differences, with_sign
from lexbench.stats.metrics import is_token_loss
from lexbench.stats.tables import Table

FLOOR_LINE: dict[str, Any] = {"color": "0.35", "linewidth": 1.1, "linestyle": ":"}
MIN_DRAWN_FLOOR = 0.01
"""No line of a floor below this."""
EDGE_MARK_SPREAD_POINTS = 30.0
"""Points over which marks at the edges spread that would lie on one another."""
LENGTH_AXIS_MARGIN_FACTOR = 2**0.25
"""Times that the axis of lengths goes on beyond the first and the last."""
LINE_OFFSET_POINTS = 2.4
"""Points from a method's line to the next one's where their values are equal."""
LENGTH_AXIS_LABEL = "length: multiple of the trained length, tokens"


def plot_over_length(table: Table, stem: Path, png: bool = True, found: Differences | None = None) -> None:
    """Draw the figure as stem.svg and stem.png (unless it is not wanted), its levels as stem.csv."""
    with mpl.rc_context(MATPLOTLIB_STYLE):
        save_figure(over_length_figure(table, found), stem, png)
    names = ("method", "length", "multiple", "metric", "value", "low", "high", "n", "refused")
    rows = [[getattr(record, name) for name in names] for method in table.methods for record in table.of(method)]
    save_numbers(stem, names, rows)


@mpl.rc_context(MATPLOTLIB_STYLE)
def over_length_figure(table: Table, found: Differences | None = None) -> NotebookFigure:
    """Levels, and left of them the differences if given: once, or for each family with all other methods in grey."""
    shown = looks.family_panels(table.methods, table.highlight)
    known = looks.looks_of_methods(table.methods, table.highlight)
    scale = value_axis.scale_of_table(table)
    level = level_label(table)
    if found is None or found.empty:
        made, panels = panels_for(shown, title_of(table), LENGTH_AXIS_LABEL, level)
        for axes, (_, methods) in zip(panels, shown, strict=True):
            draw_panel(axes, table, methods, known, scale)
            _legend(axes, table, methods, known, scale)
        return made
    found = better_upwards(found)
    made, pairs = pairs_for(shown, title_of(table), LENGTH_AXIS_LABEL, difference_label(found), level)
    for (left, right), (_, methods) in zip(pairs, shown, strict=True):
        difference_panel(left, found, methods, known)
        draw_panel(right, table, methods, known, scale)
        handles = [*handles_of(table, methods, known, scale), *difference_handles(found, methods)]
        draw_legend(right, handles, "bars", alone=len(shown) == 1)
    return made


def difference_label(found: Differences) -> str:
    """Name of the axis of differences."""
    what = (
        "" if is_token_loss(found.table.metric) else f"{metric_label(found.table.metric, found.table.cell.task_name)}, "
    )
    base = "the unmodified model" if found.baseline == BASELINE_METHOD else found.baseline
    return f"{'better than' if found.table.better else 'minus'} {base} by: {what}{found.unit}"


def level_label(table: Table) -> str:
    """Name of the axis of levels."""
    return metric_label(table.metric, table.cell.task_name) + (" (\u2191 better)" if table.better else "")


def better_upwards(found: Differences) -> Differences:
    """Differences above 0 where the method is better than the baseline, as panels draw them."""
    side = found.table.better or 1
    return replace(found, entries={place: with_sign(each, side) for place, each in found.entries.items()})


def difference_panel(
    axes: Axes, found: Differences, methods: Sequence[MethodKey], known: Mapping[MethodKey, Look]
) -> None:
    """Paired differences with their intervals, zero as the dark line of the baseline; all other methods in grey."""
    scale = difference_scale(found)
    value_axis.draw_value_axis(axes, scale)
    _length_axis(axes, found.table)
    zero = (axes.transData - axes.transAxes).transform([(1.0, 0.0)])[0, 1]
    mark_trained_length(axes, 1.0, low=bool(zero > 0.5))
    others = [row for row in found.table.methods if row not in methods and row != found.baseline]
    draw_background_curves(
        axes, [list(zip(_multiples(found, row), _values(found, row), strict=True)) for row in others]
    )
    axes.axhline(0.0, **{**line_style(known[found.baseline]), "marker": "none"})
    compared = [method for method in methods if method != found.baseline]
    for place, method in enumerate(compared):
        _difference_line(axes, found, method, known[method], (place, len(compared)), scale)


def _difference_line(
    axes: Axes, found: Differences, method: MethodKey, look: Look, among: tuple[int, int], scale: ValueScale
) -> None:
    """A method's differences: line, bars, and markers that are hollow where nothing is told."""
    place, count = among
    shift = place - (count - 1) / 2
    moved = _shift_sideways(axes, shift * _line_offset_points(found.table, count))
    drawn, at, style = _of(found, method), _multiples(found, method), line_style(look)
    values = _values(found, method)
    axes.plot(at, values, transform=moved, **{**style, "marker": "none"})
    # As few artists as there are looks: each takes a millisecond to make and another to draw.
    bars = [(x, each.low, each.high) for x, each in zip(at, drawn, strict=True) if None not in (each.low, each.high)]
    if bars:
        axes.vlines(*zip(*bars, strict=True), color=look.colour, linewidth=1.0, zorder=2, transform=moved)
    for significant, face in ((True, look.colour), (False, "white")):
        points = [
            point
            for point, each in zip(zip(at, values, strict=True), drawn, strict=True)
            if each.significant == significant
        ]
        if points:
            marks = {**style, "linestyle": "none", "markerfacecolor": face}
            axes.plot(*zip(*points, strict=True), transform=moved, **marks)
    aside = shift * EDGE_MARK_SPREAD_POINTS / max(6, count)
    beyond = [x for x, each in zip(at, drawn, strict=True) if scale.is_below_axis(each.difference or 0.0)]
    _draw_edge_marks(axes, beyond, 0.03, {**DOWN_ARROW, "color": look.colour}, aside)


def difference_scale(found: Differences) -> ValueScale:
    """The axis of differences: of losses, a collapsed method does not stretch it; zero is always on it."""
    ends = {
        row: [(each.difference or 0.0, each.low, each.high) for each in of]
        for row in found.table.methods
        if (of := _of(found, row))
    }
    whole = value_axis.full_scale({**ends, found.baseline: [(0.0, None, None)]})
    if not is_token_loss(found.table.metric):
        return whole
    every = [end for each in ends.values() for value in each for end in value if end is not None]
    worst = [max(-value for value, _, _ in each) for each in ends.values()]
    top, low = value_limits(worst, -max(0.0, *every), -min(0.0, *every))
    return ValueScale(min(-low, 0.05 * top), -top)


def difference_handles(found: Differences, methods: Sequence[MethodKey]) -> list[Line2D]:
    """Entries of a legend for differences, besides the methods."""
    drawn = [each for method in methods if method != found.baseline for each in _of(found, method)]
    hollow: dict[str, Any] = {"marker": "o", "color": "0.4", "markerfacecolor": "white", "linestyle": "none"}
    if all(each.significant for each in drawn):
        return []
    return [Line2D([], [], label="hollow: not significant", markersize=5, **hollow)]


def _of(found: Differences, method: MethodKey) -> list[Difference]:
    """The method's differences that have a value, by length."""
    every = (found.entries.get((method, length)) for length in found.table.lengths)
    return [each for each in every if each is not None and each.difference is not None]


def _multiples(found: Differences, method: MethodKey) -> list[float]:
    return [each.length / found.table.cell.trained_length for each in _of(found, method)]


def _values(found: Differences, method: MethodKey) -> list[float]:
    return [each.difference or 0.0 for each in _of(found, method)]


def draw_panel(
    axes: Axes, table: Table, methods: Sequence[MethodKey], known: Mapping[MethodKey, Look], scale: ValueScale
) -> None:
    """Methods with their looks, all others in grey."""
    value_axis.draw_value_axis(axes, scale)
    if table.better < 0:
        axes.invert_yaxis()
    _length_axis(axes, table)
    mark_trained_length(axes, 1.0, low=_has_room_below(axes, table))
    others = [table.of(method) for method in table.methods if method not in methods]
    draw_background_curves(
        axes, [[(each.multiple, each.value) for each in records if each.value is not None] for records in others]
    )
    _draw_floor(axes, table)
    for place, method in enumerate(methods):
        _line(axes, table, method, known[method], (place, len(methods)), scale)


def _has_room_below(axes: Axes, table: Table) -> bool:
    """Whether there is more room below the intervals at the trained length than above them, for its name."""
    here = [record for record in table.entries.values() if record.multiple == 1]
    ends = [end for record in here for end in (record.low, record.value, record.high) if end is not None]
    if not ends:
        return table.better > 0
    heights = (axes.transData - axes.transAxes).transform([(1.0, end) for end in ends])[:, 1]
    return bool(min(heights) > 1 - max(heights))


def distinguished_methods(table: Table) -> list[MethodKey]:
    """Methods with a look in a figure of one panel: all where they are few.

    Else the baseline, the reader's own and the best past the trained length; by name, where no side is better.
    """
    order = looks.order_methods(table.methods, table.highlight)

    def worth(method: MethodKey) -> tuple[int, float]:
        past = [record.value for record in table.of(method) if record.multiple > 1 and record.value is not None]
        mean = math.fsum(past) / len(past) if past else 0.0
        return -len(past), -table.better * mean

    kept = looks.order_methods(sorted(order, key=worth), table.highlight)[: looks.MAX_PANEL_LINES]
    return [method for method in order if method in kept]


def labelled_lengths(lengths: Sequence[int], trained_length: int) -> list[int]:
    """The lengths that have room for a label on a log axis; the trained length always, if it is one of them."""
    gap = (LENGTH_AXIS_MARGIN_FACTOR**2 * lengths[-1] / lengths[0]) ** 0.1
    # A label takes a tenth of the logarithmic axis, so of two neighbours one is `gap` times the other at least.
    kept: list[int] = []
    for length in lengths:
        if length == trained_length:
            kept = [other for other in kept if length / other >= gap]
        if not kept or length / kept[-1] >= gap:
            kept.append(length)
    return kept


def _length_axis(axes: Axes, table: Table) -> None:
    trained = table.cell.trained_length
    axes.set_xscale("log", base=2)
    kept = labelled_lengths(table.lengths, trained)
    axes.set_xticks(
        [length / trained for length in kept], [f"{format_ratio(length / trained)}\n{length}" for length in kept]
    )
    axes.xaxis.set_minor_locator(mpl.ticker.NullLocator())
    axes.set_xlim(
        min(table.lengths[0] / trained, 1.0) / LENGTH_AXIS_MARGIN_FACTOR,
        max(table.lengths[-1] / trained, 1.0) * LENGTH_AXIS_MARGIN_FACTOR,
    )


def floor_of(table: Table, method: MethodKey, length: int) -> float | None:
    """Value that needs no model at this cell: score of guessing, or loss of counting tokens; None: not known."""
    record = table.entries.get((method, length))
    return None if record is None else record.floor


def floor_name(table: Table) -> str:
    """Name of the floor: chance, or the best of the models that only count tokens."""
    known = (record.floor_of for record in table.entries.values())
    return next((f"{name} floor" if name != "chance" else name for name in known if name), "chance")


def visible_floors(table: Table) -> dict[int, float]:
    """The floor at each length where it is known and can be seen."""
    known = {
        length: [level for row in table.methods if (level := floor_of(table, row, length)) is not None]
        for length in table.lengths
    }
    found = {length: levels[0] for length, levels in known.items() if levels}
    return found if max(found.values(), default=0.0) >= MIN_DRAWN_FLOOR else {}


def _draw_floor(axes: Axes, table: Table) -> None:
    """A dotted line at the floor; it does not stretch the axis."""
    levels = visible_floors(table)
    if len(levels) == 1 or len(set(levels.values())) == 1:
        axes.axhline(next(iter(levels.values())), zorder=1, **FLOOR_LINE)
    elif levels:
        multiples = [length / table.cell.trained_length for length in levels]
        axes.plot(multiples, list(levels.values()), zorder=1, **FLOOR_LINE)


def _line(axes: Axes, table: Table, method: MethodKey, look: Look, among: tuple[int, int], scale: ValueScale) -> None:
    """A method: line, bars, arrows where it leaves the axis, crosses above the frame where it is refused."""
    place, count = among
    records = table.of(method)
    multiples = [record.multiple for record in records]
    values, low, high = (
        np.array([getattr(record, name) for record in records], np.float64) for name in ("value", "low", "high")
    )  # None becomes NaN, where a line breaks
    moved = _shift_sideways(axes, (place - (count - 1) / 2) * _line_offset_points(table, count))
    axes.plot(multiples, values, transform=moved, **line_style(look))
    axes.vlines(multiples, low, high, color=look.colour, linewidth=1.0, zorder=2, transform=moved)
    aside = (place - (count - 1) / 2) * EDGE_MARK_SPREAD_POINTS / max(6, count)
    beyond = [record.multiple for record in records if scale.is_above_axis(record.value)]
    refused = [record.multiple for record in records if record.refused]
    height, arrow = (0.03, DOWN_ARROW) if table.better < 0 else (0.97, OFF_AXIS_ARROW)
    _draw_edge_marks(axes, beyond, height, {**arrow, "color": look.colour}, aside)
    _draw_edge_marks(axes, refused, 1.03, {"marker": "x", "markersize": 5, "color": look.colour}, aside)


def _line_offset_points(table: Table, count: int) -> float:
    """Points from a method's line to the next one's: less where lengths lie close."""
    octaves = np.log2(table.lengths)
    if len(octaves) < 2:
        return LINE_OFFSET_POINTS
    # Points between the two closest lengths, on axes some 300 points wide.
    closest = 300 * float(np.diff(octaves).min()) / max(1.0, float(octaves[-1] - octaves[0]))
    return min(LINE_OFFSET_POINTS, 0.3 * closest / count)


def _shift_sideways(axes: Axes, aside: float) -> Transform:
    """Move data points sideways, by so many points."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    return axes.transData + ScaledTranslation(aside / 72, 0, figure.dpi_scale_trans)


def _draw_edge_marks(axes: Axes, x: Sequence[float], height: float, look: Mapping[str, Any], aside: float) -> None:
    """Marks at a height of the axes (0 to 1), moved aside by so many points."""
    if not x:
        return
    where = blended_transform_factory(_shift_sideways(axes, aside), axes.transAxes)
    style: dict[str, Any] = {"linestyle": "none", **look}
    [marks] = axes.plot(x, [height] * len(x), transform=where, zorder=6, clip_on=False, **style)
    marks.set_in_layout(False)  # above the frame on purpose: the layout must not shrink the axes for them


def _legend(
    axes: Axes, table: Table, methods: Sequence[MethodKey], known: Mapping[MethodKey, Look], scale: ValueScale
) -> None:
    bars = any(record.low is not None for method in methods for record in table.of(method))
    draw_legend(axes, handles_of(table, methods, known, scale), "bars" if bars else "")


def handles_of(
    table: Table, methods: Sequence[MethodKey], known: Mapping[MethodKey, Look], scale: ValueScale
) -> list[Line2D]:
    """Handles of a legend: the methods, and the marks that the figure uses."""
    handles = [Line2D([], [], label=looks.name_of(name), **line_style(known[name])) for name in methods]
    records = [record for method in methods for record in table.of(method)]
    if any(scale.is_above_axis(record.value) for record in records):
        arrow = DOWN_ARROW if table.better < 0 else OFF_AXIS_ARROW
        handles.append(Line2D([], [], label="leaves the axis", color="0.4", **arrow))
    if any(record.refused for record in records):
        handles.append(Line2D([], [], label="refused", marker="x", color="0.4", linestyle="none", markersize=5))
    levels = list(visible_floors(table).values())
    if below := [level for level in levels if scale.is_below_axis(level)]:
        handles.append(Line2D([], [], label=f"{floor_name(table)} {min(below):.3g}, below", linestyle="none"))
    elif any(not scale.is_above_axis(level) for level in levels):
        handles.append(Line2D([], [], label=floor_name(table), **FLOOR_LINE))
    return handles
