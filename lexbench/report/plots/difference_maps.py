"""Paired differences to the baseline as a map: methods down, lengths across, every number in its field."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lexbench.core.method_key import MethodKey
from lexbench.report.looks import name_of
from lexbench.report.notes import SAME_ATTENTION_WORDS, note_text
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
)
from lexbench.report.titles import title_of
from lexbench.report.wording import (
    difference_format,
    direction_phrase,
    format_ratio,
    format_record_value,
    format_signed,
    metric_label,
)
from lexbench.stats.differences import Difference, Differences
from lexbench.stats.intervals import SIGNIFICANCE_LEVEL

WORSE_TO_BETTER_COLOURS = LinearSegmentedColormap.from_list(
    "worse to better", ["#C04E00", "#F3B98C", "#FFFFFF", "#8FC3E4", "#005F9E"]
)
"""Vermilion to blue, which colour-blind readers tell apart; both ends as dark on paper, so the sign is written, too."""
DIRECTIONLESS_COLOURS = "PRGn"
"""Colours of measures without a better direction: purple for less, green for more."""
MIN_COLOUR_LIMIT_OF_UNIT = {"points": 25.0, "nats per token": 0.1}
"""End of the colours, at least: what a sample or two make is pale."""
COLOURED_DIFFERENCE_SHARE = 0.9
"""Share of the differences that lie within the ends of the colours."""
SIGNIFICANCE_NOTE = (
    f"bold and *: significant at {SIGNIFICANCE_LEVEL}, paired, after Holm's correction; pale: not significant"
)
PALE_COLOUR_SHARE = 0.35
"""Share of its colour that a difference has which is not significant; the rest is white."""
ROW_HEIGHT_INCHES, COLUMN_WIDTH_INCHES = 0.2, 0.74
"""Inches of a field."""
LABEL_LINE_CHARACTERS = 44
"""Characters of a line of a method's name; two lines fit a row."""
NUMBER_FILE_COLUMNS = (
    "method", "length", "multiple", "unit", "baseline_value", "value", "difference", "low", "high",
    "p", "p_holm", "significant", "pairs", "clusters", "refused", "apart",
)  # fmt: skip


def plot_difference_map(found: Differences, stem: Path, png: bool = True) -> bool:
    """Draw the figure as stem.svg and stem.png (unless it is not wanted), its numbers as stem.csv.

    False, and none, where nothing could be paired.
    """
    rows = rank_methods(found)
    if found.empty:
        return False
    with mpl.rc_context({**MATPLOTLIB_STYLE, "axes.spines.left": False, "axes.spines.bottom": False}):
        save_figure(_figure(found, rows), stem, png)
    save_numbers(stem, NUMBER_FILE_COLUMNS, _number_rows(found, rows))
    return True


def rank_methods(found: Differences) -> list[MethodKey]:
    """Methods by their difference at the longest length, the best first; by the next shorter one where that is equal.

    Without a difference is last; where neither side is better, methods stay in the table's order.
    """

    def at(method: MethodKey, length: int) -> float:
        each = found.entries.get((method, length))
        return math.inf if each is None or each.difference is None else -found.table.better * each.difference

    others = [method for method in found.table.methods if method != found.baseline]
    if not found.table.better:
        return others
    return sorted(others, key=lambda method: [at(method, length) for length in reversed(found.table.lengths)])


def colour_limit(found: Differences) -> float:
    """Limit of the colour scale: 9 of 10 differences lie within it, a few collapsed methods beyond."""
    sizes = [abs(each.difference) for each in found.entries.values() if each.difference is not None]
    # `higher`: one of the differences, not a value between two. Where nine of ten are 0, the largest ends the colours.
    robust = float(np.quantile(sizes, COLOURED_DIFFERENCE_SHARE, method="higher")) or max(sizes)
    return max(robust, MIN_COLOUR_LIMIT_OF_UNIT.get(found.unit, 0.0)) or 1.0


def difference_colours(found: Differences) -> Colormap:
    """Blue is better and vermilion worse, on whichever side that is."""
    if not found.table.better:
        return mpl.colormaps[DIRECTIONLESS_COLOURS]
    return WORSE_TO_BETTER_COLOURS if found.table.better > 0 else WORSE_TO_BETTER_COLOURS.reversed()


def _figure(found: Differences, rows: Sequence[MethodKey]) -> Figure:
    table, columns = found.table, len(found.table.lengths)
    labels = [
        wrap_name(f"{name_of(found.baseline)}: value", LABEL_LINE_CHARACTERS, 2),
        *(wrap_name(row, LABEL_LINE_CHARACTERS, 2) for row in rows),
    ]
    longest = max(len(line) for label in labels for line in label.split("\n"))
    width = max(4.6, 1.7 + longest * 0.07 + COLUMN_WIDTH_INCHES * columns)
    heading, notes = _heading(found, width), _notes(width)
    lines = 3 + heading.count("\n") + notes.count("\n") + 2  # of the heading, the notes, and the lengths
    size = (width, max(2.4, 0.4 + 0.16 * lines + ROW_HEIGHT_INCHES * len(labels)))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    norm, colours = Normalize(-colour_limit(found), colour_limit(found)), difference_colours(found)
    fields: list[tuple[Field, Any]] = []
    for column, length in enumerate(table.lengths):
        _draw_baseline_value(axes, found, length, column)
        for row, method in enumerate(rows, 1):
            if (method, length) in found.entries:
                colour = _entry(axes, found, found.entries[method, length], (column, row), (norm, colours))
                fields += [((column, row, 1, 1), colour)] if colour is not None else []
    draw_fields(axes, fields)
    _axes(axes, found, labels)
    place_empty_labels([axes])
    figure.supxlabel(notes, fontsize=8)
    figure.suptitle(heading, fontsize=9.5)
    bar = figure.colorbar(
        mpl.cm.ScalarMappable(norm, colours),
        ax=axes,
        extend="both",
        shrink=min(1.0, 2.6 / size[1]),
        anchor=(0.0, 1.0),
        aspect=18,
    )
    bar.outline.set_visible(False)
    bar.set_label(found.unit + direction_phrase(table.metric), fontsize=8)
    bar.ax.tick_params(labelsize=7.5)
    return figure


