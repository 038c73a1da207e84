"""What all figures share: colours, lines and limits, and files that are the same bytes every time."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lexbench.files import write_bytes, write_text

COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#8C6D31")
"""Okabe and Ito's palette, told apart by colour-blind readers; brown for their yellow, which paper swallows."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", "-.", ":")
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "lexbench",
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10.0,
    "axes.titlelocation": "left",
}


def save(figure: Figure, stem: Path) -> None:
    """The figure as stem.svg and stem.png, without dates or random ids."""
    FigureCanvasAgg(figure)
    for suffix, metadata in ((".svg", {"Date": None, "Creator": "lexbench"}), (".png", {"Software": "lexbench"})):
        stream = io.BytesIO()
        figure.savefig(stream, format=suffix[1:], dpi=160, metadata=metadata)
        write_bytes(stem.with_name(stem.name + suffix), stream.getvalue())


def save_numbers(stem: Path, names: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """The numbers of a figure as stem.csv."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows)
    write_text(stem.with_name(stem.name + ".csv"), stream.getvalue())


def colour(place: int) -> str:
    """Of the method at a place among those told apart."""
    return COLOURS[place % len(COLOURS)]


def looks(place: int) -> dict[str, Any]:
    """Of a method's line: a ninth has the first one's colour, and another marker."""
    return {
        "color": colour(place),
        "marker": MARKERS[(place + place // len(COLOURS)) % len(MARKERS)],
        "linestyle": DASHES[place % len(DASHES)],
        "markersize": 5,
        "linewidth": 1.5,
    }


def legend(axes: Axes, handles: Sequence[Line2D], band: bool) -> None:
    """The methods and marks, to the right of the axes."""
    made = axes.legend(
        handles=handles,
        title=f"method{' (band: 95 %)' if band else ''}",
        loc="center left",
        bbox_to_anchor=(1.01, 0.5),
        frameon=False,
        alignment="left",
        handlelength=3.0,
    )
    made.get_title().set_fontsize(8.5)


def value_limits(worst: Sequence[float], low: float, high: float) -> tuple[float, float]:
    """Ends of an axis where lower is better, which one collapsed method must not stretch.

    It ends half as far again above the lowest value as the middle method's worst one, but at least 1 (nat or bit)
    above the best method's worst one, and never above all values.
    """
    top = min(high, max(low + 1.5 * (float(np.median(worst)) - low), min(worst) + 1.0))
    margin = 0.05 * max(top - low, 0.02)
    return low - margin, top + margin


def mark_trained_length(axes: Axes, place: float, low: bool) -> None:
    """A dashed line at a place on the x axis, its name at the line's lower or upper end."""
    axes.axvline(place, color="0.55", linewidth=1.0, linestyle=(0, (4, 3)), zorder=0)
    axes.annotate(
        "trained length",
        xy=(place, 0.02 if low else 0.98),
        xycoords=("data", "axes fraction"),
        xytext=(-3, 0),
        textcoords="offset points",
        rotation=90,
        horizontalalignment="right",
        verticalalignment="bottom" if low else "top",
        color="0.4",
        fontsize=7.5,
    )
