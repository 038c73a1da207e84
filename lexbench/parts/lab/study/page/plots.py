"""Plots: curves by family in small multiples, and attention resolution against the slope of the curve."""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.ticker
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox, BboxBase

from lexbench.core.method_key import BASELINE_METHOD
from lexbench.parts.lab.study.page.curves import Curve, CurvePoint
from lexbench.parts.lab.study.page.shapes import slope_per_doubling
from lexbench.report.plots.over_length import FLOOR_LINE, labelled_lengths
from lexbench.report.plots.style import MATPLOTLIB_STYLE, save_figure, save_numbers, series_style, value_limits
from lexbench.report.wording import metric_label
from lexbench.stats.metrics import better_direction, is_score

PANELS_PER_ROW = 2
"""Panels per row."""
LENGTH_AXIS_MARGIN_FACTOR = 2**0.25
"""Margin of the length axis on both sides, as a factor."""
NAME_SIDES_POINTS = ((5, "left"), (0, "center"), (-5, "right"))
NAME_HEIGHTS_POINTS = ((2, "bottom"), (0, "center"), (-2, "top"), (6, "bottom"), (-6, "top"))
"""Places of a name beside its point: offset in points and alignment, the first choice first."""
TRAINED_LENGTH_LINE: dict[str, Any] = {"color": "0.55", "linewidth": 1.0, "linestyle": (0, (4, 3)), "zorder": 0}


