"""Quality against cost: value at one length over seconds per token, and the Pareto front of methods.

A method is on the Pareto front where no other is both as fast and as good, and better in one of the two (as measured,
intervals left aside). Methods at their floor (`stats.floors`: the interval reaches the score of guessing, or the loss
of counting) are never on it: being fast at nothing is no trade. Seconds are shown only of cells that were timed twice
or more, answer by answer, with their interval; they hold whatever else the machine did, so they compare methods of one
run.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.ticker
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lexbench.core.method_key import MethodKey
from lexbench.report import looks
from lexbench.report.looks import Look
from lexbench.report.plots import value_axis
from lexbench.report.plots.over_length import FLOOR_LINE, MIN_DRAWN_FLOOR, distinguished_methods, floor_name, floor_of
from lexbench.report.plots.style import (
    MATPLOTLIB_STYLE,
    OFF_AXIS_ARROW,
    draw_legend,
    draw_title,
    fitting_characters,
    marker_style,
    save_figure,
    save_numbers,
    wrap_name,
)
from lexbench.report.plots.value_axis import ValueScale
from lexbench.report.titles import title_of
from lexbench.report.wording import direction_phrase, metric_label
from lexbench.stats.costs import Cost, qualities_at_cost
from lexbench.stats.floors import at_floor
from lexbench.stats.metrics import facts_of
from lexbench.stats.tables import Table

TIMING_NOTE = "answers timed one by one; comparable within one run on one machine only"
MIN_LOGARITHMIC_RATIO = 5.0
"""Ratio of slowest to fastest from which the axis is logarithmic."""
OTHER_METHODS_MARK: dict[str, Any] = {"color": "0.6", "marker": "o", "markersize": 4, "linestyle": "none"}
PARETO_FRONT_LINE: dict[str, Any] = {"color": "0.25", "linewidth": 1.0, "linestyle": "--"}
PARETO_FRONT_RING: dict[str, Any] = {**PARETO_FRONT_LINE, "marker": "o", "markersize": 12, "markerfacecolor": "none"}


@dataclass(frozen=True)
class CostPoint:
    """A method at the length of the figure."""

    method: MethodKey
    seconds: float
    """Seconds per token of the cell's texts, new tokens counted."""
    fast: float
    """Lower end of the interval of `seconds`."""
    slow: float
    """Upper end."""
    value: float
    low: float | None
    high: float | None
    floor: float | None
    """Value of guessing, or of counting tokens, at this length."""
    front: bool = False
    """Whether it is on the Pareto front: no other method is as fast and as good, and better in one of the two."""


def plot_costs(
    table: Table, costs: Mapping[str, Cost], stem: Path, length: int | None = None, png: bool = True
) -> bool:
    """Draw the figure as stem.svg and stem.png (unless it is not wanted), its numbers as stem.csv.

    False, and none, where `why_no_figure` has a reason. `costs` are those of each cell id. length: None: the longest of
    those at which most methods have a value and timings.
    """
    length = shared_length(table, costs) if length is None else length
    if length is None or why_no_figure(table, costs, length):
        return False
    points = points_at(table, costs, length)
    with mpl.rc_context(MATPLOTLIB_STYLE):
        save_figure(_figure(table, points, length), stem, png)
    names = ("method", "length", "seconds_per_token", "fast", "slow", "value", "low", "high", "floor", "front")
    save_numbers(stem, names, _number_rows(points, length))
    return True


def why_no_figure(table: Table, costs: Mapping[str, Cost], length: int | None = None) -> str:
    """Why there is no figure; nothing where there is one."""
    if not table.better:
        return "neither side of this metric is better"
    length = shared_length(table, costs) if length is None else length
    if length is not None and len(points_at(table, costs, length)) > 1:
        return ""
    once = any(price.cost.rate is None for price in qualities_at_cost(table, costs))
    return (
        "cells were timed once: a comparison needs two timings of a cell"
        if once
        else "fewer than two methods have a cost"
    )


def shared_length(table: Table, costs: Mapping[str, Cost]) -> int | None:
    """The longest of the lengths at which most methods have value and timings; None where none has."""
    counts = {length: len(points_at(table, costs, length)) for length in table.lengths}
    known = [length for length in counts if counts[length]]
    return max(known, key=lambda length: (counts[length], length), default=None)


def points_at(table: Table, costs: Mapping[str, Cost], length: int) -> list[CostPoint]:
    """Methods that have value and repeated timings at a length, in the table's order."""
    found = []
    for each in qualities_at_cost(table, costs):
        if each.length == length and (rate := each.cost.rate) is not None:
            ends = (rate.interval.low, rate.interval.high, each.value, each.low, each.high)
            found.append(CostPoint(each.method, rate.value, *ends, floor_of(table, each.method, length)))
    able = [point for point in found if not at_floor(table.entries[point.method, length])]
    best = pareto_front([(point.seconds, -table.better * point.value) for point in able])
    on = {point.method for point, is_best in zip(able, best, strict=True) if is_best}
    return [replace(point, front=point.method in on) for point in found]


def pareto_front(costs: Sequence[tuple[float, float]]) -> list[bool]:
    """Pareto front of pairs in which less is better."""
    return [not any(one <= a and two <= b and (one, two) != (a, b) for one, two in costs) for a, b in costs]


