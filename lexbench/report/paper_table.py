"""A LaTeX table of headline metrics that fits into a column, made of booktabs alone.

Widths are measured before anything is compiled: with the advances of Computer Modern and of a Times in matplotlib's
fonts, the larger of both, and bold 15 % wider, as cmbx10 is than cmr10. Below 10 points Computer Modern has wider
letters (`WIDTH_FACTORS_OF_SIZE`). The largest size that fits is taken.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType

import matplotlib as mpl
from matplotlib.ft2font import FT2Font, LoadFlags

from lexbench.core.errors import ConfigError
from lexbench.core.method_key import MethodKey
from lexbench.core.record import Record
from lexbench.core.text import plain_text
from lexbench.report import looks
from lexbench.report.formats import escape_tex
from lexbench.report.grid import GridEntry, best_displayed_value, interval_texts, value_entry
from lexbench.report.titles import differences_of, table_caption
from lexbench.report.wording import format_record_value, format_signed, metric_label
from lexbench.stats.differences import Differences
from lexbench.stats.floors import at_floor
from lexbench.stats.intervals import SIGNIFICANCE_LEVEL
from lexbench.stats.summaries import SummaryValue
from lexbench.stats.tables import Table

FONT_SIZE_CHOICES = (
    ("\\small", 9.0, 6.0),
    ("\\small", 9.0, 3.0),
    ("\\footnotesize", 8.0, 3.0),
    ("\\scriptsize", 7.0, 2.0),
)
"""Commands of a 10-point class, their points, and points between a column and its rule (\\tabcolsep)."""
TINY_SIZE = "\\tiny"
"""Command of the size of intervals."""
TINY_FONT_POINTS = 5.0
"""Points of \\tiny."""
POINTS_PER_INCH = 72.27
"""TeX's points in an inch."""
BOLD_WIDTH_FACTOR = 1.15
WIDTH_FACTORS_OF_SIZE = {9.0: (1.028, 1.028), 8.0: (1.063, 1.063), 7.0: (1.139, 1.165), 5.0: (1.362, 1.45)}
"""Widths of the digits of cmr9, cmr8, cmr7 and cmr5, by size in points, as multiples of cmr10's scaled to that size;
and the largest such multiple of all other letters (the fonts' metrics, read by TeX)."""
INTERVAL_PLACES = ("below", "beside", "none")
Star = tuple[str, MethodKey, int]
"""Name of the table, method and length of a starred value."""
MEASURED_FONTS = ("cmr10.ttf", "STIXGeneral.ttf")


def paper_latex(
    tables: Sequence[Table],
    width: float,
    *,
    lengths: Collection[int] = (),
    interval: str = "below",
    digits: int | None = None,
    highlight: Collection[str] = (),
    starred: Collection[Star] = (),
    prices: Mapping[str, Mapping[MethodKey, SummaryValue]] = MappingProxyType({}),
) -> str:
    """A `tabular` at most `width` inches wide: a block for each table, methods down, lengths across, best values bold.

    Args:
        tables: of headline metrics.
        width: inches.
        lengths: tokens; only these columns. None named: all.
        interval: below each value, beside it, or none.
        digits: decimals; None: as in reports.
        highlight: methods to name first, behind the baseline.
        starred: name of the table, method and length of values that a `*` follows.
        prices: of each method by the name of the table (`stats.summaries.method_prices`), a column where one is known.

    Raises ConfigError where even the smallest size is wider.
    """
    known = sorted({length for table in tables for length in table.lengths})
    if odd := sorted(set(lengths) - set(known)):
        raise ConfigError(f"--length {odd[0]} was not measured: choose from {', '.join(map(str, known))}")
    shown = [length for length in known if not lengths or length in lengths]
    models = len({table.cell.model for table in tables})
    priced = any(each.value is not None for found in prices.values() for each in found.values())
    blocks = []
    for table in tables:
        rows = _rows(table, shown, digits, highlight, starred)
        if priced:
            order = looks.order_methods(table.methods, highlight)
            found = prices.get(table.name, {})
            rows = [[*row, _price_cell(found.get(at), digits)] for row, at in zip(rows, order, strict=True)]
        blocks.append((_title(table, models), rows))
    heads = ["method", *(f"{length:,}" for length in shown), *(["price"] if priced else [])]
    needed = 0.0
    for command, points, gap in FONT_SIZE_CHOICES:
        columns = [[cell for _, rows in blocks for row in rows if (cell := row[place])] for place in range(len(heads))]
        sizes = [
            max(text_width_points(head, points), *(_cell_width_points(cell, points, interval) for cell in column))
            for head, column in zip(heads, columns, strict=True)
        ]
        needed = max(
            sum(sizes) + 2 * gap * (len(heads) - 1), *(text_width_points(title, points) for title, _ in blocks)
        )
        if needed <= POINTS_PER_INCH * width:
            return "\n".join(_lines(blocks, heads, command, gap, interval))
    raise ConfigError(
        f"the table is {needed:.0f} points wide at {points:.0f} points, and the column {POINTS_PER_INCH * width:.0f}: "
        "choose fewer lengths (--length), or --interval none"
    )


