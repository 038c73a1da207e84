"""Retrieval by the needle's depth and the length: a panel per method, every cell with its number of samples."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.textpath import TextPath
from matplotlib.transforms import Affine2D

from lexbench.core.method_key import MethodKey
from lexbench.core.record import Sample
from lexbench.report.looks import name_of
from lexbench.report.plots.style import (
    MATPLOTLIB_STYLE,
    REFUSED_CELL_FILL,
    REFUSED_TEXT_BOX,
    Field,
    draw_fields,
    fitting_characters,
    place_empty_labels,
    save_figure,
    save_numbers,
    wrap_name,
    wrap_text,
)
from lexbench.report.titles import title_of
from lexbench.report.wording import direction_phrase, format_ratio, metric_label
from lexbench.stats.intervals import Interval, mean_interval
from lexbench.stats.tables import Table

STRATA_COUNTS = (8, 4, 2)
MIN_STRATUM_SAMPLES = 2
"""Least mean number of samples in a stratum of depth."""
PANEL_GAP_INCHES = 0.1
"""Inches between panels."""
LENGTH_LABEL_INCHES = 0.35
"""Inches for the lengths under the last panels."""
MIN_BLACK_TEXT_VALUE = 0.47
"""Text is white on the colours below it, black from it on."""


Spot = tuple[float, float]
"""x and y in inches."""


@dataclass(frozen=True)
class PanelSize:
    """Size of the panels in inches, and the text in them."""

    columns: int
    """Panels side by side, at most."""
    width: float
    """Width of a stratum in inches, like the height."""
    height: float
    numbers: bool
    """Samples and interval in each stratum, beside the value."""


FEW_METHODS_PANEL = PanelSize(columns=3, width=0.62, height=0.3, numbers=True)
MANY_METHODS_PANEL = PanelSize(columns=5, width=0.36, height=0.19, numbers=False)
"""Layout for more than a dozen methods."""


@dataclass(frozen=True)
class Stratum:
    """Samples of one method at one length whose needles stand between two depths."""

    method: MethodKey
    length: int
    depth_low: float
    """Depth from here (counted in) to depth_high, 0 the start of the text and 1 its end (counted in)."""
    depth_high: float
    n: int
    value: float | None
    """Mean score; None without samples."""
    interval: Interval | None
    """Wilson's, of as many answers as there are clusters; wider than need be where scores are not only 0 and 1."""


def plot_heatmap(table: Table, samples: Mapping[str, Sequence[Sample]], stem: Path, png: bool = True) -> bool:
    """Draw the figure as stem.svg and stem.png (unless it is not wanted), its numbers as stem.csv.

    False, and none, where samples have no depth. `samples` are those of each cell id.
    """
    strata = list(depth_strata(table, samples))
    if not strata:
        return False
    look = FEW_METHODS_PANEL if len(table.methods) <= 12 else MANY_METHODS_PANEL
    with mpl.rc_context({**MATPLOTLIB_STYLE, "axes.spines.left": False, "axes.spines.bottom": False}):
        save_figure(_figure(table, strata, look), stem, png)
    names = ("method", "length", "depth", "depth_low", "depth_high", "n", "value", "low", "high")
    save_numbers(stem, names, _number_rows(strata))
    return True


def _figure(table: Table, strata: Sequence[Stratum], look: PanelSize) -> Figure:
    columns = min(look.columns, len(table.methods))
    rows = math.ceil(len(table.methods) / columns)
    count = len({stratum.depth_low for stratum in strata})
    panel = max(1.8, look.width * len(table.lengths))
    titles = [wrap_name(name_of(method), fitting_characters(panel, 8.0)) for method in table.methods]
    over = 0.3 + 0.13 * max(title.count("\n") for title in titles)
    inside = (
        columns * (panel + PANEL_GAP_INCHES) - PANEL_GAP_INCHES,
        rows * (over + look.height * count) + LENGTH_LABEL_INCHES,
    )
    size = (max(4.2, 1.2 + inside[0]), max(3.0, 1.4 + inside[1]))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()  # all panels in one: an axes each takes seconds
    axes.set_xlim(0, inside[0])
    axes.set_ylim(inside[1], 0)
    fields: list[tuple[Field, Any]] = []
    written: dict[tuple[str, str], list[Spot]] = {}
    for place, (method, title) in enumerate(zip(table.methods, titles, strict=True)):
        row, column = divmod(place, columns)
        at = HeatmapPanel(
            axes,
            column * (panel + PANEL_GAP_INCHES),
            over + row * (over + look.height * count),
            panel / len(table.lengths),
            look,
        )
        axes.text(at.x, at.y - 0.06, title, fontsize=8, verticalalignment="bottom", in_layout=False)
        fields += _panel(at, table, [stratum for stratum in strata if stratum.method == method], count, written)
        _draw_refusals(at, table, method, count)
        if place + columns >= len(table.methods):
            _draw_lengths(at, table, count)
    draw_fields(axes, fields)
    _draw_repeated_numbers(axes, written, 6)
    starts = [over + row * (over + look.height * count) for row in range(rows)]
    axes.set_xticks([])
    axes.set_yticks(
        [start + share * look.height * count for start in starts for share in (0.0, 0.5, 1.0)],
        ["0", "0.5", "1"] * rows,
        fontsize=7,
    )
    axes.tick_params(length=0)
    place_empty_labels([axes])
    small = " (small: samples, 95 %)" if look.numbers else ""
    bar = figure.colorbar(
        mpl.cm.ScalarMappable(mpl.colors.Normalize(0, 1), "cividis"),
        ax=axes,
        label=f"{wrap_name(metric_label(table.metric, table.cell.task_name), 30)}{small}",
        shrink=min(1.0, 3.2 / size[1]),
        anchor=(0.0, 1.0),
        aspect=18,
    )
    bar.outline.set_visible(False)
    level = metric_label(table.metric, table.cell.task_name) + direction_phrase(table.metric)
    about = f"{title_of(table)}\n{level} by depth and length"
    figure.suptitle(wrap_text(about, size[0] - 0.4, 10.0), fontsize=10)
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
    count = next((count for count in STRATA_COUNTS if most >= MIN_STRATUM_SAMPLES * count), 1)
    metric = table.metric
    if metric is None or not table.scored or not most:
        return
    for (method, length), group in sorted(found.items()):
        for part in range(count):
            # Depth 1, the end of the text, belongs to the last stratum.
            inside = [each for each in group if min(int((each.depth or 0.0) * count), count - 1) == part]
            value = interval = None
            if inside:
                values = [0.0 if each.failed else each.scores[metric] for each in inside]
                value = math.fsum(values) / len(values)
                interval = mean_interval(values, [each.cluster for each in inside])
            yield Stratum(method, length, part / count, (part + 1) / count, len(inside), value, interval)


