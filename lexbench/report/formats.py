"""One writer per format: grids as Markdown, LaTeX and HTML; rows as CSV; plain data as JSON.

Names and notes are text of unknown origin: every writer escapes them.
"""

import csv as stdlib_csv
import html
import io
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lexbench.core.text import plain_text, without_control_characters
from lexbench.report.grid import Grid, GridEntry
from lexbench.report.wording import escape_markdown


def grid_markdown(grid: Grid, safe: Callable[[str], str] = escape_markdown) -> str:
    """Title and lines above where there are any, the table with aligned columns, lines below.

    `safe` escapes; of a table for a terminal it only needs to keep a text on its line.
    """
    rows, below = grid.entries_with_notes()

    def shown(entry: GridEntry, rest: str) -> str:
        text = safe(entry.text)
        text = f"**{text}**" if entry.best else f"{text}≈" if entry.level else text
        text += "*" if entry.star else ""
        return " ".join(filter(None, [text, rest]))

    lines = markdown_heading(grid.title, grid.above, safe) if grid.title else []
    lines += markdown_columns([safe(name) for name in grid.head], [[shown(*each) for each in row] for row in rows])
    return "\n".join([*lines, *(["", "  \n".join(map(safe, below))] if below else [])]) + "\n"


def align_columns(grid: Grid) -> str:
    """The grid as columns of plain text, for a terminal: title, head, rows, lines below; names stay on their line."""
    rows, below = grid.entries_with_notes()
    shown = [
        [" ".join(filter(None, [plain_text(e.text) + "≈" * e.level + "*" * e.star, rest])) for e, rest in row]
        for row in rows
    ]
    lines = [[plain_text(name) for name in grid.head], *shown]
    widths = [max(len(line[column]) for line in lines) for column in range(len(grid.head))]
    made = [
        "  ".join(
            f"{text:<{width}}" if column < grid.labels else f"{text:>{width}}"
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    return "\n".join(
        [
            *([plain_text(grid.title)] if grid.title else []),
            *map(plain_text, grid.above),
            *made,
            *map(plain_text, below),
        ]
    )


def markdown_heading(title: str, above: Sequence[str], safe: Callable[[str], str] = escape_markdown) -> list[str]:
    """Lines of Markdown: a heading, and the lines `above` the table below it."""
    return [f"## {safe(title)}", "", *(["  \n".join(map(safe, above)), ""] if above else [])]


def markdown_columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table: first column aligned left, the others right.

    A column is at least three characters wide: a rule of one, `:`, is no Markdown. A bare `|` is escaped.
    """
    head, *rows = (
        [re.sub(r"(?<!\\)\|", r"\\|", text) if "|" in text else text for text in row] for row in (head, *rows)
    )
    widths = [max(3, *(len(line[column]) for line in [head, *rows])) for column in range(len(head))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return [_line(row, widths) for row in (head, rule, *rows)]


def _line(texts: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = zip(texts, widths, strict=True)
    return f"| {first[0]:<{first[1]}} | " + " | ".join(f"{text:>{width}}" for text, width in others) + " |"


def grid_latex(grid: Grid) -> list[str]:
    """Lines of a `table` of booktabs; the preamble needs \\usepackage{booktabs} and UTF-8."""
    rows, below = grid.entries_with_notes()

    def shown(entry: GridEntry, rest: str) -> str:
        text = escape_tex(entry.text)
        text = f"\\textbf{{{text}}}" if entry.best else f"{text}$^{{\\approx}}$" if entry.level else text
        text += "*" if entry.star else ""
        return f"{text} {{\\scriptsize {escape_tex(rest)}}}" if rest else text

    spec = "l" * grid.labels + "r" * (len(grid.head) - grid.labels)
    return [
        *("\\begin{table}", "\\centering\\small", f"\\caption{{{escape_tex(grid.title)}}}"),
        *(f"\\begin{{tabular}}{{{spec}}}", "\\toprule", " & ".join(map(escape_tex, grid.head)) + r" \\", "\\midrule"),
        *(" & ".join(shown(*each) for each in row) + r" \\" for row in rows),
        *("\\bottomrule", "\\end{tabular}", "", "\\footnotesize"),
        *(f"\\par {escape_tex(line)}" for line in [*grid.above, *below]),
        "\\end{table}",
    ]


TEX_ESCAPES = {
    **{letter: f"\\{letter}" for letter in "{}$&%#_"},
    **{"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "≈": "$\\approx$"},
    **{
        "↓": "$\\downarrow$",
        "↑": "$\\uparrow$",
        "<": "\\textless{}",
        ">": "\\textgreater{}",
        "|": "\\textbar{}",
        "[": "{[}",
        "]": "{]}",
    },
}
"""Escapes. Brackets, too: after the end of a line they would be its argument."""


def escape_tex(text: str) -> str:
    """Text in one line of LaTeX."""
    return "".join(TEX_ESCAPES.get(letter, letter) for letter in " ".join(without_control_characters(text).split()))


def escape_html(text: str) -> str:
    """Text of HTML, without control characters."""
    return html.escape(without_control_characters(text))


def grid_html(grid: Grid) -> list[str]:
    """Lines of HTML: heading, lines above, a table that scrolls sideways, lines below."""
    rows, below = grid.entries_with_notes()

    def shown(entry: GridEntry, rest: str) -> str:
        text = escape_html(entry.text)
        text = f"<b>{text}</b>" if entry.best else f"{text}<sup>≈</sup>" if entry.level else text
        text += "*" if entry.star else ""
        return f"<td>{text}{f' <small>{escape_html(rest)}</small>' if rest else ''}</td>"

    def row_of(row: Sequence[tuple[GridEntry, str]]) -> str:
        labels = (f'<th scope="row" class="label">{escape_html(entry.text)}</th>' for entry, _ in row[: grid.labels])
        return f"<tr>{''.join([*labels, *(shown(*each) for each in row[grid.labels :])])}</tr>"

    kinds = [' class="label"' if place < grid.labels else "" for place in range(len(grid.head))]
    head = (f'<th scope="col"{kind}>{escape_html(name)}</th>' for kind, name in zip(kinds, grid.head, strict=True))
    return [
        f"<h2>{escape_html(grid.title)}</h2>",
        *([f"<p>{_html_lines(grid.above)}</p>"] if grid.above else []),
        *('<div class="wide" tabindex="0"><table>', f"<thead><tr>{''.join(head)}</tr></thead>", "<tbody>"),
        *map(row_of, rows),
        *("</tbody></table></div>", f'<p class="below">{_html_lines(below)}</p>'),
    ]


def _html_lines(lines: Sequence[str]) -> str:
    return "<br>\n".join(map(escape_html, lines))


def rows_as_csv(rows: Sequence[Mapping[str, Any]], names: Sequence[str] | None = None, *, as_is: bool = False) -> str:
    """Rows as CSV in full precision, with a line of names.

    A column of whole numbers with a gap is written as `512.0`, as pandas does; with `as_is` as `512`. No text
    begins as a formula (`csv_value`).
    """
    if not rows and names is None:
        return ""
    heads = list(names) if names else list(dict.fromkeys(name for row in rows for name in row))
    columns = ([row.get(name) for row in rows] for name in heads)
    stream = io.StringIO()  # the standard library's writer: pandas uses it, too, and takes half a second to import
    writer = stdlib_csv.writer(stream, lineterminator="\n")  # the same bytes on every system
    writer.writerow(map(csv_value, heads))
    writer.writerows(zip(*(_column_texts(column, as_is) for column in columns), strict=True))
    return stream.getvalue()


FORMULA_START_PATTERN = re.compile(r"[=+@]|-(?![\d.]*(?:e[+-]?\d+)?$)")
"""Beginnings of texts that a spreadsheet computes when it opens a CSV file; `-0.5` and `-` are none."""


def csv_value(value: Any) -> Any:
    """A value for a row of CSV; a text, which may be anybody's, in one record and as no formula of a spreadsheet.

    Control characters but line feeds, which the writer quotes, become spaces: a bare carriage return ends a record for
    some readers, and the rest of the text would begin the next one. A formula gets an apostrophe in front.
    """
    if not isinstance(value, str):
        return value
    text = "\n".join(map(without_control_characters, value.split("\n")))
    return f"'{text}" if FORMULA_START_PATTERN.match(text.lstrip()) else text


def _column_texts(column: Sequence[Any], as_is: bool) -> Sequence[Any]:
    """A column without NaN and formulas; whole numbers beside gaps or fractions become fractions."""
    kinds = set(map(type, column))
    if str in kinds:
        column = [csv_value(each) for each in column]
    if float in kinds:
        column = [None if each != each else each for each in column]
    if as_is or int not in kinds or len(kinds) == 1 or not kinds <= {int, float, type(None)}:
        return column
    return [None if each is None else float(each) for each in column]


def as_json(data: Any, *, ascii_only: bool = True) -> str:
    """Plain data as JSON; a number that is not finite is null."""
    return json.dumps(replace_infinities(data), indent=1, ensure_ascii=ascii_only, allow_nan=False, default=str)


def replace_infinities(value: Any, instead: Callable[[float], str | None] = lambda number: None) -> Any:
    """Plain data in which infinities and NaN, which JSON does not know, are replaced."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {key: replace_infinities(each, instead) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [replace_infinities(each, instead) for each in value]
    return instead(value) if isinstance(value, float) and not math.isfinite(value) else value


def emphasis_as_html(text: str) -> str:
    """HTML of a line of Markdown: `**word**` bold, `*word*` italic, backticks removed; the rest is escaped."""
    text = re.sub(r"\*\*(\w+)\*\*", r"<b>\1</b>", html.escape(without_control_characters(text), quote=False))
    return re.sub(r"`([^`]+)`", r"\1", re.sub(r"\*(\w+)\*", r"<i>\1</i>", text))
