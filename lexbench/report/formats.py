"""One writer per format: sheets for a terminal, as Markdown, LaTeX and HTML; rows as CSV; plain data as JSON.

Names and notes are text of unknown origin: every writer escapes them.
"""

import csv as stdlib_csv
import html
import io
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from lexbench.core.text import plain_text, without_control_characters
from lexbench.report.grid import Grid, GridEntry
from lexbench.report.sheet import Block, Figure, Heading, Link, Paragraph, Remark, Sheet

TERMINAL_YELLOW = "\x1b[33m{}\x1b[0m"


def sheet_text(sheet: Sheet, colour: bool = False) -> str:
    """A sheet for a terminal; with `colour` warnings are yellow."""

    def written(block: Block) -> str:
        if isinstance(block, Grid):
            above = [*filter(None, [plain_text(block.title)]), *map(plain_text, block.above)]
            return "\n".join([*above, *([""] if above else []), *_grid_columns(block, plain_text)])
        said = _with_links(block, plain_text, lambda link: plain_text(f"{link.text} ({link.target})"))
        return TERMINAL_YELLOW.format(said) if colour and isinstance(block, Paragraph) and block.warns else said

    return _join_blocks(sheet, written)


def sheet_markdown(sheet: Sheet) -> str:
    """A sheet as Markdown, as GitHub reads it."""

    def written(block: Block) -> str:
        if isinstance(block, Grid):
            return grid_markdown(block)
        if isinstance(block, Figure):
            return f"![{escape_link_text(block.text)}]({block.file})"
        said = _with_links(block, escape_markdown, lambda link: f"[{escape_link_text(link.text)}]({link.target})")
        if isinstance(block, Paragraph):
            return f"> [!WARNING]\n> {said}" if block.warns else f"**{said}**" if block.strong else said
        return f"- {said}" if isinstance(block, Remark) else f"{'#' * block.level} {said}"

    return _join_blocks(sheet, written)


def sheet_latex(sheet: Sheet) -> str:
    """A sheet as LaTeX, without its pictures; the preamble needs \\usepackage{booktabs} and UTF-8."""

    def written(block: Block) -> str:
        if isinstance(block, Grid):
            return "\n".join(grid_latex(block))
        form = "\\section*{{{}}}" if isinstance(block, Heading) else "\\par\\footnotesize {}"
        return form.format(escape_tex(block.text))

    return "% needs \\usepackage{booktabs}\n" + _join_blocks(sheet, written)


def sheet_html(sheet: Sheet) -> str:
    """A sheet as HTML, to stand in the body of a page."""

    def written(block: Block) -> str:
        if isinstance(block, Grid):
            return "\n".join(grid_html(block))
        if isinstance(block, Figure):
            return f'<img src="{escape_html(block.file)}" alt="{escape_html(block.text)}">'
        said = _with_links(
            block, escape_html, lambda link: f'<a href="{escape_html(link.target)}">{escape_html(link.text)}</a>'
        )
        if isinstance(block, Heading):
            return f"<h{block.level}>{said}</h{block.level}>"
        return f"<p><strong>{said}</strong></p>" if isinstance(block, Paragraph) and block.strong else f"<p>{said}</p>"

    return _join_blocks(sheet, written)


PAGE_STYLE_SHEET = """\
:root { color-scheme: light dark; --good: light-dark(#0a6b3d, #6fd39b); --bad: light-dark(#b3261e, #ff8a80); }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 80rem; margin: 1.5rem auto; padding: 0 1rem; }
p { max-width: 60rem; }
h1 + p { font-size: 1.2rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .7rem; text-align: right; vertical-align: top; border-top: 1px solid #8884; }
th { font-weight: normal; }
thead th { border-top: 2px solid; border-bottom: 1px solid; font-weight: bold; vertical-align: bottom; }
th.label { text-align: left; position: sticky; left: 0; background: Canvas; }
td, th.label { white-space: nowrap; }
small, .below { opacity: .75; }
td small { display: block; line-height: 1.2; }
.good { color: var(--good); font-weight: 600; }
.bad { color: var(--bad); font-weight: 600; }
sup { line-height: 0; }
@media (max-width: 40rem) {
  th, td { padding: .2rem .25rem; font-size: .85rem; }
  th.label { white-space: normal; overflow-wrap: anywhere; min-width: 5.3rem; }
  td small { white-space: normal; font-size: .65rem; }
  h1 + p { font-size: 1.05rem; }
}
"""
CONTENT_SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


