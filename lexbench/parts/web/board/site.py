"""The board as a static site: index.html, and samples/*.js, one file for each entry that has samples.

The page works from a disk and from any server; it asks for nothing but the samples of the entries that are compared.
"""

import re
import shutil
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from markupsafe import Markup

from lexbench.core.errors import ConfigError
from lexbench.core.files import write_text
from lexbench.core.groups import group_by_key
from lexbench.core.version import __version__
from lexbench.parts.web.board import matrix
from lexbench.parts.web.board.audit import AuditedBoard, BoardEntry, audit_submissions
from lexbench.parts.web.board.ledger import Submission
from lexbench.parts.web.page import data, page, safety
from lexbench.report import looks
from lexbench.report.leaderboard import best
from lexbench.stats import metrics
from lexbench.stats.same_attention import cell_functions

PAGE_SCRIPTS = ("elements.js", "charts.js")
"""Scripts of the page."""
SAMPLES_SCRIPT_PATTERN = re.compile(r"\d+-[0-9a-f]{16}\.js")
"""Pattern of the names of scripts that hold samples."""
MAX_NAMED_REFUSALS = 500
"""Refused cells that the page names."""


def write_site(ledger: Path, submissions: Sequence[Submission], out: Path) -> tuple[Path, AuditedBoard]:
    """Audit all submissions and write the site; the path of its page. The folder's samples are replaced."""
    page = out / "index.html"
    if page.is_file() and b"<title>lexbench board</title>" not in page.read_bytes()[: 1 << 16]:
        raise ConfigError(f"{page} is not of lexbench board, which would replace it: give another --out")
    samples = out / "samples"
    if samples.exists() and (
        not samples.is_dir() or not all(SAMPLES_SCRIPT_PATTERN.fullmatch(each.name) for each in samples.iterdir())
    ):
        raise ConfigError(f"{samples} is not of lexbench board, which would replace it: give another --out")
    # Samples of a submission that is gone would stay otherwise.
    shutil.rmtree(samples, ignore_errors=True)
    samples.mkdir(parents=True)
    audited = audit_submissions(ledger, submissions, samples)
    write_text(page, _render_board(audited))
    return page, audited


def _render_board(audited: AuditedBoard) -> str:
    parts = [(files(page.__package__) / name).read_text(encoding="utf-8") for name in PAGE_SCRIPTS]
    scripts = [*parts, (files(__package__) / "board.js").read_text(encoding="utf-8")]
    style = (files(page.__package__) / "page.css").read_text(encoding="utf-8") + page.hue_rules()
    environment = page.template_environment(__package__)
    marked = Counter(each.submission.name for each in audited.entries if each.marks)
    refused = Counter(each.submission for each in audited.refused)
    shown = [
        {
            "name": each.name,
            "by": each.by,
            "date": each.date,
            "url": each.url if (each.url or "").startswith("https://") else None,
            "cells": len(each.cells),
            "marked": marked[each.name],
            "refused": refused[each.name],
        }
        for each in audited.submissions
    ]
    return environment.get_template("board.html.jinja").render(
        policy=Markup(safety.security_policy(scripts, [style], served=False, scripts_below=True)),
        style=Markup(style),
        scripts=[Markup(script) for script in scripts],
        data=Markup(safety.script_json(board_columns(audited))),
        models=group_by_key(map(matrix.as_shown, matrix.matrices(audited.entries)), lambda each: each["model"]),
        least=matrix.MIN_SAMPLES,
        width=matrix.CURVE_WIDTH_PIXELS,
        height=matrix.CURVE_HEIGHT_PIXELS,
        few=sum(each.checked.record.n < matrix.MIN_SAMPLES for each in audited.entries),
        entries=len(audited.entries),
        marked=sum(marked.values()),
        submissions=shown,
        refused=audited.refused,
        most=MAX_NAMED_REFUSALS,
        version=__version__,
    )


def board_columns(audited: AuditedBoard) -> dict[str, Any]:
    """Data of the page's script: a column for each field; names are replaced by their places in lists."""
    entries = audited.entries
    numbers = {each.name: number for number, each in enumerate(audited.submissions)}
    lists: dict[str, dict[str, int]] = {name: {} for name in ("model", "method", "task", "metric", "asked", "note")}

    def place(name: str, value: str) -> int:
        return lists[name].setdefault(value, len(lists[name]))

    standing = places(entries)
    rows = [
        {
            "id": each.checked.cell.id,
            "submission": numbers[each.submission.name],
            "model": place("model", each.checked.record.model),
            "method": place("method", str(each.checked.record.method)),
            "task": place("task", each.checked.record.task),
            "metric": place("metric", each.checked.record.metric or ""),
            "asked": place("asked", each.checked.key),
            "note": place("note", _entry_note(each)) if _entry_note(each) else None,
            "refused": int(each.checked.record.refused is not None),
            "samples": each.checked.samples,
            "length": each.checked.record.length,
            "trained": each.checked.record.trained_length,
            "n": each.checked.record.n,
            **{side: data.round_for_charts(getattr(each.checked.record, side)) for side in ("value", "low", "high")},
            "place": standing[number][0],
            "among": standing[number][1],
        }
        for number, each in enumerate(entries)
    ]
    methods = list(dict.fromkeys(each.checked.record.method for each in entries))
    shapes = [data.method_look(each) for each in looks.looks_of_methods(methods).values()]
    fields = (
        "id",
        "submission",
        *lists,
        "refused",
        "samples",
        "length",
        "trained",
        "n",
        "value",
        "low",
        "high",
        "place",
        "among",
    )
    return {
        "columns": {field: [row[field] for row in rows] for field in fields},
        "names": {name: list(lists[name]) for name in ("model", "method", "task", "metric")},
        "notes": list(lists["note"]),
        "submissions": [each.name for each in audited.submissions],
        "folders": [each.folder for each in audited.submissions],
        "better": [metrics.better_direction(metric or None) for metric in lists["metric"]],
        "looks": list(range(len(methods))),
        "shapes": shapes,
    }


def places(entries: Sequence[BoardEntry]) -> list[tuple[str | None, int]]:
    """Place of each entry, `1st`, `tied` or `behind`, among those asked the same, by the paired test; and how many.

    None where it is not ranked, or nothing is told.
    """
    found: list[tuple[str | None, int]] = [(None, 0)] * len(entries)
    ranked = [at for at, each in enumerate(entries) if not each.marks and each.checked.record.value is not None]
    for group in group_by_key(ranked, lambda at: (entries[at].checked.key, entries[at].checked.record.metric)).values():
        shown = {at: entries[at].checked.record for at in group}
        known = cell_functions(entries[at].checked.cell for at in group)
        functions = {at: known[name] for at in group if (name := entries[at].checked.cell.id) in known}
        marks = best.marks_of(shown, {at: [entries[at].checked.outcomes] for at in group}, functions)
        for at, mark in marks.items():
            found[at] = (
                ("1st" if mark.best else "tied" if mark.level else "behind" if mark.behind else None),
                len(group),
            )
    return found


def _entry_note(entry: BoardEntry) -> str:
    """Why an entry is not ranked, or was refused by its run."""
    refused = [f"refused: {entry.checked.record.refused}"] if entry.checked.record.refused else []
    return "; ".join([*refused, *entry.marks])