def _title(table: Table, models: int) -> str:
    """Task, model where there are several, metric with an arrow to its better side, and what tells it from others."""
    label = metric_label(table.metric, table.cell.task_name) + {1: " ↑", -1: " ↓", 0: ""}[table.better]
    parts = (table.cell.task, table.cell.model if models > 1 else "", label, differences_of(table))
    return ", ".join(filter(None, parts))


def text_width_points(text: str, points: float, bold: bool = False) -> float:
    """Points that a text takes, at most, in Computer Modern and Times."""
    digit, other = WIDTH_FACTORS_OF_SIZE.get(points, (1.0, 1.0))
    modern = sum(_advance(MEASURED_FONTS[0], letter) * (digit if letter.isdecimal() else other) for letter in text)
    times = sum(_advance(MEASURED_FONTS[1], letter) for letter in text)
    return max(modern, times) * points * (BOLD_WIDTH_FACTOR if bold else 1.0)


@cache
def _advance(font: str, letter: str) -> float:
    """Advance of a letter, as a share of the font's size."""
    face = _font_face(font)
    if not face.get_char_index(ord(letter)):
        return 1.0  # a letter that the font lacks: as wide as the font is high
    # linearHoriAdvance is in 16.16 fixed point, of a face set to 1000 points.
    return float(face.load_char(ord(letter), flags=LoadFlags.NO_HINTING).linearHoriAdvance) / 65536 / 1000


@cache
def _font_face(font: str) -> FT2Font:
    face = FT2Font(str(Path(mpl.get_data_path()) / "fonts" / "ttf" / font))
    face.set_size(1000, 72)
    return face


def _cell_width_points(cell: GridEntry, points: float, interval: str) -> float:
    value = text_width_points(cell.text + "*" * cell.star, points, cell.best)
    if interval == "below":
        return max(value, text_width_points(cell.interval, TINY_FONT_POINTS))
    return value + (
        text_width_points(f" {cell.interval}", TINY_FONT_POINTS) if interval == "beside" and cell.interval else 0.0
    )


def _rows(
    table: Table,
    lengths: Sequence[int],
    digits: int | None,
    highlight: Collection[str],
    starred: Collection[Star],
) -> list[list[GridEntry]]:
    def text(record: Record, value: float) -> str:
        return format_record_value(record, value) if digits is None else f"{value:.{digits}f}"

    best = {length: best_displayed_value(table.at(length), text) for length in lengths}
    rows = []
    for method in looks.order_methods(table.methods, highlight):
        row = [GridEntry(text=looks.paper_name(method))]
        for length in lengths:
            record = table.entries.get((method, length))
            if record is None or record.value is None:
                row.append(GridEntry(text="--" if record and record.refused else value_entry(record).text))
                continue
            shown = text(record, record.value)
            ends = interval_texts(record.low, record.high, partial(text, record))
            star = (table.name, method, length) in starred
            is_best = shown == best[length] and not at_floor(record)
            row.append(GridEntry(text=shown, ends=ends, best=is_best, star=star))
        rows.append(row)
    return rows


