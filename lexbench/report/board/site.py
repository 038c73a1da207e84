"""The board as a static site: index.html, and samples/*.js, one file for each entry that has samples.

The page works from a disk and from any server; it asks for nothing but the samples of the entries that are compared.
"""

import shutil
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from markupsafe import Markup

from lexbench.core.files import write_text
from lexbench.core.version import __version__
from lexbench.report import looks
from lexbench.report.board.audit import Audited, Entry
from lexbench.report.page import data, page, safety, samples
from lexbench.stats import metrics

SCRIPTS = ("elements.js", "charts.js")
"""Of the page."""
MOST = 500
"""Refused cells that the page names."""


def write_site(audited: Audited, out: Path) -> Path:
    """Write the site; the path of its page. The folder's samples are replaced."""
    shutil.rmtree(out / "samples", ignore_errors=True)
    (out / "samples").mkdir(parents=True)
    names = [_name(place, each) for place, each in enumerate(audited.entries)]
    for name, each in zip(names, audited.entries, strict=True):
        if name:
            content = samples.as_json(each.finished).replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
            (out / "samples" / f"{name}.js").write_text(f'lexbenchSamples("{name}", {content});\n', encoding="utf-8")
    write_text(out / "index.html", _rendered(audited, names))
    return out / "index.html"


def _name(place: int, entry: Entry) -> str | None:
    return f"{place}-{entry.finished.cell.id}" if entry.finished.samples else None


def _rendered(audited: Audited, names: Sequence[str | None]) -> str:
    parts = [(files(page.__package__) / name).read_text(encoding="utf-8") for name in SCRIPTS]
    scripts = [*parts, (files(__package__) / "board.js").read_text(encoding="utf-8")]
    style = (files(page.__package__) / "page.css").read_text(encoding="utf-8") + page.hues()
    environment = page.environment(__package__)
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
        policy=Markup(safety.policy(scripts, [style], served=False, scripts_below=True)),
        style=Markup(style),
        scripts=[Markup(script) for script in scripts],
        data=Markup(safety.as_json(columns(audited, names))),
        entries=len(audited.entries),
        marked=sum(marked.values()),
        submissions=shown,
        refused=audited.refused,
        most=MOST,
        version=__version__,
    )


def columns(audited: Audited, names: Sequence[str | None]) -> dict[str, Any]:
    """What the page reads: a column for each field, names as places in lists.

    Args:
        audited: the entries.
        names: of each entry's file in samples/; None where it has no samples.
    """
    entries = audited.entries
    lists: dict[str, dict[str, int]] = {name: {} for name in ("model", "method", "task", "metric", "asked", "note")}

    def place(name: str, value: str) -> int:
        return lists[name].setdefault(value, len(lists[name]))

    rows = [
        {
            "id": each.finished.cell.id,
            "submission": audited.submissions.index(each.submission),
            "model": place("model", each.record.model),
            "method": place("method", each.record.method),
            "task": place("task", each.record.task),
            "metric": place("metric", each.record.metric or ""),
            "asked": place("asked", each.asked),
            "note": place("note", _note(each)) if _note(each) else None,
            "samples": name,
            "length": each.record.length,
            "n": each.record.n,
            **{side: data.rounded(getattr(each.record, side)) for side in ("value", "low", "high")},
        }
        for each, name in zip(entries, names, strict=True)
    ]
    trained = {each.record.model: each.record.trained_length for each in entries}
    methods = list(lists["method"])
    shapes = [data.look(each) for each in looks.looks(methods).values()]
    fields = ("id", "submission", *lists, "samples", "length", "n", "value", "low", "high")
    return {
        "columns": {field: [row[field] for row in rows] for field in fields},
        "names": {name: list(lists[name]) for name in ("model", "method", "task", "metric")},
        "notes": list(lists["note"]),
        "submissions": [each.name for each in audited.submissions],
        "trained": [trained[model] for model in lists["model"]],
        "better": [metrics.better(metric or None) for metric in lists["metric"]],
        "looks": list(range(len(methods))),
        "shapes": shapes,
    }


def _note(entry: Entry) -> str:
    """Why an entry is not ranked, or was refused by its run."""
    refused = [f"refused: {entry.record.refused}"] if entry.record.refused else []
    return "; ".join([*refused, *entry.marks])
