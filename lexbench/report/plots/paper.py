"""One figure for a paper or a page: a row a task, one legend, in the width of a column, text as text."""

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import Affine2D

from lexbench.core.errors import ConfigError
from lexbench.core.files import write_text
from lexbench.core.method_key import BASELINE_METHOD, MethodKey
from lexbench.core.record import Record
from lexbench.report import looks, paper_table
from lexbench.report.grid import value_entry
from lexbench.report.looks import Look
from lexbench.report.plots import over_length, value_axis
from lexbench.report.plots.style import (
    ARROW_MARKER,
    MARKER_OF_SHAPE,
    MATPLOTLIB_STYLE,
    OFF_AXIS_ARROW,
    save_figure_as,
    wrap_text,
)
from lexbench.report.plots.value_axis import ValueScale
from lexbench.report.select import check_highlight, named_methods, named_tasks
from lexbench.report.tables import headline_tables
from lexbench.report.titles import short_title_of
from lexbench.report.wording import direction_phrase, metric_label
from lexbench.stats import records
from lexbench.stats.differences import Differences, paired_differences
from lexbench.stats.metrics import follows_another
from lexbench.stats.rescore import samples_by_cell
from lexbench.stats.tables import Table

WIDTH_INCHES_OF_SIZE = {
    **{"neurips": 5.5, "iclr": 5.5},
    **{"icml-column": 3.25, "icml": 6.75, "acl-column": 3.03, "acl": 6.3, "ieee-column": 3.5, "ieee": 7.16},
    **{"page": 9.0, "slide": 12.0},
}
"""Inches of a column or of a page's text; a web page and a slide."""
MIN_PANEL_WIDTH_INCHES = 2.2
"""Inches of a panel; where less room is, panels stand below one another."""
RIGHT_ARROW_MARKER, LEFT_ARROW_MARKER = (ARROW_MARKER.transformed(Affine2D().rotate_deg(turn)) for turn in (-90, 90))
"""Markers where a dot leaves the axis."""
PANEL_HEIGHT_SHARE = 0.72
"""Height of a panel, as a share of its width."""
FONT_SIZE_POINTS = 8.0
"""Points, in print; a slide has twice as much."""


def write_figure(
    folders: Sequence[Path],
    files: Sequence[Path],
    methods: Sequence[str] = (),
    tasks: Sequence[str] = (),
    size: str = "neurips",
    highlight: Collection[str] = (),
    lengths: Collection[int] = (),
    interval: str = "below",
    digits: int | None = None,
) -> None:
    """Draw headline metrics over length as .pdf, .svg or .png files, and write their table as .tex.

    Args:
        folders: run folders.
        files: of the figure, one for each format.
        methods: names or labels of those to draw; none: all.
        tasks: likewise.
        size: one of `WIDTH_INCHES_OF_SIZE`.
        highlight: methods to draw in front.
        lengths: columns of the table, tokens; none: all.
        interval: of the table: below, beside or none.
        digits: decimals of the table; None: as in reports.
    """
    if interval not in paper_table.INTERVAL_PLACES:
        raise ConfigError(f"--interval must be one of {', '.join(paper_table.INTERVAL_PLACES)}, got {interval}")
    loaded = records.load_cells(folders).finished
    shown = named_tasks((each.cell for each in loaded), tasks)
    drawn = named_methods((each.cell.method for each in loaded), methods)
    check_highlight(drawn, highlight)
    kept = [each for each in loaded if each.cell.task in shown and each.cell.method in drawn]
    tables = [table for table in headline_tables(kept) if not follows_another(table.metric)]
    if not tables:
        raise ConfigError("figure has nothing to draw: these folders hold no scored cell")
    pictures = [file for file in files if file.suffix.lower() != ".tex"]
    samples = samples_by_cell(kept)
    found = {table.name: paired_differences(table, samples) for table in tables}
    compared = {
        name: over_length.better_upwards(each) for name, each in found.items() if each is not None and not each.empty
    }
    for file in (each for each in files if each not in pictures):
        options: Any = {"lengths": lengths, "interval": interval, "digits": digits, "highlight": highlight}
        stars = paper_table.significant_places(compared)
        made = paper_table.paper_latex(tables, WIDTH_INCHES_OF_SIZE[size], **options, starred=stars)
        write_text(file, paper_table.floating_table(made, tables, "lexbench", BASELINE_METHOD))
    if not pictures:
        return
    with mpl.rc_context({**MATPLOTLIB_STYLE, "font.size": FONT_SIZE_POINTS * (2 if size == "slide" else 1)}):
        figure = paper_figure(tables, WIDTH_INCHES_OF_SIZE[size], highlight, compared)
        for file in pictures:
            save_figure_as(figure, file)