def _price_cell(price: SummaryValue | None, digits: int | None) -> GridEntry:
    """A price in the table's unit, nats or points; empty where there is none."""
    if price is None or price.value is None:
        return GridEntry(text="--" if price else "")
    places = f".{digits}f" if digits is not None else ".1f" if price.unit == "points" else ".3f"
    ends = interval_texts(price.low, price.high, lambda end: format_signed(end, places))
    return GridEntry(text=format_signed(price.value, places), ends=ends)


def significant_places(found: Mapping[str, Differences]) -> set[Star]:
    """The values that differ from the baseline of their table's differences, by the table's name."""
    return {
        (name, *place) for name, each in found.items() for place, entry in each.entries.items() if entry.significant
    }


def floating_table(tabular: str, tables: Sequence[Table], label: str, baseline: MethodKey, priced: bool = False) -> str:
    """A table of `paper_latex` with a caption of at most 60 words; protocols stand above it, as comments.

    Args:
        tabular: of `paper_latex`.
        tables: that it holds.
        label: of LaTeX.
        baseline: method from which the starred ones differ.
        priced: whether it has prices.
    """
    cells = [table.cell for table in tables]
    models, counts, seeds = (
        ", ".join(dict.fromkeys(str(getattr(cell, name)) for cell in cells)) for name in ("model", "n", "seed")
    )
    brackets = "brackets: 95 % intervals; " if TINY_SIZE in tabular else ""
    said = (
        f"{models}: {counts} samples a cell, seed {seeds}, by length in tokens. Bold: best of its column; {brackets}"
        f"*: differs from {looks.paper_name(baseline)} on the same questions, p up to {SIGNIFICANCE_LEVEL} after "
        "Holm's correction. ↓: lower is better, ↑: higher."
        + (" Price: change at the trained length, set as for the longest." if priced else "")
    )
    protocols = dict.fromkeys(
        f"{cell.task}: {' '.join(table_caption(table).split())}" for cell, table in zip(cells, tables, strict=True)
    )
    needs, *rest = tabular.splitlines()
    return "\n".join(
        [
            needs,
            *(f"% {plain_text(each)}" for each in protocols),
            "\\begin{table}[t]",
            "\\centering",
            f"\\caption{{{escape_tex(said)}}}",
            f"\\label{{tab:{label}}}",
            *rest,
            "\\end{table}",
            "",
        ]
    )


def _lines(
    blocks: Sequence[tuple[str, Sequence[Sequence[GridEntry]]]],
    heads: Sequence[str],
    command: str,
    gap: float,
    interval: str,
) -> Iterator[str]:
    yield "% needs \\usepackage{booktabs}"
    yield f"{{{command}\\setlength{{\\tabcolsep}}{{{gap:g}pt}}%"
    yield f"\\begin{{tabular}}{{@{{}}l{'r' * (len(heads) - 1)}@{{}}}}"
    yield "\\toprule"
    yield " & ".join(map(escape_tex, heads)) + " \\\\"
    for title, rows in blocks:
        yield "\\midrule"
        yield f"\\multicolumn{{{len(heads)}}}{{@{{}}l@{{}}}}{{\\textit{{{escape_tex(title)}}}}} \\\\"
        for name, *cells in rows:
            yield " & ".join([escape_tex(name.text), *(_cell_latex(cell, interval) for cell in cells)]) + " \\\\"
            if interval == "below" and any(cell.interval for cell in cells):
                ends = (f"{{\\tiny {escape_tex(cell.interval)}}}" if cell.interval else "" for cell in cells)
                yield " & ".join(["", *ends]) + " \\\\[1pt]"
    yield "\\bottomrule"
    yield "\\end{tabular}}"
    yield ""


def _cell_latex(cell: GridEntry, interval: str) -> str:
    shown = escape_tex(cell.text + "*" * cell.star)
    value = f"\\textbf{{{shown}}}" if cell.best else shown
    return f"{value} {{\\tiny {escape_tex(cell.interval)}}}" if interval == "beside" and cell.interval else value