def _axes(axes: Axes, found: Differences, labels: Sequence[str]) -> None:
    lengths, trained = found.table.lengths, found.table.cell.trained_length
    axes.set_xlim(0, len(lengths))
    axes.set_ylim(len(labels), 0)
    heads = [f"{format_ratio(length / trained)}\n{length}" for length in lengths]
    axes.set_xticks([column + 0.5 for column in range(len(lengths))], heads, fontsize=7.5)
    axes.set_yticks([row + 0.5 for row in range(len(labels))], labels, fontsize=7.5, linespacing=0.9)
    axes.tick_params(length=0)
    axes.axhline(1, color="0.2", linewidth=0.8)
    inside = sum(length <= trained for length in lengths)
    if 0 < inside < len(lengths):
        axes.axvline(inside, color="0.2", linewidth=1.0, linestyle=(0, (4, 3)))


def _draw_baseline_value(axes: Axes, found: Differences, length: int, column: int) -> None:
    """The baseline's own value, without colour."""
    record = found.table.entries.get((found.baseline, length))
    if record is None:
        return
    if record.refused:
        axes.add_patch(Rectangle((column, 0), 1, 1, **REFUSED_CELL_FILL))
        _text(axes, column, 0, "refused", color="0.2", fontsize=6.5, bbox=REFUSED_TEXT_BOX)
    elif record.value is not None:
        text = f"{100 * record.value:.1f}" if found.table.scored else format_record_value(record, record.value)
        _text(axes, column, 0, text, color="0.2", fontsize=7.5)


def _entry(
    axes: Axes, found: Differences, each: Difference, place: tuple[int, int], scale: tuple[Normalize, Colormap]
) -> Any:
    """Write a difference, bold and starred where significant, and give its colour, else pale; hatch a refused one."""
    if each.refused:
        axes.add_patch(Rectangle(place, 1, 1, **REFUSED_CELL_FILL))
        _text(axes, *place, "refused", color="0.2", fontsize=6.5, bbox=REFUSED_TEXT_BOX)
        return None
    if each.difference is None or each.same_attention:
        _text(axes, *place, SAME_ATTENTION_WORDS if each.same_attention else "no pairs", color="0.3", fontsize=6.5)
        return "0.9"
    norm, colours = scale
    share = 1.0 if each.significant else PALE_COLOUR_SHARE
    colour = tuple(1 - share * (1 - part) for part in colours(float(norm(each.difference)))[:3])
    text = f"{format_signed(each.difference, difference_format(found))}{'*' if each.significant else ''}"
    weight = "bold" if each.significant else "normal"
    _text(axes, *place, text, color=text_colour_on(colour), fontsize=7.5, fontweight=weight)
    return colour


def text_colour_on(fill: Sequence[float]) -> str:
    """White or black, whichever stands out more on a colour (relative luminance as in WCAG 2)."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in fill[:3]]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "white" if 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05 else "black"


def _text(axes: Axes, column: int, row: int, text: str, **looks: object) -> None:
    """A centred text that the layout need not measure: there are hundreds."""
    where = {"horizontalalignment": "center", "verticalalignment": "center_baseline", "in_layout": False}
    axes.text(column + 0.5, row + 0.52, text, **where, **looks)  # type: ignore[arg-type]


def _heading(found: Differences, width: float) -> str:
    table = found.table
    lines = [
        *title_of(table).split("\n"),
        f"{metric_label(table.metric, table.cell.task_name)}: method minus {name_of(found.baseline)}, same questions",
    ]
    return "\n".join(wrap_name(line, fitting_characters(width - 0.3, 9.5)) for line in lines)


def _notes(width: float) -> str:
    notes = ("length: multiple of the trained length, tokens; dashed: trained length", SIGNIFICANCE_NOTE)
    return "\n".join(wrap_name(note, fitting_characters(width - 0.3, 8.0)) for note in notes)


def _number_rows(found: Differences, rows: Sequence[MethodKey]) -> Iterator[list[object]]:
    """A line a field, in the order of the map."""
    for method in rows:
        for length in found.table.lengths:
            each = found.entries.get((method, length))
            if each is not None:
                multiple = length / found.table.cell.trained_length
                about = {"multiple": multiple, "unit": found.unit, "apart": each.apart and note_text(each.apart)}
                yield [about[name] if name in about else getattr(each, name) for name in NUMBER_FILE_COLUMNS]
