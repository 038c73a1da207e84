"""Quality against cost: value at one length over seconds per token, and the Pareto front of methods.

A method is on the Pareto front where no other is both as fast and as good, and better in one of the two (as measured,
intervals left aside). Seconds are one timing a cell, of whatever else the machine did: they compare methods of one run.
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

from lexbench.report.plots.over_length import told_apart
from lexbench.report.plots.style import (
    STYLE,
    characters,
    colour,
    legend,
    looks,
    said,
    save,
    save_numbers,
    title,
    value_limits,
)
from lexbench.stats.costs import Cost, prices
from lexbench.stats.tables import Table, at_length

NOTE = "one timing a cell, comparable within one run on one machine only"
LOGARITHMIC = 5.0
"""Ratio of slowest to fastest from which the axis is logarithmic."""
GREY: dict[str, Any] = {"color": "0.6", "marker": "o", "markersize": 4, "linestyle": "none"}
FRONT: dict[str, Any] = {"color": "0.25", "linewidth": 1.0, "linestyle": "--"}
RING: dict[str, Any] = {**FRONT, "marker": "o", "markersize": 10, "markerfacecolor": "none"}


@dataclass(frozen=True)
class Point:
    """A method at the length of the figure."""

    method: str
    seconds: float
    """Per token of the cell's texts, prompt and room."""
    value: float
    low: float | None
    high: float | None
    front: bool = False
    """On the Pareto front: no other method is as fast and as good, and better in one of the two."""


def plot(table: Table, costs: Mapping[str, Cost], stem: Path, length: int | None = None) -> bool:
    """The figure as stem.svg and stem.png, its numbers as stem.csv.

    False, and none, where fewer than two methods have value and cost, or neither side of the metric is better. `costs`
    are those of each cell id. length: None: the longest of those at which most methods have a value.
    """
    length = shared_length(table, costs) if length is None else length
    points = points_at(table, costs, length) if length is not None and table.better else []
    if length is None or len(points) < 2:
        return False
    with mpl.rc_context(STYLE):
        save(_figure(table, points, length), stem)
    names = ("method", "length", "seconds_per_token", "value", "low", "high", "front")
    save_numbers(stem, names, _lines(points, length))
    return True


def shared_length(table: Table, costs: Mapping[str, Cost]) -> int | None:
    """The longest of the lengths at which most methods have value and cost; None where none has."""
    counts = {length: len(points_at(table, costs, length)) for length in table.lengths}
    known = [length for length in counts if counts[length]]
    return max(known, key=lambda length: (counts[length], length), default=None)


def points_at(table: Table, costs: Mapping[str, Cost], length: int) -> list[Point]:
    """Methods that have value and cost at a length, in the table's order."""
    found = [
        Point(each.method, each.cost.seconds / each.cost.tokens, each.value, each.low, each.high)
        for each in prices(table, costs)
        if each.length == length and each.cost.seconds > 0
    ]
    best = front([(point.seconds, -table.better * point.value) for point in found])
    return [replace(point, front=on) for point, on in zip(found, best, strict=True)]


def front(costs: Sequence[tuple[float, float]]) -> list[bool]:
    """Pareto front of pairs in which less is better."""
    return [not any(one <= a and two <= b and (one, two) != (a, b) for one, two in costs) for a, b in costs]


def _figure(table: Table, points: Sequence[Point], length: int) -> Figure:
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.add_subplot()
    top = _value_axis(axes, table, points)
    _time_axis(axes, points)
    shown = told_apart(table)
    handles = [_point(axes, point, top, shown.index(point.method)) for point in points if point.method in shown]
    others = [point for point in points if point.method not in shown]
    numbered = [point for point in others if point.front]
    for point in others:
        _point(axes, point, top, None)
    for number, point in enumerate(numbered, 1):
        _number(axes, 1e3 * point.seconds, min(point.value, top), str(number))
        handles.append(Line2D([], [], label=f"{number}: {point.method}", **GREY))
    if rest := len(others) - len(numbered):
        handles.append(Line2D([], [], label=f"{rest} others", **GREY))
    _front(axes, [point for point in points if point.front], top)
    handles.append(Line2D([], [], label="Pareto front", **RING))
    if any(point.value > top for point in points):
        handles.append(Line2D([], [], label="above the axis", marker="^", color="0.4", linestyle="none", markersize=5))
    if refused := sum(record.refused is not None for record in table.at(length)):
        handles.append(Line2D([], [], label=f"refused: {refused}", linestyle="none"))
    legend(axes, handles, band=False)
    if any(point.low is not None for point in points):
        axes.get_legend().set_title("method (bar: 95 %)")  # type: ignore[union-attr]
    differs = f"\n{table.differs}" if table.differs else ""
    title(axes, f"{table.cell.task} on {table.cell.model} at {at_length(table, length)}{differs}")
    return figure