def plot_small_multiples(curves: Sequence[Curve], trained_length: int, stem: Path, title: str | None = None) -> None:
    """Plot curves of one metric and method, one panel per family, with floors, to stem.svg and stem.csv.

    The title is the task and method if none is given. A curve without a value, refused at every length, is in the CSV
    only.
    """
    whole, curves = curves, [curve for curve in curves if any(point.value for point in curve.points)]
    order = list(dict.fromkeys(curve.family for curve in whole))
    families = sorted({curve.family for curve in curves}, key=order.index)
    entries = [[curve.entry for curve in curves if curve.family == family] for family in families]
    same = all(each == entries[0] for each in entries)
    columns = min(PANELS_PER_ROW, len(families))
    rows = -(-len(families) // columns)
    with mpl.rc_context(MATPLOTLIB_STYLE):
        figure = Figure(figsize=(11.5, 0.6 + 3.6 * rows), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flatten()
        limits = _value_limits(curves)
        for panel, family in zip(panels, families, strict=False):
            _draw_panel(panel, [curve for curve in curves if curve.family == family], trained_length, limits)
            panel.set_title(family)
        for panel in panels[len(families) :]:
            panel.set_axis_off()
        for place, panel in enumerate(panels[: len(families)]):
            if not same or place == columns - 1:  # of the same entries one legend says them all
                # Beside the panel, where it covers no curve.
                panel.legend(fontsize=6.5, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), handlelength=2.4)
        side = {1: "higher is better", -1: "lower is better", 0: ""}[better_direction(curves[0].metric)]
        figure.supylabel(f"{metric_label(curves[0].metric)}, {side}", fontsize=9)
        figure.supxlabel("length, in multiples of the trained length", fontsize=9)
        bands = any(len(point.seeds) > 1 for curve in curves for point in curve.points)
        bars = any(point.value and point.value.low is not None for curve in curves for point in curve.points)
        method = "" if curves[0].method == BASELINE_METHOD else f" under {curves[0].method}"
        figure.suptitle(
            (title or f"{curves[0].task}{method}, trained at {trained_length} tokens")
            + ("; bands: range of seeds" if bands else "")
            + ("; bars: 95 % intervals" if bars else ""),
            fontsize=10,
            x=0.01,
            ha="left",
        )
        save_figure(figure, stem)
    save_numbers(stem, NUMBER_FILE_COLUMNS, (_number_row(curve, point) for curve in whole for point in curve.points))


NUMBER_FILE_COLUMNS = ("family", "encoding", "method", "length", "multiple", "value", "low", "high", "seeds", "refused")


def _number_row(curve: Curve, point: CurvePoint) -> list[object]:
    value = point.value
    ends = [value.value, value.low, value.high] if value else [None, None, None]
    return [
        curve.family,
        curve.entry,
        str(curve.method),
        point.length,
        point.multiple,
        *ends,
        len(point.seeds),
        point.refused,
    ]


def _value_limits(curves: Sequence[Curve]) -> tuple[float, float]:
    """Limits of the value axis, with room for the range of seeds; a collapsed curve does not stretch it."""
    values = [
        [each for point in curve.points if point.value for each in (point.value.value, *point.seeds.values())]
        for curve in curves
    ]
    worst = [max(each) for each in values if each]
    if is_score(curves[0].metric) or not worst:
        return -0.04, 1.04
    ends = [value for each in values for value in each]
    low, high = value_limits(worst, min(ends), max(ends))
    # Of curves that explode, 3 nats above the lowest value at least.
    most = max(high, min(max(ends), low + 3.0))
    return low, most + 0.02 * (most - low)  # room for the highest mark


def _draw_panel(panel: Axes, curves: Sequence[Curve], trained_length: int, limits: tuple[float, float]) -> None:
    panel.axvline(1.0, **TRAINED_LENGTH_LINE)
    floors: dict[float, list[float]] = {}
    for point in (point for curve in curves for point in curve.points):
        if point.floor is not None:
            floors.setdefault(point.multiple, []).append(point.floor)
    means = {multiple: math.fsum(each) / len(each) for multiple, each in sorted(floors.items())}
    if means and min(means.values()) < limits[1]:
        panel.plot(
            [*means], [*means.values()], label="a guess" if is_score(curves[0].metric) else "a bigram", **FLOOR_LINE
        )
    for place, curve in enumerate(curves):
        points = [point for point in curve.points if point.value]
        multiples = [point.multiple for point in points]
        found = [point.value for point in points if point.value]
        values = np.array([each.value for each in found], np.float64)
        low, high = (np.array([end(point.seeds.values()) for point in points], np.float64) for end in (min, max))
        style = {**series_style(place), "markersize": 3.5, "linewidth": 1.2}
        panel.plot(multiples, values, label=curve.entry, zorder=3, **style)
        panel.fill_between(multiples, low, high, color=style["color"], alpha=0.2, linewidth=0)
        for multiple, each in zip(multiples, found, strict=True):
            if each.low is not None and each.high is not None:
                ends = [each.low, each.high]
                panel.plot([multiple] * 2, ends, color=style["color"], alpha=0.4, linewidth=0.8, zorder=2)
        # A triangle at the top marks a value above the axis.
        above = [multiple for multiple, value in zip(multiples, values, strict=True) if value > limits[1]]
        # Places along the axis in data, heights in parts of the panel.
        edge = panel.get_xaxis_transform()
        panel.plot(above, [0.985] * len(above), "^", color=style["color"], transform=edge, markersize=4, zorder=4)
    lengths = sorted({point.length for curve in curves for point in curve.points})
    panel.set_xscale("log", base=2)
    kept = labelled_lengths(lengths, trained_length)
    panel.set_xticks(
        [length / trained_length for length in kept], [f"{length / trained_length:.3g}" for length in kept]
    )
    panel.xaxis.set_minor_locator(mpl.ticker.NullLocator())
    # Shared axes would hide the labels of inner panels.
    panel.tick_params(labelbottom=True, labelleft=True)
    panel.set_xlim(
        lengths[0] / trained_length / LENGTH_AXIS_MARGIN_FACTOR,
        lengths[-1] / trained_length * LENGTH_AXIS_MARGIN_FACTOR,
    )
    panel.set_ylim(*limits)


def plot_steepness(curves: Sequence[Curve], multiple: float, task: str, stem: Path) -> list[tuple[str, float, float]]:
    """Plot attention resolution at a multiple against the slope of the task's curve, one point per encoding.

    Returns (encoding, resolution, slope); writes stem.svg and stem.csv if there are at least two points.
    """
    flat = {curve.entry: curve for curve in curves if curve.task == task and curve.method == BASELINE_METHOD}
    known = []
    for curve in curves:
        point = curve.at(multiple)
        other = flat.get(curve.entry)
        steep = slope_per_doubling(other) if other else None
        if (
            curve.metric == "resolution"
            and curve.method == BASELINE_METHOD
            and point
            and point.value
            and steep is not None
        ):
            known.append((curve.entry, curve.family, point.value.value, steep))
    if len(known) < 2:
        return []
    families = list(dict.fromkeys(curve.family for curve in curves))
    with mpl.rc_context(MATPLOTLIB_STYLE):
        figure = Figure(figsize=(10.0, 8.0), layout="constrained")
        axes = figure.add_subplot()
        axes.axhline(0.0, color="0.8", linewidth=0.8, zorder=0)
        for family in dict.fromkeys(family for _, family, _, _ in known):
            own = [each for each in known if each[1] == family]
            style = {**series_style(families.index(family)), "linestyle": "none"}
            axes.plot([each[2] for each in own], [each[3] for each in own], label=family, **style)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(mpl.ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(mpl.ticker.NullFormatter())
        axes.set_xlabel(f"attention resolution at {multiple:g} times the trained length")
        axes.set_ylabel(f"slope of {task}\n(nats per token and doubling)")
        axes.legend(fontsize=7, frameon=False)
        _name_points(axes, [(entry, (x, y)) for entry, _, x, y in known])
        save_figure(figure, stem)
    save_numbers(stem, ("encoding", "family", "resolution", "slope"), known)
    return [(entry, x, y) for entry, _, x, y in known]


def _name_points(axes: Axes, points: Sequence[tuple[str, tuple[float, float]]]) -> None:
    """Write each point's name beside it, where it covers the least of names and marks."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # lays it out: places on it are those of the file
    marks = axes.transData.transform([point for _, point in points])
    reach = 4 * figure.dpi / 72  # half a mark
    taken = [Bbox.from_extents(x - reach, y - reach, x + reach, y + reach) for x, y in marks]
    if (drawn := axes.get_legend()) is not None:
        taken.append(drawn.get_window_extent())
    for name, point in points:
        best: tuple[float, Annotation] | None = None
        for (dx, side), (dy, foot) in itertools.product(NAME_SIDES_POINTS, NAME_HEIGHTS_POINTS):
            written = axes.annotate(
                name, point, (dx, dy), textcoords="offset points", ha=side, va=foot, fontsize=6, color="0.25"
            )
            box = written.get_window_extent()
            covered = sum(_shared_area(box, other) for other in taken)
            covered += box.width * box.height - _shared_area(box, axes.bbox)  # what leaves the axes
            if best is not None and covered >= best[0]:
                written.remove()
                continue
            if best is not None:
                best[1].remove()
            best = covered, written
        assert best is not None
        taken.append(best[1].get_window_extent())


def _shared_area(one: Bbox, other: BboxBase) -> float:
    """The area that two boxes share, in square pixels."""
    both = Bbox.intersection(one, other)
    return both.width * both.height if both is not None else 0.0


def rank_correlation(pairs: Sequence[tuple[str, float, float]]) -> tuple[float, float, float] | None:
    """Spearman's rank correlation r and its 95 % interval; None with fewer than four points. Equal values share a rank.

    The interval is tanh(arctanh r -+ 1.96 sqrt((1 + r^2 / 2) / (n - 3))) of n points (Bonett and Wright 2000,
    Psychometrika 65:23).
    """
    if len(pairs) < 4:
        return None
    from scipy.stats import rankdata

    x, y = (rankdata([pair[side] for pair in pairs]) for side in (1, 2))
    if not x.std() or not y.std():
        return None
    rank = float(np.clip(np.corrcoef(x, y)[0, 1], -1, 1))
    reach = 1.96 * math.sqrt((1 + rank**2 / 2) / (len(pairs) - 3))
    with np.errstate(divide="ignore"):
        centre = np.arctanh(rank)
    return rank, float(np.tanh(centre - reach)), float(np.tanh(centre + reach))