@dataclass(frozen=True)
class HeatmapPanel:
    """Place of a method's strata in the axes, in inches: x to the right, y down."""

    axes: Axes
    x: float
    y: float
    width: float
    """Width of a stratum."""
    look: PanelSize

    def field(self, column: float, row: float, rows: float = 1) -> Field:
        """x, y, width and height of strata, one above the other."""
        across, down = self.width, self.look.height
        return self.x + column * across, self.y + row * down, across, rows * down

    def text(self, column: float, row: float, text: str, **looks: Any) -> None:
        """A centred text that the layout need not measure: there are hundreds."""
        x, y, *_ = self.field(column, row)
        looks = {"horizontalalignment": "center", "verticalalignment": "center", "in_layout": False, **looks}
        self.axes.text(x, y, text, **looks)


def _panel(
    at: HeatmapPanel, table: Table, strata: Sequence[Stratum], count: int, written: dict[tuple[str, str], list[Spot]]
) -> Iterator[tuple[Field, Any]]:
    """Fields of the strata with their colours; their numbers are drawn, or noted with their places in `written`."""
    colours = mpl.colormaps["cividis"]
    for stratum in strata:
        column = table.lengths.index(stratum.length)
        row = round(stratum.depth_low * count)
        if stratum.value is None:
            yield at.field(column, row), "0.92"
            continue
        yield at.field(column, row), colours(stratum.value)
        ink = "white" if stratum.value < MIN_BLACK_TEXT_VALUE else "black"
        if not at.look.numbers:
            written.setdefault((f"{stratum.value:.2f}", ink), []).append(at.field(column + 0.5, row + 0.5)[:2])
            continue
        at.text(column + 0.44, row + 0.34, f"{stratum.value:.2f}", color=ink, fontsize=7)
        at.text(column + 0.86, row + 0.28, str(stratum.n), color=ink, fontsize=5)
        if stratum.interval:
            ends = f"{stratum.interval.low:.2f}-{stratum.interval.high:.2f}"
            at.text(column + 0.5, row + 0.75, ends, color=ink, fontsize=5)


def _draw_repeated_numbers(axes: Axes, written: Mapping[tuple[str, str], Sequence[Spot]], size: float) -> None:
    """Numbers that stand in many places, each drawn as a marker: as texts, a thousand take seconds."""
    for (text, ink), places in written.items():
        path = TextPath((0, 0), text, size=size)
        box = path.get_extents()
        centred = Affine2D().translate(-(box.x0 + box.x1) / 2, -(box.y0 + box.y1) / 2).transform_path(path)
        x, y = zip(*places, strict=True)
        reach = 2 * float(np.abs(centred.vertices).max())  # the points to which matplotlib scales a marker's half
        axes.plot(x, y, linestyle="none", marker=centred, markersize=reach, color=ink, markeredgewidth=0)


def _draw_refusals(at: HeatmapPanel, table: Table, method: MethodKey, count: int) -> None:
    for column, length in enumerate(table.lengths):
        record = table.entries.get((method, length))
        if record is not None and record.refused:
            x, y, width, height = at.field(column, 0, rows=count)
            at.axes.add_artist(Rectangle((x, y), width, height, zorder=1.5, **REFUSED_CELL_FILL))
            at.text(column + 0.5, count / 2, "refused", color="0.2", fontsize=7, rotation=90, bbox=REFUSED_TEXT_BOX)


def _draw_lengths(at: HeatmapPanel, table: Table, count: int) -> None:
    """The lengths under a panel."""
    for column, length in enumerate(table.lengths):
        head = f"{format_ratio(length / table.cell.trained_length)}\n{length}"
        at.text(column + 0.5, count + 0.05 / at.look.height, head, fontsize=7, verticalalignment="top")


def _number_rows(strata: Sequence[Stratum]) -> Iterator[list[object]]:
    """Numbers of each stratum; its depth is that of its middle."""
    for each in strata:
        ends = (each.interval.low, each.interval.high) if each.interval else (None, None)
        depths = ((each.depth_low + each.depth_high) / 2, each.depth_low, each.depth_high)
        yield [each.method, each.length, *depths, each.n, each.value, *ends]
