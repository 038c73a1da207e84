"""One figure for a paper or a page: a panel a task, one legend, in the width of a column, text as text."""

import math
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lexbench.core.errors import ConfigError
from lexbench.core.files import write_text
from lexbench.core.method_key import BASELINE
from lexbench.core.record import Record
from lexbench.report import looks, paper_table
from lexbench.report.grid import value_entry
from lexbench.report.plots import over_length, value_axis
from lexbench.report.plots.style import SHAPES, STYLE, save_as, wrapped
from lexbench.report.plots.value_axis import Scale
from lexbench.report.select import check_highlight, named_methods, named_tasks
from lexbench.report.tables import headline_tables
from lexbench.stats import records
from lexbench.stats.tables import Table

WIDTHS = {
    **{"neurips": 5.5, "iclr": 5.5},
    **{"icml-column": 3.25, "icml": 6.75, "acl-column": 3.03, "acl": 6.3, "ieee-column": 3.5, "ieee": 7.16},
    **{"page": 9.0, "slide": 12.0},
}
"""Inches of a column or of a page's text; a web page and a slide."""
LEAST = 2.2
"""Inches of a panel; where less room is, panels stand below one another."""
HEIGHT = 0.72
"""Height of a panel, as a share of its width."""
FONT = 8.0
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
        size: one of `WIDTHS`.
        highlight: methods to draw in front.
        lengths: columns of the table, tokens; none: all.
        interval: of the table: below, beside or none.
        digits: decimals of the table; None: as in reports.
    """
    if interval not in paper_table.INTERVALS:
        raise ConfigError(f"--interval must be one of {', '.join(paper_table.INTERVALS)}, got {interval}")
    loaded = records.load(folders).finished
    shown = named_tasks((each.cell for each in loaded), tasks)
    drawn = named_methods((each.cell.method for each in loaded), methods)
    check_highlight(drawn, highlight)
    kept = [each for each in loaded if each.cell.task in shown and each.cell.method in drawn]
    tables = [table for table in headline_tables(kept) if table.metric != "perplexity"]
    if not tables:
        raise ConfigError("figure has nothing to draw: these folders hold no scored cell")
    pictures = [file for file in files if file.suffix.lower() != ".tex"]
    for file in (each for each in files if each not in pictures):
        options: Any = {"lengths": lengths, "interval": interval, "digits": digits, "highlight": highlight}
        write_text(file, paper_table.latex(tables, WIDTHS[size], **options))
    if not pictures:
        return
    with mpl.rc_context({**STYLE, "font.size": FONT * (2 if size == "slide" else 1)}):
        made = figure(tables, WIDTHS[size], highlight)
        for file in pictures:
            save_as(made, file)


def _floor_above(axes: Axes, table: Table, scale: Scale) -> None:
    """Say a floor that is not drawn, as the axis ends below it."""
    above = [level for level in over_length.floors(table).values() if scale.beyond(level)]
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
    """Task and model, and below them what tells the table from others of both."""
    text = f"{table.cell.task}, {table.cell.model}" + (f"\n{table.differs}" if table.differs else "")
    axes.set_title(wrapped(text, width, mpl.rcParams["font.size"]), fontsize="medium", pad=8)


def figure(tables: Sequence[Table], width: float, highlight: Collection[str] = ()) -> Figure:
    """A panel for each table, and one legend below for all; of more than `looks.LINES` methods ranked dots.

    Args:
        tables: of headline metrics.
        width: inches.
        highlight: methods to draw in front.
    """
    methods = looks.ordered(list(dict.fromkeys(row for table in tables for row in table.methods)), highlight)
    if len(methods) > looks.LINES:
        return ranked(tables, width, highlight)
    known = looks.looks(methods, highlight)
    columns = max(1, min(len(tables), int(width / LEAST)))
    rows = -(-len(tables) // columns)
    each = width / columns
    made = Figure(figsize=(width, rows * (HEIGHT * each + 0.15) + 0.55), layout="constrained")
    handles: dict[str, Line2D] = {}
    for place, table in enumerate(tables):
        axes = made.add_subplot(rows, columns, place + 1)
        rows_of = [method for method in methods if method in table.methods]
        scale = value_axis.of_table(table)
        over_length.panel(axes, table, rows_of, known, scale)
        _floor_above(axes, table, scale)
        _title(axes, table, width / columns)
        axes.set_ylabel(table.label)
        axes.set_xlabel("length (x trained, tokens)")
        handles |= {str(handle.get_label()): handle for handle in over_length.handles_of(table, rows_of, known, scale)}
    longest = max(map(len, handles)) * 0.6 * mpl.rcParams["font.size"] / 72 + 0.55
    made.legend(
        handles=[*handles.values()],
        loc="outside lower center",
        ncols=max(1, min(len(handles), int(width / longest))),
        frameon=False,
    )
    return made


def ranked(tables: Sequence[Table], width: float, highlight: Collection[str] = ()) -> Figure:
    """Dots with intervals at the longest length with a value, the best method at the top; a panel for each table.

    A method without a value there stands below the others, as a word. A value beyond twice the distance of the middle
    one from the best, and beyond the baseline, has an arrow instead of a dot. A grey line stands at the baseline, and a
    dotted one at the floor, where the axis reaches it.
    """
    columns = max(1, min(len(tables), int(width / LEAST)))
    rows = -(-len(tables) // columns)
    tall = max(len(table.methods) for table in tables) * 1.35 * mpl.rcParams["font.size"] / 72 + 0.7
    made = Figure(figsize=(width, rows * tall), layout="constrained")
    for place, table in enumerate(tables):
        axes = made.add_subplot(rows, columns, place + 1)
        valued = [record.length for record in table.entries.values() if record.value is not None]
        length = max(valued, default=table.lengths[-1])
        known = looks.looks(table.methods, highlight)
        found = [record for record in table.at(length) if record.value is not None]
        found.sort(key=lambda each: (each.value or 0.0) * (table.better or 1))
        lacking = [method for method in reversed(table.methods) if method not in {each.method for each in found}]
        for height, method in enumerate(lacking):
            word = value_entry(table.entries.get((method, length))).text or "not measured"
            axes.annotate(word, (0.02, height), xycoords=axes.get_yaxis_transform(), va="center", color="0.4")
        edge = _edge(table, found)
        for height, record in enumerate(found, len(lacking)):
            look, value = known[record.method], record.value or 0.0
            low, high = (value if end is None else end for end in (record.low, record.high))
            if (value > edge) if table.better < 0 else (value < edge):
                axes.plot(edge, height, marker=">" if table.better < 0 else "<", color=look.colour, clip_on=False)
                continue
            axes.plot([low, high], [height, height], color=look.colour, linewidth=2.2 if look.front else 1.2)
            face = "white" if look.hollow else look.colour
            axes.plot(
                value, height, marker=SHAPES[look.marker], color=look.colour, markerfacecolor=face, markersize=4.5
            )
            if record.method == BASELINE:
                axes.axvline(value, color="0.75", linewidth=0.8, zorder=0)
        left, right = axes.get_xlim()
        if left <= (level := over_length.floors(table).get(length, math.inf)) <= right:
            axes.axvline(level, zorder=0, **over_length.FLOOR)
        names = [*lacking, *(each.method for each in found)]
        axes.set_yticks(range(len(names)), list(map(str, names)))
        axes.set_ylim(-0.7, len(names) - 0.3)
        axes.grid(axis="y", visible=False)
        _title(axes, table, width / columns)
        axes.set_xlabel(f"{table.label} at {length:,} tokens")
    return made


def _edge(table: Table, found: Sequence[Record]) -> float:
    """The value from which on ranked methods have an arrow, if a side is better; `found` is sorted, the worst first."""
    values = [each.value for each in found if each.value is not None]
    if not values or not table.better:
        return -math.inf
    worst, best = values[0], values[-1]
    edge = best + 2.0 * (float(np.median(values)) - best) if len(values) > 2 else worst
    base = [each.value for each in found if each.method == BASELINE and each.value is not None]
    return max([min(edge, worst), *base]) if table.better < 0 else min([max(edge, worst), *base])
