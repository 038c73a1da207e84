"""Attention over distance: mean logits, as in Figure 2 of LEX (arXiv 2212.10554), and where the weights go.

Logits are drawn at the distances of which resolution is taken; the numbers beside the figure hold all.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.ticker
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from lexbench.core.method_key import MethodKey
from lexbench.core.record import Sample
from lexbench.report import looks
from lexbench.report.looks import Look
from lexbench.report.plots.over_length import distinguished_methods
from lexbench.report.plots.style import (
    BACKGROUND_LINE,
    LEGEND_LINE_CHARACTERS,
    MATPLOTLIB_STYLE,
    line_style,
    save_figure,
    save_numbers,
    wrap_name,
    wrap_text,
)
from lexbench.report.titles import differences_of, length_heading
from lexbench.stats.tables import Table

MAX_LENGTH_PANELS = 6
"""Maximum number of panels, one per length."""
POINTS_PER_DOUBLING = 16
"""Points of a line for each doubling of the distance."""
Floats = NDArray[np.float64]
Places = NDArray[np.int64]
TRAINED_LENGTH_LINE: dict[str, Any] = {"color": "0.55", "linewidth": 1.0, "linestyle": (0, (4, 3)), "zorder": 0}


@dataclass(frozen=True)
class AttentionCurve:
    """Attention of one method at one length, mean over samples."""

    method: MethodKey
    length: int
    samples: int
    begins: Places
    """[points] tokens: a point stands for the distances from its own up to the next one's."""
    logits: Floats
    """[points] mean logit, NaN where no key is seen."""
    reach: int
    """Distances below it are seen by enough queries to be drawn; the length where samples do not say."""
    lasts: Places
    """[bins] tokens."""
    within: Floats
    """[bins] share of the weight that goes so many tokens back, or fewer."""

    @property
    def ends(self) -> Places:
        """[points] the last distance that each point stands for."""
        return np.append(self.begins[1:], self.length) - 1

    @property
    def drawn(self) -> NDArray[np.bool_]:
        """[points] whose distances all lie below the reach."""
        return np.asarray(self.ends < self.reach)


def plot_attention_curves(table: Table, samples: Mapping[str, Sequence[Sample]], stem: Path, png: bool = True) -> bool:
    """Draw the figure as stem.svg and stem.png (unless it is not wanted), all lengths' numbers as stem.csv.

    False, and none, where samples have no curve. `samples` are those of each cell id.
    """
    found = list(curves_of(table, samples))
    if not found:
        return False
    with mpl.rc_context(MATPLOTLIB_STYLE):
        save_figure(_figure(table, found), stem, png)
    names = ("method", "length", "samples", "measure", "begin", "end", "value")
    save_numbers(stem, names, (line for curve in found for line in _number_rows(curve)))
    return True


def _figure(table: Table, found: Sequence[AttentionCurve]) -> Figure:
    """Logits above weights, a column for each length."""
    lengths = shown_lengths(sorted({curve.length for curve in found}))
    known, trained = {curve.method for curve in found}, table.cell.trained_length
    methods = [method for method in distinguished_methods(table) if method in known]
    drawn = {
        method: look
        for method, look in looks.looks_of_methods(table.methods, table.highlight).items()
        if method in methods
    }
    width, labels = (2.5, 6) if len(lengths) < 4 else (2.0, 4)
    figure = Figure(figsize=(1.6 + width * len(lengths), 5.0), layout="constrained")
    panels = figure.subplots(2, len(lengths), squeeze=False, sharey="row", sharex="col")
    for length, (upper, lower) in zip(lengths, panels.T, strict=True):
        here = [curve for curve in found if curve.length == length]
        upper.set_title(length_heading(table, length))
        _logits(upper, here, drawn)
        _weights(lower, here, drawn)
        _distance_axis(lower, length, labels)
        for panel in (upper, lower):
            panel.axvspan(0, 1, color="0.95", linewidth=0, zorder=-1)
        if trained < length:
            upper.axvline(trained, **TRAINED_LENGTH_LINE)
            lower.axvline(trained, **TRAINED_LENGTH_LINE)
    panels[0, 0].set_ylabel("mean attention logit")
    panels[1, 0].set_ylabel("share of the last queries'\nattention, this near or nearer")
    figure.supxlabel("distance from query to key (tokens, logarithmic from 1 on; 0: the token itself)", fontsize=9)
    _title(figure, table, found)
    _legend(figure, methods, drawn, len(known) - len(methods), trained < lengths[-1])
    return figure


def curves_of(table: Table, samples: Mapping[str, Sequence[Sample]]) -> Iterator[AttentionCurve]:
    """Methods in the table's order, each by length; failed samples have none."""
    for method in table.methods:
        for record in table.of(method):
            known = [each.statistics for each in samples.get(record.cell, ()) if not each.failed]
            known = [each for each in known if {"curve", "edges", "mass"} <= each.keys()]
            if known:
                yield _curve(method, record.length, known)


