"""Retrieval by the needle's depth and the length: a panel per method, every cell with its number of samples."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lexbench.core.record import Sample
from lexbench.report.plots.style import BACKED, HATCHED, STYLE, characters, said, save, save_numbers
from lexbench.stats.intervals import Interval, wilson
from lexbench.stats.tables import Table

STRATA = (8, 4, 2)
LEAST = 2
"""Samples that a stratum should hold on average."""
INK = 0.47
"""Text is white on the colours below it, black from it on."""


@dataclass(frozen=True)
class Look:
    """Size of the panels in inches, and the text in them."""

    columns: int
    """Panels side by side, at most."""
    width: float
    """Width of a stratum in inches, like the height."""
    height: float
    numbers: bool
    """Samples and interval in each stratum, beside the value."""


FEW = Look(columns=3, width=0.62, height=0.3, numbers=True)
MANY = Look(columns=5, width=0.36, height=0.19, numbers=False)
"""Layout for more than a dozen methods."""


@dataclass(frozen=True)
class Stratum:
    """Samples of one method at one length whose needles stand between two depths."""

    method: str
    length: int
    depth_low: float
    """Depth from here (counted in) to depth_high, 0 the start of the text and 1 its end (counted in)."""
    depth_high: float
    n: int
    value: float | None
    """Mean score; None without samples."""
    interval: Interval | None
    """Wilson's, of as many answers as there are clusters; wider than need be where scores are not only 0 and 1."""


def heatmap(table: Table, samples: Mapping[str, Sequence[Sample]], stem: Path) -> bool:
    """The figure as stem.svg and stem.png, its numbers as stem.csv; False, and none, where samples have no depth.

    `samples` are those of each cell id.
    """
    strata = list(depth_strata(table, samples))
    if not strata:
        return False
    look = FEW if len(table.methods) <= 12 else MANY
    with mpl.rc_context({**STYLE, "axes.spines.left": False, "axes.spines.bottom": False}):
        save(_figure(table, strata, look), stem)
    names = ("method", "length", "depth", "depth_low", "depth_high", "n", "value", "low", "high")
    save_numbers(stem, names, _lines(strata))
    return True


def _figure(table: Table, strata: Sequence[Stratum], look: Look) -> Figure:
    columns = min(look.columns, len(table.methods))
    rows = math.ceil(len(table.methods) / columns)
    count = len({stratum.depth_low for stratum in strata})
    panel = max(1.8, look.width * len(table.lengths))
    titles = [said(method, characters(panel, 8.0)) for method in table.methods]
    over = 0.3 + 0.13 * max(title.count("\n") for title in titles)
    size = (max(4.2, 1.3 + columns * panel), max(3.0, 1.5 + rows * (over + look.height * count)))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).ravel()
    for axes, method, title in zip(panels, table.methods, titles, strict=False):
        axes.set_title(title, fontsize=8)
        _panel(axes, table, method, [stratum for stratum in strata if stratum.method == method], count, look)
    for axes in panels[len(table.methods) :]:
        axes.set_axis_off()
    for axes in panels[: len(table.methods)][-columns:]:
        axes.tick_params(labelbottom=True)
    small = " (small: samples, 95 %)" if look.numbers else ""
    bar = figure.colorbar(
        mpl.cm.ScalarMappable(mpl.colors.Normalize(0, 1), "cividis"),
        ax=list(panels),
        label=f"{said(table.label, 30)}{small}",
        shrink=min(1.0, 3.2 / size[1]),
        anchor=(0.0, 1.0),
        aspect=18,
    )
    bar.outline.set_visible(False)
    about = f"{table.cell.task} on {table.cell.model}: {table.label} by depth and length"
    differs = f"\n{said(table.differs, characters(size[0] - 0.4, 10.0))}" if table.differs else ""
    figure.suptitle(f"{said(about, characters(size[0] - 0.4, 10.0))}{differs}", fontsize=10)
    figure.supxlabel("length: multiple of the trained length, tokens", fontsize=9)
    figure.supylabel("depth of the needle: 0 start, 1 end", fontsize=9)
    return figure