def _floor_above(axes: Axes, table: Table, scale: ValueScale) -> None:
    """Say a floor that is not drawn, as the axis ends below it."""
    above = [level for level in over_length.visible_floors(table).values() if scale.is_above_axis(level)]
    if above:
        axes.annotate(
            f"{over_length.floor_name(table)}: {min(above):.2f}, above",
            xy=(1, 1),
            xycoords="axes fraction",
            horizontalalignment="right",
            verticalalignment="bottom",
            fontsize="small",
            color="0.35",
        )


def _title(axes: Axes, table: Table, width: float) -> None:
    words = wrap_text(short_title_of(table), width - 0.75, mpl.rcParams["font.size"], lines=3)
    axes.set_title(words, fontsize="medium", pad=8)


def paper_figure(
    tables: Sequence[Table],
    width: float,
    highlight: Collection[str] = (),
    compared: Mapping[str, Differences] = MappingProxyType({}),
) -> Figure:
    """A row for each table, paired differences and levels beside them, and one legend below for all.

    A column too narrow for both has the differences alone, and their table the levels. Where nothing can be paired,
    levels stand alone, as many tables side by side as there is room for. More than `looks.MAX_PANEL_LINES` methods are
    ranked dots.

    Args:
        tables: of headline metrics.
        width: inches.
        highlight: methods to draw in front.
        compared: paired differences by the name of the table, above 0 where better; none: levels alone.
    """
    methods = looks.order_methods(list(dict.fromkeys(row for table in tables for row in table.methods)), highlight)
    if len(methods) > looks.MAX_PANEL_LINES:
        return ranked_figure(tables, width, highlight, compared)
    known = looks.looks_of_methods(methods, highlight)
    room = max(1, int(width / MIN_PANEL_WIDTH_INCHES))
    columns = min(2, room) if compared else min(len(tables), room)
    places = [(table, compared.get(table.name), part) for table in tables for part in _parts(table, compared, columns)]
    rows = -(-len(places) // columns)
    each = width / columns
    made = Figure(figsize=(width, rows * (PANEL_HEIGHT_SHARE * each + 0.3) + 0.55), layout="constrained")
    handles: dict[str, Line2D] = {}
    for place, (table, found, part) in enumerate(places):
        if part is None:
            continue
        axes = made.add_subplot(rows, columns, place + 1)
        shown = [method for method in methods if method in table.methods]
        scale = value_axis.scale_of_table(table)
        marks = over_length.handles_of(table, shown, known, scale)
        if part == "differences" and found is not None:
            over_length.difference_panel(axes, found, shown, known)
            axes.set_ylabel(
                wrap_text(over_length.difference_label(found), PANEL_HEIGHT_SHARE * each, mpl.rcParams["font.size"], 3)
            )
            marks += over_length.difference_handles(found, shown)
        else:
            over_length.draw_panel(axes, table, shown, known, scale)
            _floor_above(axes, table, scale)
            label = over_length.level_label(table)
            axes.set_ylabel(wrap_text(label, PANEL_HEIGHT_SHARE * each, mpl.rcParams["font.size"], 3))
        if part == "differences" or found is None:
            _title(axes, table, each)
        axes.set_xlabel("length (x trained, tokens)")
        handles |= {str(handle.get_label()): handle for handle in marks}
    longest = max(map(len, handles)) * 0.6 * mpl.rcParams["font.size"] / 72 + 0.55
    made.legend(
        handles=[*handles.values()],
        loc="outside lower center",
        ncols=max(1, min(len(handles), int(width / longest))),
        frameon=False,
    )
    return made


def _parts(table: Table, compared: Mapping[str, Differences], columns: int) -> Sequence[str | None]:
    """Contents of a table's places: differences, levels or nothing."""
    if table.name not in compared:
        return ["levels", None] if compared and columns == 2 else ["levels"]
    return ["differences", "levels"][:columns]


def ranked_figure(
    tables: Sequence[Table],
    width: float,
    highlight: Collection[str] = (),
    compared: Mapping[str, Differences] = MappingProxyType({}),
) -> Figure:
    """Dots with intervals at the longest length with a value, the best method at the top; differences and levels.

    A method without a value there stands below the others, as a word. A value beyond twice the distance of the middle
    one from the best, and beyond the baseline, has an arrow instead of a dot. A grey line stands at the baseline, and a
    dotted one at the floor, where the axis reaches it.
    """
    room = max(1, int(width / MIN_PANEL_WIDTH_INCHES))
    columns = min(2, room) if compared else min(len(tables), room)
    places = [(table, compared.get(table.name), part) for table in tables for part in _parts(table, compared, columns)]
    rows = -(-len(places) // columns)
    tall = max(len(table.methods) for table in tables) * 1.35 * mpl.rcParams["font.size"] / 72 + 0.9
    made = Figure(figsize=(width, rows * tall), layout="constrained")
    for place, (table, found, part) in enumerate(places):
        if part is None:
            continue
        axes = made.add_subplot(rows, columns, place + 1)
        length = max((each.length for each in table.entries.values() if each.value is not None), default=0)
        length = length or table.lengths[-1]
        lacking, dots = _dots(table, length)
        if part == "differences" and found is not None:
            _difference_dots(axes, found, length, [*lacking, *(record.method for record in dots)], highlight)
        else:
            _level_dots(axes, table, length, (lacking, dots), highlight)
        names = [*lacking, *(each.method for each in dots)]
        beside = part == "levels" and found is not None
        axes.set_yticks(range(len(names)), [] if beside else list(map(looks.name_of, names)))
        axes.set_ylim(-0.7, len(names) - 0.3)
        axes.grid(axis="y", visible=False)
        if not beside:
            _title(axes, table, width / columns)
    return made


def _dots(table: Table, length: int) -> tuple[list[MethodKey], list[Record]]:
    """Methods without a value at a length, and the records of the others, the worst first."""
    found = [record for record in table.at(length) if record.value is not None]
    found.sort(key=lambda each: (each.value or 0.0) * (table.better or 1))
    valued = {each.method for each in found}
    return [method for method in reversed(table.methods) if method not in valued], found


def _dot(axes: Axes, value: float, height: int, look: Look, face: str) -> None:
    style: dict[str, Any] = {"marker": MARKER_OF_SHAPE[look.marker], "color": look.colour, "markerfacecolor": face}
    axes.plot(value, height, markersize=4.5, **style)


def _difference_dots(
    axes: Axes, found: Differences, length: int, names: Sequence[MethodKey], highlight: Collection[str]
) -> None:
    """Differences to the baseline at a length; hollow: not significant."""
    known = looks.looks_of_methods(found.table.methods, highlight)
    scale = over_length.difference_scale(found)
    axes.axvline(0.0, color=looks.INK_COLOUR, linewidth=1.0, zorder=0)
    for height, method in enumerate(names):
        each = found.entries.get((method, length))
        if each is None or each.difference is None:
            continue
        look = known[method]
        if scale.is_below_axis(each.difference):
            arrow = {**OFF_AXIS_ARROW, "marker": LEFT_ARROW_MARKER, "color": look.colour, "clip_on": False}
            axes.plot(scale.low, height, **arrow)
            continue
        if each.low is not None and each.high is not None:
            axes.plot([each.low, each.high], [height, height], color=look.colour, linewidth=2.2 if look.front else 1.2)
        _dot(axes, each.difference, height, look, look.colour if each.significant else "white")
    axes.set_xlabel(f"{over_length.difference_label(found)}, at {length:,} tokens; hollow: not significant", wrap=True)


def _level_dots(
    axes: Axes,
    table: Table,
    length: int,
    shown: tuple[Sequence[MethodKey], Sequence[Record]],
    highlight: Collection[str],
) -> None:
    """Levels at a length."""
    lacking, dots = shown
    known, edge = looks.looks_of_methods(table.methods, highlight), _arrow_start_value(table, dots)
    for height, method in enumerate(lacking):
        word = value_entry(table.entries.get((method, length))).text or "not measured"
        axes.annotate(word, (0.02, height), xycoords=axes.get_yaxis_transform(), va="center", color="0.4")
    for height, record in enumerate(dots, len(lacking)):
        look, value = known[record.method], record.value or 0.0
        low, high = (value if end is None else end for end in (record.low, record.high))
        if (value > edge) if table.better < 0 else (value < edge):
            marker = RIGHT_ARROW_MARKER if table.better < 0 else LEFT_ARROW_MARKER
            axes.plot(edge, height, **{**OFF_AXIS_ARROW, "marker": marker, "color": look.colour, "clip_on": False})
            continue
        axes.plot([low, high], [height, height], color=look.colour, linewidth=2.2 if look.front else 1.2)
        _dot(axes, value, height, look, "white" if look.hollow else look.colour)
        if record.method == BASELINE_METHOD:
            axes.axvline(value, color="0.75", linewidth=0.8, zorder=0)
    left, right = axes.get_xlim()
    if left <= (level := over_length.visible_floors(table).get(length, math.inf)) <= right:
        axes.axvline(level, zorder=0, **over_length.FLOOR_LINE)
    axes.set_xlabel(
        f"{metric_label(table.metric, table.cell.task_name)} at {length:,} tokens{direction_phrase(table.metric)}"
    )


def _arrow_start_value(table: Table, found: Sequence[Record]) -> float:
    """The value from which on ranked methods have an arrow, if a side is better; `found` is sorted, the worst first."""
    values = [each.value for each in found if each.value is not None]
    if not values or not table.better:
        return -math.inf
    worst, best = values[0], values[-1]
    edge = best + 2.0 * (float(np.median(values)) - best) if len(values) > 2 else worst
    base = [each.value for each in found if each.method == BASELINE_METHOD and each.value is not None]
    return max([min(edge, worst), *base]) if table.better < 0 else min([max(edge, worst), *base])
