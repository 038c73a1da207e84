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

from lexbench.core.method_key import MethodKey
from lexbench.report import looks
from lexbench.report.looks import Look
from lexbench.report.plots import value_axis
from lexbench.report.plots.over_length import FLOOR_LINE, floor_name, visible_floors
from lexbench.report.plots.style import (
    MATPLOTLIB_STYLE,
    band_opacity,
    draw_background_curves,
    draw_legend,
    line_style,
    mark_trained_length,
    panels_for,
    save_figure,
    save_numbers,
)
from lexbench.report.plots.value_axis import ValueScale
from lexbench.report.titles import title_of
from lexbench.report.wording import direction_phrase, metric_label
from lexbench.stats.positions import MIN_BIN_POSITIONS, PositionCurve
from lexbench.stats.tables import Table

POSITION_AXIS_LABEL = "position in the window: multiple of the trained length, tokens before the target"
MAX_POSITION_TICKS = 9
"""Labels of the position axis, at most."""
BINS_PER_MARKER = 4
"""Bins from a marker of a line to its next one, which tells lines apart without colour."""
COLLAPSE_RING: dict[str, Any] = {"marker": "o", "linestyle": "none", "markersize": 11, "markerfacecolor": "none"}
"""Around the bin in which a method collapses."""


def plot_by_position(table: Table, curves: Sequence[PositionCurve], stem: Path, png: bool = True) -> None:
    """Draw the figure as stem.svg and stem.png (unless it is not wanted), a panel a family where they are many.

    All lengths' numbers as stem.csv.
    """
    length = curves[-1].length
    found = {curve.method: curve for curve in curves if curve.length == length}
    with mpl.rc_context(MATPLOTLIB_STYLE):
        save_figure(_figure(table, found, length), stem, png)
    save_numbers(stem, ("method", "length", "begin", "end", "targets", "value", "low", "high"), _number_rows(curves))


def _figure(table: Table, found: Mapping[MethodKey, PositionCurve], length: int) -> Figure:
    known = looks.looks_of_methods(table.methods, table.highlight)
    shown = looks.family_panels([method for method in table.methods if method in found], table.highlight)
    most = max(curve.clusters for curve in found.values())
    clusters = f"{most} cluster{'s' if most > 1 else ''}"
    heading = f"{title_of(table)}\nby position inside texts of {length:,} tokens, {clusters}"
    value = (
        "accuracy of marks" if table.scored else metric_label(table.metric, table.cell.task_name)
    ) + direction_phrase(table.metric)
    figure, panels = panels_for(shown, heading, POSITION_AXIS_LABEL, value)
    scale = _scale(table, found)
    for axes, (_, methods) in zip(panels, shown, strict=True):
        _axes(axes, table, scale, length)
        others = [curve for method, curve in found.items() if method not in methods]
        draw_background_curves(axes, [np.column_stack([_bin_centres(curve), _values(curve)]) for curve in others])
        for place, method in enumerate(methods):
            _line(axes, found[method], known[method], (place, len(methods)))
        _legend(axes, table, {name: known[name] for name in methods}, found)
    return figure


def _scale(table: Table, found: Mapping[MethodKey, PositionCurve]) -> ValueScale:
    ends = {
        name: [
            (each.value, _finite_or_none(each.low), _finite_or_none(each.high))
            for each in curve.values
            if not math.isnan(each.value)
        ]
        for name, curve in found.items()
    }
    return value_axis.scale_of(ends, table.scored, logarithmic=False)


def _finite_or_none(end: float) -> float | None:
    return None if math.isnan(end) else end


def _bin_centres(curve: PositionCurve) -> np.ndarray:
    """Centres of the bins on the logarithmic axis; the first bin begins at 0 and is centred in tokens."""
    return np.concatenate([curve.edges[1:2] / 2, np.sqrt(curve.edges[1:-1] * curve.edges[2:])])


def _values(curve: PositionCurve, name: str = "value") -> np.ndarray:
    return np.array([getattr(each, name) for each in curve.values])


def _axes(axes: Axes, table: Table, scale: ValueScale, length: int) -> None:
    trained = table.cell.trained_length
    value_axis.draw_value_axis(axes, scale)
    axes.set_xscale("log", base=2)
    axes.set_xlim(min(MIN_BIN_POSITIONS / 2.5, length / 2), length)
    octaves = range(math.ceil(math.log2(MIN_BIN_POSITIONS / 2 / trained)), math.floor(math.log2(length / trained)) + 1)
    ticks = [2.0**octave for octave in octaves if octave % math.ceil(len(octaves) / MAX_POSITION_TICKS) == 0]
    axes.set_xticks([tick * trained for tick in ticks], [f"{Fraction(tick)}x\n{tick * trained:.0f}" for tick in ticks])
    axes.xaxis.set_minor_locator(mpl.ticker.NullLocator())
    if trained < length:
        mark_trained_length(axes, trained, low=table.scored)
    if length in (levels := visible_floors(table)):
        axes.axhline(levels[length], zorder=1, **FLOOR_LINE)


def _line(axes: Axes, curve: PositionCurve, look: Look, among: tuple[int, int]) -> None:
    """A method: line, band, and a ring where it collapses."""
    place, count = among
    low, high = _values(curve, "low"), _values(curve, "high")
    axes.plot(
        _bin_centres(curve), _values(curve), **_marker_looks(look), markevery=(place % BINS_PER_MARKER, BINS_PER_MARKER)
    )
    axes.fill_between(
        _bin_centres(curve), low, high, color=look.colour, alpha=band_opacity(count), linewidth=0, zorder=2
    )
    if curve.collapse is not None and math.isfinite(curve.collapse.value):
        bin = int(np.flatnonzero(curve.edges == curve.collapse.value)[0])
        axes.plot(_bin_centres(curve)[bin], curve.values[bin].value, zorder=6, color=look.colour, **COLLAPSE_RING)


def _marker_looks(look: Look) -> dict[str, Any]:
    return line_style(look, size=4.0, width=1.2)


def _legend(
    axes: Axes, table: Table, known: Mapping[MethodKey, Look], found: Mapping[MethodKey, PositionCurve]
) -> None:
    handles = [Line2D([], [], label=looks.name_of(name), **_marker_looks(look)) for name, look in known.items()]
    curves = [found[name] for name in known]
    if any(curve.collapse is not None and math.isfinite(curve.collapse.value) for curve in curves):
        handles.append(Line2D([], [], label="collapses here", color="0.4", **COLLAPSE_RING))
    if curves[-1].length in visible_floors(table):
        handles.append(Line2D([], [], label=floor_name(table), **FLOOR_LINE))
    draw_legend(axes, handles, "band" if any(curve.clusters > 1 for curve in curves) else "")


def _number_rows(curves: Sequence[PositionCurve]) -> Iterator[list[object]]:
    """A line a bin that has targets."""
    for curve in curves:
        for begin, end, targets, each in zip(curve.edges, curve.edges[1:], curve.targets, curve.values, strict=False):
            if targets:
                ends = [None if math.isnan(each.low) else each.low, None if math.isnan(each.high) else each.high]
                yield [curve.method, curve.length, int(begin), int(end), int(targets), each.value, *ends]
