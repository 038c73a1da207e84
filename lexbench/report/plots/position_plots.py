"""NLL or accuracy over the position in the window: a line and a band per method, at the longest length."""

import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.ticker
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lexbench.report.plots.over_length import CHANCE, SEEN, told_apart
from lexbench.report.plots.style import (
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
from lexbench.stats.positions import WIDTH, PositionCurve
from lexbench.stats.tables import Table, at_length, chances

TICKS = 9
"""Labels of the position axis, at most."""
EVERY = 4
"""Bins from a marker of a line to its next one, which tells lines apart without colour."""
RING: dict[str, Any] = {"marker": "o", "linestyle": "none", "markersize": 11, "markerfacecolor": "none"}
"""Around the bin in which a method collapses."""


def plot(table: Table, curves: Sequence[PositionCurve], stem: Path) -> None:
    """The figure as stem.svg and stem.png; the numbers of all lengths as stem.csv."""
    length = curves[-1].length
    found = {curve.method: curve for curve in curves if curve.length == length}
    places = {method: place for place, method in enumerate(told_apart(table)) if method in found}
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 4.0), layout="constrained")
        axes = figure.add_subplot()
        _axes(axes, table, list(found.values()), length)
        for method, curve in found.items():
            if method in places:
                _line(axes, curve, places[method], len(places))
            else:
                axes.plot(_middles(curve), _values(curve), color="0.8", linewidth=0.8, zorder=1)
        differs = f"\n{table.differs}" if table.differs else ""
        most = max(curve.clusters for curve in found.values())
        clusters = f"{most} cluster{'s' if most > 1 else ''}"
        _legend(axes, table, places, list(found.values()))
        title(axes, f"{table.cell.task} on {table.cell.model} at {at_length(table, length)}, {clusters}{differs}")
        save(figure, stem)
    save_numbers(stem, ("method", "length", "begin", "end", "targets", "value", "low", "high"), _lines(curves))


def _middles(curve: PositionCurve) -> np.ndarray:
    """Centres of the bins on the logarithmic axis; the first bin begins at 0 and is centred in tokens."""
    return np.concatenate([curve.edges[1:2] / 2, np.sqrt(curve.edges[1:-1] * curve.edges[2:])])


def _values(curve: PositionCurve, name: str = "value") -> np.ndarray:
    return np.array([getattr(each, name) for each in curve.values])


def _axes(axes: Axes, table: Table, curves: Sequence[PositionCurve], length: int) -> None:
    trained = table.cell.trained_length
    sides = "accuracy of marks, higher is better" if table.scored else f"{table.label}, lower is better"
    axes.set_ylabel(sides)
    if table.scored:
        axes.set_ylim(-0.04, 1.04)
    else:
        worst = [float(np.nanmax(_values(curve))) for curve in curves]
        ends = np.concatenate([_values(curve, name) for curve in curves for name in ("value", "low", "high")])
        axes.set_ylim(*value_limits(worst, float(np.nanmin(ends)), float(np.nanmax(ends))))
    axes.set_xscale("log", base=2)
    axes.set_xlim(min(WIDTH / 2.5, length / 2), length)
    octaves = range(math.ceil(math.log2(WIDTH / 2 / trained)), math.floor(math.log2(length / trained)) + 1)
    ticks = [2.0**octave for octave in octaves if octave % math.ceil(len(octaves) / TICKS) == 0]
    axes.set_xticks([tick * trained for tick in ticks], [f"{Fraction(tick)}x\n{tick * trained:.0f}" for tick in ticks])
    axes.xaxis.set_minor_locator(mpl.ticker.NullLocator())
    axes.set_xlabel("position in the window: multiple of the trained length, tokens before the target")
    if trained < length:
        mark_trained_length(axes, trained, low=table.scored)
    if (chance := chances(table).get(length, 0.0)) >= SEEN:
        axes.axhline(chance, zorder=1, **CHANCE)


def _line(axes: Axes, curve: PositionCurve, place: int, count: int) -> None:
    """A method: line, band, and a ring where it collapses."""
    low, high = _values(curve, "low"), _values(curve, "high")
    axes.plot(_middles(curve), _values(curve), zorder=3, **_looks(place), markevery=(place % EVERY, EVERY))
    axes.fill_between(_middles(curve), low, high, color=colour(place), alpha=band(count), linewidth=0, zorder=2)
    if curve.collapse is not None and math.isfinite(curve.collapse.value):
        bin = int(np.flatnonzero(curve.edges == curve.collapse.value)[0])
        axes.plot(_middles(curve)[bin], curve.values[bin].value, zorder=4, color=colour(place), **RING)


def _looks(place: int) -> dict[str, Any]:
    return {**looks(place), "linewidth": 1.2, "markersize": 4}


def _legend(axes: Axes, table: Table, places: Mapping[str, int], curves: Sequence[PositionCurve]) -> None:
    handles = [Line2D([], [], label=name, **_looks(place)) for name, place in places.items()]
    if others := len(curves) - len(places):
        handles.append(Line2D([], [], label=f"{others} others", color="0.8", linewidth=0.8))
    if any(curve.collapse is not None and math.isfinite(curve.collapse.value) for curve in curves):
        handles.append(Line2D([], [], label="collapses here", color="0.4", **RING))
    if chances(table).get(curves[-1].length, 0.0) >= SEEN:
        handles.append(Line2D([], [], label="chance", **CHANCE))
    legend(axes, handles, band=any(curve.clusters > 1 for curve in curves))


def _lines(curves: Sequence[PositionCurve]) -> Iterator[list[object]]:
    """A line a bin that has targets."""
    for curve in curves:
        for begin, end, targets, each in zip(curve.edges, curve.edges[1:], curve.targets, curve.values, strict=False):
            if targets:
                ends = [None if math.isnan(each.low) else each.low, None if math.isnan(each.high) else each.high]
                yield [curve.method, curve.length, int(begin), int(end), int(targets), each.value, *ends]