def _value_axis(axes: Axes, table: Table, points: Sequence[Point]) -> float:
    """Set up the y axis, and give its upper end."""
    side = "higher is better" if table.better > 0 else "lower is better"
    axes.set_ylabel(said(f"{table.label}, {side}", characters(3.4, 9.0)))
    ends = [end for point in points for end in (point.value, point.low, point.high) if end is not None]
    if table.scored:
        axes.set_ylim(-0.04, 1.04)
    elif table.better < 0:
        axes.set_ylim(*value_limits([point.value for point in points], min(ends), max(ends)))
    else:
        margin = 0.05 * (max(ends) - min(ends)) or 1.0
        axes.set_ylim(min(ends) - margin, max(ends) + margin)
    return float(axes.get_ylim()[1])


def _time_axis(axes: Axes, points: Sequence[Point]) -> None:
    """Set up the x axis, in milliseconds."""
    low, high = (1e3 * end(point.seconds for point in points) for end in (min, max))
    logarithmic = high / low >= LOGARITHMIC
    if logarithmic:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(mpl.ticker.LogLocator(subs=(1.0, 2.0, 5.0), numticks=20))
        axes.xaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(mpl.ticker.NullLocator())
        room = (high / low) ** 0.06
        axes.set_xlim(low / room, high * room)
    else:
        room = 0.06 * (high - low) or 0.1 * high
        axes.set_xlim(low - room, high + room)
    axes.set_xlabel(f"milliseconds per token{' (logarithmic)' if logarithmic else ''}\n{NOTE}")


def _point(axes: Axes, point: Point, top: float, place: int | None) -> Line2D:
    """A mark with its interval, as a triangle at the edge where it lies above; what tells it apart in the legend."""
    x = 1e3 * point.seconds
    look = GREY if place is None else {**looks(place), "linestyle": "none"}
    inked = "0.85" if place is None else colour(place)
    order = 2 if place is None else 4
    if point.value > top:
        height = axes.get_ylim()[0] + 0.985 * (top - axes.get_ylim()[0])
        axes.plot(x, height, **{**look, "marker": "^", "markersize": 5}, zorder=order)
    else:
        if point.low is not None and point.high is not None:
            axes.vlines(x, point.low, point.high, color=inked, alpha=0.7, linewidth=0.9, zorder=order - 1)
        axes.plot(x, point.value, **look, zorder=order)
    return Line2D([], [], label=point.method, **look)


def _number(axes: Axes, x: float, y: float, number: str) -> None:
    axes.annotate(number, (x, y), (5, 4), textcoords="offset points", fontsize=7.5, color="0.2", zorder=6)


def _front(axes: Axes, points: Sequence[Point], top: float) -> None:
    """Rings, and the steps that no method is beyond."""
    found = sorted(points, key=lambda point: point.seconds)
    x = np.array([1e3 * point.seconds for point in found])
    y = np.array([point.value for point in found])
    seen = y <= top
    axes.plot(x[seen], y[seen], zorder=3, **{**RING, "linestyle": "none"})
    ends = np.append(x, axes.get_xlim()[1])
    axes.plot(ends, np.append(y, y[-1]), drawstyle="steps-post", zorder=1, **FRONT)


def _lines(points: Sequence[Point], length: int) -> Iterator[list[object]]:
    """The fastest first."""
    for each in sorted(points, key=lambda point: (point.seconds, point.method)):
        yield [each.method, length, each.seconds, each.value, each.low, each.high, each.front]