def _figure(table: Table, points: Sequence[CostPoint], length: int) -> Figure:
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.add_subplot()
    scale = _scale(table, points)
    value_axis.draw_value_axis(axes, scale)
    axes.set_ylabel(
        wrap_name(
            metric_label(table.metric, table.cell.task_name) + direction_phrase(table.metric),
            fitting_characters(3.4, 9.0),
        )
    )
    _time_axis(axes, points)
    known = looks.looks_of_methods(table.methods, table.highlight)
    shown = distinguished_methods(table)
    by_method = {point.method: point for point in points}
    handles = [_point(axes, by_method[name], scale, known[name]) for name in shown if name in by_method]
    others = [point for point in points if point.method not in shown]
    numbered = [point for point in others if point.front]
    for point in others:
        _point(axes, point, scale, None)
    for number, point in enumerate(numbered, 1):
        at = 1e3 * point.seconds, min(point.value, scale.value(scale.top))
        axes.annotate(str(number), at, (5, 4), textcoords="offset points", fontsize=7.5, color="0.2", zorder=6)
        handles.append(Line2D([], [], label=f"{number}: {point.method}", **OTHER_METHODS_MARK))
    if rest := len(others) - len(numbered):
        handles.append(Line2D([], [], label=f"{rest} others", **OTHER_METHODS_MARK))
    if any(point.front for point in points):
        _draw_front(axes, [point for point in points if point.front], scale)
        handles.append(Line2D([], [], label="Pareto front", **PARETO_FRONT_RING))
    levels = {point.floor for point in points if point.floor is not None and point.floor >= MIN_DRAWN_FLOOR}
    floors = [floor for floor in levels if not scale.is_above_axis(floor) and not scale.is_below_axis(floor)]
    if below := [floor for floor in levels if scale.is_below_axis(floor)]:
        handles.append(Line2D([], [], label=f"{floor_name(table)} {min(below):.3g}, below", linestyle="none"))
    for floor in floors:
        axes.axhline(floor, zorder=1, **FLOOR_LINE)
    if floors:
        handles.append(Line2D([], [], label=floor_name(table), **FLOOR_LINE))
    if any(scale.is_above_axis(point.value) for point in points):
        handles.append(Line2D([], [], label="leaves the axis", color="0.4", **OFF_AXIS_ARROW))
    if refused := sum(record.refused is not None for record in table.at(length)):
        handles.append(Line2D([], [], label=f"refused: {refused}", linestyle="none"))
    draw_legend(axes, handles, "bars")
    draw_title(axes, f"{title_of(table)}\nquality against time, at {length:,} tokens")
    return figure


def _scale(table: Table, points: Sequence[CostPoint]) -> ValueScale:
    ends = {point.method: [(point.value, point.low, point.high)] for point in points}
    if not table.scored and table.better > 0:
        return value_axis.full_scale(ends)
    return value_axis.scale_of(ends, table.scored, facts_of(table.metric).logarithmic)


def _time_axis(axes: Axes, points: Sequence[CostPoint]) -> None:
    """Set up the x axis, in milliseconds."""
    low, high = 1e3 * min(point.fast for point in points), 1e3 * max(point.slow for point in points)
    means = [point.seconds for point in points]
    logarithmic = low > 0 and max(means) / min(means) >= MIN_LOGARITHMIC_RATIO
    if logarithmic:
        axes.set_xscale("log")
        steps = (1.0, 2.0, 5.0) if high / low < 1e3 else (1.0,)
        axes.xaxis.set_major_locator(mpl.ticker.LogLocator(subs=steps, numticks=20))
        axes.xaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(mpl.ticker.NullLocator())
        room = (high / low) ** 0.06
        axes.set_xlim(low / room, high * room)
    else:
        room = 0.06 * (high - low) or 0.1 * high
        axes.set_xlim(low - room, high + room)
    axes.set_xlabel(f"milliseconds per token{' (logarithmic)' if logarithmic else ''}\n{TIMING_NOTE}")


def _point(axes: Axes, point: CostPoint, scale: ValueScale, look: Look | None) -> Line2D:
    """A mark with its intervals, an arrow where it leaves the axis; the same for the legend."""
    x = 1e3 * point.seconds
    style = OTHER_METHODS_MARK if look is None else marker_style(look)
    inked = "0.85" if look is None else look.colour
    order = 2 if look is None else style["zorder"]
    bars: dict[str, Any] = {"color": inked, "alpha": 0.7, "linewidth": 0.9, "zorder": order - 0.5}  # under its own mark
    if scale.is_above_axis(point.value):
        axes.plot(
            x, 0.97, **{**OFF_AXIS_ARROW, "color": style["color"]}, transform=axes.get_xaxis_transform(), zorder=order
        )
    else:
        if point.low is not None and point.high is not None:
            axes.vlines(x, point.low, point.high, **bars)
        axes.hlines(point.value, 1e3 * point.fast, 1e3 * point.slow, **bars)
        axes.plot(x, point.value, **{**style, "zorder": order})
    return Line2D([], [], label=looks.name_of(point.method), **style)


def _draw_front(axes: Axes, points: Sequence[CostPoint], scale: ValueScale) -> None:
    """Rings, and the steps that no method is beyond."""
    found = sorted(points, key=lambda point: point.seconds)
    x = np.array([1e3 * point.seconds for point in found])
    y = np.array([point.value for point in found])
    seen = [not scale.is_above_axis(value) for value in y]
    axes.plot(x[seen], y[seen], zorder=3, **{**PARETO_FRONT_RING, "linestyle": "none"})
    ends = np.append(x, axes.get_xlim()[1])  # on to the right edge: with more time the best so far stays
    axes.plot(ends, np.append(y, y[-1]), drawstyle="steps-post", zorder=1, **PARETO_FRONT_LINE)


def _number_rows(points: Sequence[CostPoint], length: int) -> Iterator[list[object]]:
    """The fastest first."""
    for each in sorted(points, key=lambda point: (point.seconds, point.method)):
        ends = [each.seconds, each.fast, each.slow, each.value, each.low, each.high, each.floor]
        yield [each.method, length, *ends, each.front]
