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

from lexbench.report.grid import Entry, Grid
from lexbench.stats.wording import escaped, plain


def markdown(grid: Grid, safe: Callable[[str], str] = escaped) -> str:
    """Title and lines above where there are any, the table with aligned columns, lines below.

    `safe` escapes; of a table for a terminal it only needs to keep a text on its line.
    """
    rows, below = grid.numbered()

    def shown(entry: Entry, rest: str) -> str:
        text = safe(entry.text)
        text = f"**{text}**" if entry.best else f"{text}≈" if entry.level else text
        text += "*" if entry.star else ""
        return " ".join(filter(None, [text, rest]))

    lines = heading(grid.title, grid.above, safe) if grid.title else []
    lines += columns([safe(name) for name in grid.head], [[shown(*each) for each in row] for row in rows])
    return "\n".join([*lines, *(["", "  \n".join(map(safe, below))] if below else [])]) + "\n"


def aligned(grid: Grid) -> str:
    """The grid as columns of plain text, for a terminal: title, head, rows, lines below; names stay on their line."""
    rows, below = grid.numbered()
    shown = [
        [" ".join(filter(None, [plain(e.text) + "≈" * e.level + "*" * e.star, rest])) for e, rest in row]
        for row in rows
    ]
    lines = [[plain(name) for name in grid.head], *shown]
    widths = [max(len(line[column]) for line in lines) for column in range(len(grid.head))]
    made = [
        "  ".join(
            f"{text:<{width}}" if column < grid.labels else f"{text:>{width}}"
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    return "\n".join([*([plain(grid.title)] if grid.title else []), *map(plain, grid.above), *made, *map(plain, below)])


def heading(title: str, above: Sequence[str], safe: Callable[[str], str] = escaped) -> list[str]:
    """Lines of a Markdown heading and of what is said below it."""
    return [f"## {safe(title)}", "", "  \n".join(map(safe, above)), ""]


def columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
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


def latex(grid: Grid) -> list[str]:
    """Lines of a `table` of booktabs; the preamble needs \\usepackage{booktabs} and UTF-8."""
    rows, below = grid.numbered()

    def shown(entry: Entry, rest: str) -> str:
        text = tex(entry.text)
        text = f"\\textbf{{{text}}}" if entry.best else f"{text}$^{{\\approx}}$" if entry.level else text
        text += "*" if entry.star else ""
        return f"{text} {{\\scriptsize {tex(rest)}}}" if rest else text

    spec = "l" * grid.labels + "r" * (len(grid.head) - grid.labels)
    return [
        *("\\begin{table}", "\\centering\\small", f"\\caption{{{tex(grid.title)}}}"),
        *(f"\\begin{{tabular}}{{{spec}}}", "\\toprule", " & ".join(map(tex, grid.head)) + r" \\", "\\midrule"),
        *(" & ".join(shown(*each) for each in row) + r" \\" for row in rows),
        *("\\bottomrule", "\\end{tabular}", "", "\\footnotesize"),
        *(f"\\par {tex(line)}" for line in [*grid.above, *below]),
        "\\end{table}",
    ]


TEX = {
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


def tex(text: str) -> str:
    """Text in one line of LaTeX."""
    return "".join(TEX.get(letter, letter) for letter in " ".join(text.split()))


def as_html(grid: Grid) -> list[str]:
    """Lines of HTML: heading, lines above, a table that scrolls sideways, lines below."""
    rows, below = grid.numbered()

    def shown(entry: Entry, rest: str) -> str:
        text = html.escape(entry.text)
        text = f"<b>{text}</b>" if entry.best else f"{text}<sup>≈</sup>" if entry.level else text
        text += "*" if entry.star else ""
        return f"<td>{text}{f' <small>{html.escape(rest)}</small>' if rest else ''}</td>"

    def row_of(row: Sequence[tuple[Entry, str]]) -> str:
        labels = (f'<th scope="row" class="label">{html.escape(entry.text)}</th>' for entry, _ in row[: grid.labels])
        return f"<tr>{''.join([*labels, *(shown(*each) for each in row[grid.labels :])])}</tr>"

    kinds = [' class="label"' if place < grid.labels else "" for place in range(len(grid.head))]
    head = (f'<th scope="col"{kind}>{html.escape(name)}</th>' for kind, name in zip(kinds, grid.head, strict=True))
    return [
        f"<h2>{html.escape(grid.title)}</h2>",
        *([f"<p>{_broken(grid.above)}</p>"] if grid.above else []),
        *('<div class="wide" tabindex="0"><table>', f"<thead><tr>{''.join(head)}</tr></thead>", "<tbody>"),
        *map(row_of, rows),
        *("</tbody></table></div>", f'<p class="below">{_broken(below)}</p>'),
    ]


def _broken(lines: Sequence[str]) -> str:
    return "<br>\n".join(map(html.escape, lines))


def csv(rows: Sequence[Mapping[str, Any]], names: Sequence[str] | None = None, *, as_is: bool = False) -> str:
    """Rows as CSV in full precision, with a line of names.

    A column of whole numbers with a gap is written as `512.0`, as pandas does; with `as_is` as `512`. No text
    begins as a formula (`no_formula`).
    """
    if not rows and names is None:
        return ""
    heads = list(names) if names else list(dict.fromkeys(name for row in rows for name in row))
    columns = ([row.get(name) for row in rows] for name in heads)
    stream = io.StringIO()  # the standard library's writer: pandas uses it, too, and takes half a second to import
    writer = stdlib_csv.writer(stream, lineterminator="\n")  # the same bytes on every system
    writer.writerow(map(no_formula, heads))
    writer.writerows(zip(*(_texts(column, as_is) for column in columns), strict=True))
    return stream.getvalue()


FORMULA = re.compile(r"[=+@\t\r]|-(?![\d.]*(?:e[+-]?\d+)?$)")
"""Beginnings of texts that a spreadsheet computes when it opens a CSV file; `-0.5` and `-` are none."""


def no_formula(value: Any) -> Any:
    """A text, which may be anybody's, so that no spreadsheet takes it for a formula: with an apostrophe in front."""
    return f"'{value}" if isinstance(value, str) and FORMULA.match(value) else value


def _texts(column: Sequence[Any], as_is: bool) -> Sequence[Any]:
    """A column without NaN and formulas; whole numbers beside gaps or fractions become fractions."""
    kinds = set(map(type, column))
    if str in kinds:
        column = [no_formula(each) for each in column]
    if float in kinds:
        column = [None if each != each else each for each in column]
    if as_is or int not in kinds or len(kinds) == 1 or not kinds <= {int, float, type(None)}:
        return column
    return [None if each is None else float(each) for each in column]


def as_json(data: Any, *, ascii_only: bool = True) -> str:
    """Plain data as JSON; a number that is not finite is null."""
    return json.dumps(finite(data), indent=1, ensure_ascii=ascii_only, allow_nan=False, default=str)


def finite(value: Any, instead: Callable[[float], str | None] = lambda number: None) -> Any:
    """Plain data in which infinities and NaN, which JSON does not know, are replaced."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {key: finite(each, instead) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each, instead) for each in value]
    return instead(value) if isinstance(value, float) and not math.isfinite(value) else value


def emphasised(text: str) -> str:
    """Markdown's `**`, `*` and backticks as HTML; the rest is escaped."""
    text = re.sub(r"\*\*(\w+)\*\*", r"<b>\1</b>", html.escape(text, quote=False))
    return re.sub(r"`([^`]+)`", r"\1", re.sub(r"\*(\w+)\*", r"<i>\1</i>", text))