TONE_OF_SIGN = {1: "good", -1: "bad"}


def html_page(title: str, sheet: Sheet) -> str:
    """A sheet as one page without scripts or outside requests."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{CONTENT_SECURITY_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape_html(title)}</title>\n<style>\n{PAGE_STYLE_SHEET}</style>\n</head>\n<body>\n"
        f"<h1>{escape_html(title)}</h1>\n{sheet_html(sheet)}</body>\n</html>\n"
    )


def _join_blocks(sheet: Sheet, written: Callable[[Block], str]) -> str:
    """Blocks below each other, an empty line between two unless both are remarks."""
    gaps = ["\n" if isinstance(one, Remark) and isinstance(two, Remark) else "\n\n" for one, two in pairwise(sheet)]
    return "".join(
        written(block).rstrip("\n") + gap for block, gap in zip(sheet, [*gaps, "\n"][: len(sheet)], strict=True)
    )


def _with_links(
    block: Heading | Paragraph | Remark | Figure, safe: Callable[[str], str], link: Callable[[Link], str]
) -> str:
    """The text of a block, and its links behind it."""
    links = ", ".join(map(link, block.links)) if isinstance(block, Paragraph) else ""
    return " ".join(filter(None, [safe(block.text), links]))


MARKDOWN_START_PATTERN = re.compile(r"[\\`*|~$&]|<(?=[A-Za-z/!?])|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|(?<=\])\(")
"""Starts of code, emphasis, tags, columns, mathematics, entities and links; `_` inside a word starts nothing, nor does
`<` before a number."""


def escape_markdown(text: object) -> str:
    """`plain_text`, escaped for Markdown; a dollar becomes an entity, because some pages read two of them as
    mathematics."""
    return _escape_markdown(str(text))


@lru_cache(maxsize=1 << 14)  # tables repeat their texts
def _escape_markdown(text: str) -> str:
    return MARKDOWN_START_PATTERN.sub(r"\\\g<0>", plain_text(text)).replace("\\$", "&#36;")


def escape_link_text(text: object) -> str:
    """A text `escape_markdown` for the brackets of a picture or a link."""
    return escape_markdown(text).replace("[", "\\[").replace("]", "\\]")


def grid_markdown(grid: Grid) -> str:
    """Title and lines above where there are any, the table with aligned columns, lines below."""
    above = [f"## {escape_markdown(grid.title)}", "", *_hard_lines(grid.above, escape_markdown)] if grid.title else []
    return "\n".join([*above, *_grid_columns(grid, escape_markdown)]) + "\n"


def _with_marks(entry: GridEntry, safe: Callable[[str], str], best: str = "**{}**", tie: str = "{}≈") -> str:
    """A value with the mark of the best of its column, of a tie with it, and the star of a significant one."""
    form = best if entry.best else tie if entry.level else "{}"
    return form.format(safe(entry.text)) + "*" * entry.star


def _grid_columns(grid: Grid, safe: Callable[[str], str]) -> list[str]:
    """Lines of the table and below it."""
    rows, below = grid.entries_with_notes()

    shown = [[" ".join(filter(None, [_with_marks(entry, safe), rest])) for entry, rest in row] for row in rows]
    lines = markdown_columns([safe(name) for name in grid.head], shown)
    return [*lines, *(["", *_hard_lines(below, safe)[:-1]] if below else [])]


def _hard_lines(lines: Sequence[str], safe: Callable[[str], str]) -> list[str]:
    """Lines below each other, and an empty one; nothing of none."""
    return ["  \n".join(map(safe, lines)), ""] if lines else []


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
        text = _with_marks(entry, escape_tex, r"\textbf{{{}}}", r"{}$^{{\approx}}$")
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
        text = _with_marks(entry, escape_html, "<b>{}</b>", "{}<sup>≈</sup>")
        kind = f' class="{TONE_OF_SIGN[entry.told]}"' if entry.told else ""
        return f"<td{kind}>{text}{f' <small>{escape_html(rest)}</small>' if rest else ''}</td>"

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