def _curve(method: MethodKey, length: int, known: Sequence[Mapping[str, NDArray[np.float32]]]) -> AttentionCurve:
    curve = np.mean([each["curve"] for each in known], axis=0, dtype=np.float64)
    mass = np.mean([each["mass"].mean((0, 1), dtype=np.float64) for each in known], axis=0)
    begins, seen = distance_points(length), np.isfinite(curve)
    # Mean of the distances between two points that any query saw; a masked distance has no logit.
    sums = np.add.reduceat(np.where(seen, curve, 0.0), begins)
    counts = np.add.reduceat(seen.astype(np.float64), begins)
    return AttentionCurve(
        method=method,
        length=length,
        samples=len(known),
        begins=begins,
        logits=np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0),
        reach=int(known[0].get("reach", [length])[0]),
        lasts=known[0]["edges"][1:].astype(np.int64) - 1,
        within=np.cumsum(mass),
    )


def distance_points(length: int) -> Places:
    """[points] distances with which points begin: each at first, then POINTS_PER_DOUBLING for each doubling."""
    spread = 2 ** (np.arange(length.bit_length() * POINTS_PER_DOUBLING) / POINTS_PER_DOUBLING)
    found = np.unique(np.concatenate([[0.0], spread.round()])).astype(np.int64)
    return np.asarray(found[found < length])


def shown_lengths(lengths: Sequence[int]) -> list[int]:
    """Lengths with a panel: if too many, evenly spread with both ends."""
    places = np.linspace(0, len(lengths) - 1, min(len(lengths), MAX_LENGTH_PANELS)).round().astype(int)
    return [lengths[place] for place in places]


def _logits(axes: Axes, found: Sequence[AttentionCurve], drawn: Mapping[MethodKey, Look]) -> None:
    for curve in found:
        middles = (curve.begins + curve.ends) / 2
        axes.plot(middles[curve.drawn], curve.logits[curve.drawn], **_line(drawn, curve.method, 30))


def _weights(axes: Axes, found: Sequence[AttentionCurve], drawn: Mapping[MethodKey, Look]) -> None:
    for curve in found:
        axes.plot(curve.lasts, curve.within, **_line(drawn, curve.method, 6))
    axes.set_ylim(-0.02, 1.02)


def _distance_axis(axes: Axes, length: int, room: int) -> None:
    """Logarithmic from 1 on; 0 stands apart, on grey. Room for so many labels, the length among them."""
    axes.set_xscale("symlog", base=2, linthresh=1)
    axes.set_xlim(0, length)
    places = [0, *distance_ticks(length, room)]
    axes.set_xticks(places, [str(place) for place in places])
    axes.xaxis.set_minor_locator(mpl.ticker.NullLocator())
    axes.tick_params(axis="x", labelsize=7.5)


def distance_ticks(length: int, room: int) -> list[int]:
    """Powers of 2 from 1 on, evenly spread, as many as there is room for, and the length: none comes close to it."""
    step = math.ceil(length.bit_length() / room)
    return [
        *(1 << octave for octave in range(0, length.bit_length(), step) if 2 ** (octave + 0.75 * step) <= length),
        length,
    ]


def _line(drawn: Mapping[MethodKey, Look], method: MethodKey, every: int = 1) -> dict[str, Any]:
    """Looks, a marker at every so many points; grey for methods that are not told apart."""
    if method not in drawn:
        return BACKGROUND_LINE
    first = list(drawn).index(method) * every // len(drawn)
    return {**line_style(drawn[method], size=4.0, width=1.2), "markevery": (first, every)}


def _title(figure: Figure, table: Table, found: Sequence[AttentionCurve]) -> None:
    count = max(curve.samples for curve in found)
    differs = f"\n{differences_of(table)}" if table.differs else ""
    texts = f"{count} text{'s' if count > 1 else ''}"
    about = f"attention over distance of {table.cell.model}, mean over all heads and {texts}{differs}"
    figure.suptitle(wrap_text(about, figure.get_figwidth() - 0.4, 10.0), fontsize=10)


def _legend(
    figure: Figure, methods: Sequence[MethodKey], drawn: Mapping[MethodKey, Look], others: int, beyond: bool
) -> None:
    handles = [
        Line2D([], [], label=wrap_name(looks.name_of(method), LEGEND_LINE_CHARACTERS), **_line(drawn, method))
        for method in methods
    ]
    if others:
        handles.append(Line2D([], [], label=f"{others} others", **BACKGROUND_LINE))
    if beyond:
        handles.append(Line2D([], [], label="trained length", **TRAINED_LENGTH_LINE))
    legend = figure.legend(handles=handles, title="method", loc="outside right center", frameon=False, alignment="left")
    legend.get_title().set_fontsize(8.5)


def _number_rows(curve: AttentionCurve) -> Iterator[list[object]]:
    """Numbers of a curve, for distances from `begin` to `end`, both counted in."""
    about = [curve.method, curve.length, curve.samples]
    for begin, end, value in zip(curve.begins, curve.ends, curve.logits, strict=True):
        yield [*about, "mean_logit", begin, end, float(value) if np.isfinite(value) else None]
    for end, value in zip(curve.lasts, curve.within, strict=True):
        yield [*about, "share_within", 0, end, float(value)]