def depth_strata(table: Table, samples: Mapping[str, Sequence[Sample]]) -> Iterator[Stratum]:
    """Mean scores by depth: 8, 4 or 2 equal strata, so that each holds 2 samples or more; a failed sample scores 0."""
    found = {
        place: [sample for sample in samples.get(record.cell, ()) if sample.depth is not None]
        for place, record in table.entries.items()
    }
    most = max((len(group) for group in found.values()), default=0)
    count = next((count for count in STRATA if most >= LEAST * count), 1)
    metric = table.metric
    if metric is None or not table.scored or not most:
        return
    for (method, length), group in sorted(found.items()):
        for part in range(count):
            inside = [each for each in group if min(int((each.depth or 0.0) * count), count - 1) == part]
            value = interval = None
            if inside:
                value = math.fsum(0.0 if each.failed else each.scores[metric] for each in inside) / len(inside)
                clusters = len({each.cluster for each in inside})
                interval = wilson(min(value, 1.0) * clusters, clusters)
            yield Stratum(method, length, part / count, (part + 1) / count, len(inside), value, interval)


def _panel(axes: Axes, table: Table, method: str, strata: Sequence[Stratum], count: int, look: Look) -> None:
    colours = mpl.colormaps["cividis"]
    for stratum in strata:
        column = table.lengths.index(stratum.length)
        row = round(stratum.depth_low * count)
        if stratum.value is None:
            axes.add_patch(Rectangle((column, row), 1, 1, facecolor="0.92", edgecolor="white"))
            continue
        axes.add_patch(Rectangle((column, row), 1, 1, facecolor=colours(stratum.value), edgecolor="white"))
        ink = "white" if stratum.value < INK else "black"
        if not look.numbers:
            _text(axes, column + 0.5, row + 0.52, f"{stratum.value:.2f}", color=ink, fontsize=6)
            continue
        _text(axes, column + 0.44, row + 0.34, f"{stratum.value:.2f}", color=ink, fontsize=7)
        _text(axes, column + 0.86, row + 0.28, str(stratum.n), color=ink, fontsize=5)
        if stratum.interval:
            ends = f"{stratum.interval.low:.2f}-{stratum.interval.high:.2f}"
            _text(axes, column + 0.5, row + 0.75, ends, color=ink, fontsize=5)
    for column, length in enumerate(table.lengths):
        record = table.entries.get((method, length))
        if record is not None and record.refused:
            axes.add_patch(Rectangle((column, 0), 1, count, **HATCHED))
            _text(axes, column + 0.5, count / 2, "refused", color="0.2", fontsize=7, rotation=90, bbox=BACKED)
    trained = table.cell.trained_length
    axes.set_xlim(0, len(table.lengths))
    axes.set_ylim(count, 0)
    axes.set_xticks(
        [column + 0.5 for column in range(len(table.lengths))],
        [f"{length / trained:.3g}x\n{length}" for length in table.lengths],
        fontsize=7,
    )
    axes.set_yticks([0, count / 2, count], ["0", "0.5", "1"], fontsize=7)
    axes.tick_params(length=0)


def _text(axes: Axes, x: float, y: float, text: str, **looks: Any) -> None:
    """A centred text that the layout need not measure: there are hundreds."""
    axes.text(x, y, text, horizontalalignment="center", verticalalignment="center", in_layout=False, **looks)


def _lines(strata: Sequence[Stratum]) -> Iterator[list[object]]:
    """Numbers of each stratum; its depth is that of its middle."""
    for each in strata:
        ends = (each.interval.low, each.interval.high) if each.interval else (None, None)
        depths = ((each.depth_low + each.depth_high) / 2, each.depth_low, each.depth_high)
        yield [each.method, each.length, *depths, each.n, each.value, *ends]
