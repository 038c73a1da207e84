"""A leaderboard as Markdown, CSV, LaTeX, JSON or HTML. Names and notes are others' text: every format escapes them."""

import csv
import html
import io
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from lexbench.report.leaderboard.boards import Board, Column, Entry
from lexbench.report.leaderboard.sections import Leaderboard, Section, Text, sections
from lexbench.stats.entries import columns as aligned


def markdown(page: Leaderboard) -> str:
    """Headings, aligned tables, notes below."""
    lines = [" ".join(page.legend), ""]
    for line in page.missing:
        lines += [f"**{_md(line)}**", ""]
    for section in sections(page):
        lines += [f"## {_md(section.title)}", "", "  \n".join(map(_md, section.lines)), ""]
        rows = [[_md_text(text) for text in row] for row in section.rows]
        labels = [_md(name).replace("|", "&#124;") for name in section.head]
        lines += [*aligned(labels, rows), ""]
        lines += ["  \n".join(map(_md, section.below)), ""] if section.below else []
    return "\n".join(lines).rstrip() + "\n"


def _md_text(text: Text) -> str:
    value = _md(text.value).replace("|", "&#124;")
    value = f"**{value}**" if text.best else f"{value}≈" if text.level else value
    return f"{value} {text.rest}" if text.rest else value


