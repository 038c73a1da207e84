"""A comparison as Markdown and as plain data, and the command that prints it."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lexbench.stats.compare import Compared, Comparison, Entry, compare
from lexbench.stats.entries import columns, noted
from lexbench.stats.intervals import LEVEL
from lexbench.stats.wording import change, escaped, plain, scale, several, small, some, unit, value

LEGEND = f"""\
B minus A over the same questions. Brackets hold 95 % intervals over resampled documents or haystacks, pairs kept
together. p: two-sided, by sign flips over documents or haystacks, after Holm's correction over all lengths and tasks
below; `*`: up to {LEVEL}.
"""


def command(
    a: Path, b: Path, *, select_a: Sequence[str] = (), select_b: Sequence[str] = (), as_data: bool = False
) -> str:
    """`lexbench compare`: what it prints."""
    found = compare(a, b, select_a, select_b)
    return json.dumps(as_json(found), indent=1) if as_data else markdown(found)


def markdown(found: Comparison) -> str:
    """The verdict on each task, with a table by length."""
    lines = ["# B against A", "", f"- A: {escaped(found.a)}", f"- B: {escaped(found.b)}"]
    lines += [f"- {escaped(change)}" for change in _differs(found)]
    lines += ["", LEGEND]
    for task in found.tasks:
        lines += _section(task)
    for side, cells in (("A", found.only_a), ("B", found.only_b)):
        if cells:
            lines.append(f"Only in {side}: {escaped(some(cells, 3))}.  ")
    lines += [f"Not readable: {escaped(problem)}.  " for problem in found.problems]
    return "\n".join(lines).rstrip() + "\n"


def _differs(found: Comparison) -> Iterator[str]:
    """In what the sides differ."""
    if not found.changes:
        yield "nothing else differs that is recorded"
    for each in found.changes:
        yield f"{plain(each.name)}: A {plain(each.one)}, B {plain(each.other)}"


def _section(task: Compared) -> list[str]:
    """One task: its verdict, its table, its notes."""
    metric = task.metric or ""
    title = f"## {escaped(task.task)}" + (f", {escaped(metric)} ({unit(metric)})" if metric else "")
    notes: dict[str, int] = {}
    seeds = {entry.seed for entry in task.entries}
    rows = [_row(task, entry, len(seeds) > 1, notes) for entry in task.entries]
    table = columns(["length", "A", "B", "B - A", "p (Holm)", "pairs"], rows)
    below = ["", "  \n".join(noted({escaped(note): mark for note, mark in notes.items()}))] if notes else []
    return [title, "", f"**{escaped(_sentence(task.verdict))}**", "", *table, *below, ""]


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _row(task: Compared, entry: Entry, seeds: bool, notes: dict[str, int]) -> list[str]:
    metric, found = task.metric or "", entry.found
    length = f"{entry.length} ({entry.length / task.trained_length:.3g}x)" + (f" seed {entry.seed}" if seeds else "")
    said = list(_notes(entry))
    marks = [notes.setdefault(note, len(notes) + 1) for note in said]
    behind = f" ({', '.join(map(str, marks))})" if marks else ""
    if found is None or found.difference is None:
        return [length, "", "", f"no pairs{behind}", "", ""]
    values = [value(metric, number or 0.0) for number in (found.baseline_value, found.value)]
    ends = found.interval
    interval = f" [{change(metric, ends.low)}, {change(metric, ends.high)}]" if ends else ""
    star = "*" if entry.significant else ""
    difference = f"{change(metric, found.difference)}{star}{interval}{behind}"
    return [length, *values, difference, small(entry.p_holm or 0.0), str(found.pairs)]


def _notes(entry: Entry) -> Iterator[str]:
    """What a reader must know of a difference."""
    found = entry.found
    if found is None:
        yield entry.apart or "no pairs"
        return
    if found.clusters != found.pairs:
        yield f"{several(found.pairs, 'pair')} in {several(found.clusters, 'cluster')}"
    if found.failed:
        yield f"{several(found.failed, 'pair')} failed on a side"
    if found.truncated:
        yield f"{several(found.truncated, 'pair')} truncated"
    if found.unpaired:
        yield f"{several(found.unpaired, 'question')} that one side lacks, left out"
    if found.interval is None:
        yield "no interval: 1 cluster"


def as_json(found: Comparison) -> dict[str, Any]:
    """All of it as plain data; values and differences in the unit of their task."""
    return {
        "a": found.a,
        "b": found.b,
        "level": LEVEL,
        "changes": [asdict(each) for each in found.changes],
        "tasks": [
            {
                **{name: getattr(task, name) for name in ("task", "metric", "trained_length", "verdict")},
                "unit": unit(task.metric or ""),
                "could_be_missed": task.smallest,
                "entries": [_entry(task, entry) for entry in task.entries],
            }
            for task in found.tasks
        ],
        "only_a": found.only_a,
        "only_b": found.only_b,
        "problems": found.problems,
    }


def _entry(task: Compared, entry: Entry) -> dict[str, Any]:
    row = {"length": entry.length, "seed": entry.seed, "apart": entry.apart}
    found = entry.found
    if found is None:
        return row
    ends = found.interval
    values = {
        "a_value": found.baseline_value,
        "b_value": found.value,
        "difference": found.difference,
        "low": ends.low if ends else None,
        "high": ends.high if ends else None,
    }
    turn = scale(task.metric or "")
    counts = {name: getattr(found, name) for name in ("pairs", "clusters", "failed", "truncated", "unpaired")}
    numbers = {name: None if number is None else turn * number for name, number in values.items()}
    return {**row, **numbers, "p": found.p, "p_holm": entry.p_holm, "significant": entry.significant, **counts}