ENTITIES = {ord(letter): f"&#{ord(letter)};" for letter in "&<\\*`$~"}
AT_EDGE = re.compile(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def _md(text: str) -> str:
    """Text that Markdown takes for nothing else; an underscore inside a word is none of its marks."""
    return AT_EDGE.sub("&#95;", " ".join(text.translate(ENTITIES).split())).replace("](", "]&#40;")


def latex(page: Leaderboard) -> str:
    """A `table` of booktabs for each section; the preamble needs \\usepackage{booktabs} and UTF-8."""
    lines = ["% needs \\usepackage{booktabs}", *(f"% {_one_line(line)}" for line in page.missing)]
    for section in sections(page):
        spec = "l" * section.labels + "r" * (len(section.head) - section.labels)
        lines += ["", "\\begin{table}", "\\centering\\small", f"\\caption{{{_tex(section.title)}}}"]
        lines += [f"\\begin{{tabular}}{{{spec}}}", "\\toprule"]
        lines += [" & ".join(map(_tex, section.head)) + r" \\", "\\midrule"]
        lines += [" & ".join(map(_tex_text, row)) + r" \\" for row in section.rows]
        lines += ["\\bottomrule", "\\end{tabular}", ""]
        lines += ["\\footnotesize", *(f"\\par {_tex(line)}" for line in [*section.lines, *section.below])]
        lines += ["\\end{table}"]
    legend = " ".join(re.sub(r"[`*]", "", line) for line in page.legend)
    return "\n".join([*lines, "", f"\\par\\footnotesize {_tex(legend)}"]) + "\n"


def _tex_text(text: Text) -> str:
    value = _tex(text.value)
    value = f"\\textbf{{{value}}}" if text.best else f"{value}$^{{\\approx}}$" if text.level else value
    return f"{value} {{\\scriptsize {_tex(text.rest)}}}" if text.rest else value


TEX = {
    **{letter: f"\\{letter}" for letter in "{}$&%#_"},
    **{"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "≈": "$\\approx$"},
    **{"<": "\\textless{}", ">": "\\textgreater{}", "|": "\\textbar{}", "[": "{[}", "]": "{]}"},
}
"""Brackets, too: after a line's end they would be its argument."""


def _tex(text: str) -> str:
    return "".join(TEX.get(letter, letter) for letter in _one_line(text))


def _one_line(text: str) -> str:
    return " ".join(text.split())


STYLE = """\
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 96rem; margin: 2rem auto; padding: 0 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .15rem .8rem; text-align: right; white-space: nowrap; border-top: 1px solid #8884; }
thead th { border-top: 2px solid; border-bottom: 1px solid; }
th.label { text-align: left; font-weight: normal; }
thead th.label { font-weight: bold; }
small, .below { opacity: .75; }
sup { line-height: 0; }
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page_html(page: Leaderboard) -> str:
    """One page without scripts or outside requests."""
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>lexbench leaderboard</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>Leaderboard</h1>",
        f"<p>{_legend_html(page.legend)}</p>",
        *(f"<p><strong>{html.escape(line)}</strong></p>" for line in page.missing),
    ]
    for section in sections(page):
        parts += [f"<h2>{html.escape(section.title)}</h2>", f"<p>{_lines_html(section.lines)}</p>"]
        parts += ['<div class="wide" tabindex="0"><table>', f"<thead><tr>{_head_html(section)}</tr></thead>", "<tbody>"]
        parts += [f"<tr>{_row_html(row, section.labels)}</tr>" for row in section.rows]
        parts += ["</tbody></table></div>", f'<p class="below">{_lines_html(section.below)}</p>']
    return "\n".join([*parts, "</body>\n</html>\n"])


def _legend_html(legend: Sequence[str]) -> str:
    text = html.escape(" ".join(legend), quote=False)
    text = re.sub(r"\*\*(\w+)\*\*", r"<b>\1</b>", text)
    return re.sub(r"`([^`]+)`", r"\1", re.sub(r"\*(\w+)\*", r"<i>\1</i>", text))


def _lines_html(lines: Sequence[str]) -> str:
    return "<br>\n".join(map(html.escape, lines))


def _head_html(section: Section) -> str:
    kinds = [' class="label"' if place < section.labels else "" for place in range(len(section.head))]
    return "".join(
        f'<th scope="col"{kind}>{html.escape(name)}</th>' for kind, name in zip(kinds, section.head, strict=True)
    )


def _row_html(row: Sequence[Text], labels: int) -> str:
    made = [f'<th scope="row" class="label">{html.escape(text.value)}</th>' for text in row[:labels]]
    for text in row[labels:]:
        value = html.escape(text.value)
        value = f"<b>{value}</b>" if text.best else f"{value}<sup>≈</sup>" if text.level else value
        rest = f" <small>{html.escape(text.rest)}</small>" if text.rest else ""
        made.append(f"<td>{value}{rest}</td>")
    return "".join(made)


def as_json(page: Leaderboard) -> str:
    """The leaderboard as data.

        {"rows": "method", "columns": "length", "unreadable": [line], "unfinished": [line],
         "boards": [{"title", "caption", "corner", "about": {task, metric, label, better, protocol, n, seed, corpus,
                     backend, dtype, kernel, ...}, "remarks": [line], "rows": [name in order],
                     "columns": [{"name", "head", "length", "multiple"}],
                     "entries": [{"row", "column", "shown", "value", "low", "high", "interval", "n", "clusters",
                                  "truncated", "failed", "refused", "best", "level", "p_holm", "notes": [line]}]}],
         "published": [{"name", "source", "secondary", "protocol", "note", "figures": [{as in results/published}]}]}

    An infinite value, a length beyond all that was measured, is null, and `shown` says which: "> 2048". Of
    a summary, n, truncated and failed are of all lengths of its row, and null where it is no sum of samples: a cost.
    """
    boards = [
        {
            "title": board.title,
            "caption": board.caption,
            "corner": board.corner,
            "about": board.about,
            "remarks": board.remarks,
            "rows": board.rows,
            "columns": [asdict(column) for column in board.columns],
            "entries": [_data(row, column.name, entry) for row, column, entry in _in_order(board)],
        }
        for board in page.boards
    ]
    whole = {
        "rows": page.rows,
        "columns": page.columns,
        "unreadable": page.unreadable,
        "unfinished": page.unfinished,
        "boards": boards,
        "published": [asdict(table) for table in page.published],
    }
    return json.dumps(_finite(whole), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _in_order(board: Board) -> Iterator[tuple[str, Column, Entry]]:
    for row in board.rows:
        for column in board.columns:
            if (row, column.name) in board.entries:
                yield row, column, board.entries[row, column.name]


def _data(row: str, column: str, entry: Entry) -> dict[str, Any]:
    known = asdict(entry)
    mark = known.pop("mark")
    for shown_only in ("ends", "cut"):
        known.pop(shown_only)
    return {"row": row, "column": column, **known, **mark}


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


ABOUT = ("task", "model", "method", "metric", "protocol", "n", "seed", "corpus", "backend", "dtype", "kernel")


def as_csv(page: Leaderboard) -> str:
    """One line an entry, in full precision; `kind` is entry, or unreadable or unfinished with the reason in `notes`."""
    fields = ("row", "column", "length", "multiple", "value", "low", "high", "interval", "samples", "clusters")
    more = ("truncated", "failed", "refused", "best", "level", "p_holm", "notes")
    stream = io.StringIO()
    writer = csv.DictWriter(stream, ("kind", "board", *ABOUT, *fields, *more), lineterminator="\n")
    writer.writeheader()
    for board in page.boards:
        about = {name: board.about.get(name) for name in ABOUT}
        for row, column, entry in _in_order(board):
            known = _data(row, column.name, entry)
            known |= {"samples": known.pop("n"), "notes": "; ".join(entry.notes)}
            known.pop("shown")
            own = {"length": column.length, "multiple": column.multiple}
            writer.writerow({"kind": "entry", "board": board.title, **about, **known, **own, board.corner: row})
    for kind, lines in (("unreadable", page.unreadable), ("unfinished", page.unfinished)):
        writer.writerows({"kind": kind, "notes": line} for line in lines)
    return stream.getvalue()


FORMATS: Mapping[str, Callable[[Leaderboard], str]] = {
    "markdown": markdown,
    "csv": as_csv,
    "latex": latex,
    "json": as_json,
    "html": page_html,
}
