"""A comparison as a sheet and as plain data, and the command that prints it."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lexbench.core.errors import ConfigError
from lexbench.core.text import join_first_few
from lexbench.report import formats
from lexbench.report.grid import Grid, Line, difference_entry
from lexbench.report.notes import SAME_ATTENTION_WORDS, difference_notes, note_text
from lexbench.report.sheet import Block, Heading, Paragraph, Remark
from lexbench.report.verdicts import verdict_text
from lexbench.report.wording import format_metric_value, format_p_value, format_ratio, metric_format
from lexbench.stats.compare import Comparison, LengthComparison, TaskComparison, cell_name, compare_runs
from lexbench.stats.intervals import SIGNIFICANCE_LEVEL
from lexbench.stats.metrics import display_factor, display_unit

COMPARISON_LEGEND = f"""\
B minus A over the same questions. Brackets hold 95 % intervals, pairs kept together: of NLL the bootstrap-t over
documents, of answers that are right or wrong recovered variances (MOVER). p: two-sided, by sign flips over
documents or haystacks and a test for skewed differences, after Holm's correction over all lengths and tasks below; *:
up to {SIGNIFICANCE_LEVEL}, and an interval without 0.
"""


def compare_command(
    a: Path, b: Path, *, select_a: Sequence[str] = (), select_b: Sequence[str] = (), as_data: bool = False
) -> str:
    """`lexbench compare`: the text to print."""
    found = compared_runs(a, b, select_a, select_b)
    return formats.as_json(comparison_data(found)) if as_data else comparison_markdown(found)


def compared_runs(
    a: Sequence[Path] | Path,
    b: Sequence[Path] | Path,
    select_a: Sequence[str] = (),
    select_b: Sequence[str] = (),
    only: Collection[str] | None = None,
) -> Comparison:
    """Compare side B with side A as `compare_runs`; ConfigError where no question is the same on both sides, too."""
    found = compare_runs(a, b, select_a, select_b, only)
    reasons = [entry.apart for task in found.tasks for entry in task.entries if entry.found is None]
    if reasons and reasons[0] and len(reasons) == sum(len(task.entries) for task in found.tasks):
        raise ConfigError(f"sides cannot be compared: {note_text(reasons[0])}")
    return found


def comparison_markdown(found: Comparison) -> str:
    """The verdict on each task, with a table by length."""
    changes = [f"{each.name}: A {each.one}, B {each.other}" for each in found.changes]
    sides = [f"A: {found.a}", f"B: {found.b}", *(changes or ["nothing else differs that is recorded"])]
    left = [
        f"Only in {side}: {join_first_few([*map(cell_name, cells)], 3)}."
        for side, cells in (("A", found.only_a), ("B", found.only_b))
        if cells
    ]
    sheet = [
        Heading("B against A", 1),
        *map(Remark, sides),
        Paragraph(COMPARISON_LEGEND),
        *(block for task in found.tasks for block in _section(task)),
        *map(Remark, [*left, *(f"Not readable: {problem}." for problem in found.problems)]),
    ]
    return formats.sheet_markdown(sheet)


def _task_name(task: TaskComparison) -> str:
    return f"{task.task} on {task.corpus}" if task.corpus else task.task


def _section(task: TaskComparison) -> list[Block]:
    """One task: its verdict, its table, its notes."""
    metric = f", {task.metric} ({display_unit(task.metric)})" if task.metric else ""
    seeds = len({entry.seed for entry in task.entries}) > 1
    head = ["length", "A", "B", "B - A", "p (Holm)", "pairs"]
    said = verdict_text(task)
    return [
        Heading(f"{_task_name(task)}{metric}"),
        Paragraph(f"{said[:1].upper()}{said[1:]}.", strong=True),
        Grid(head=head, rows=[_row(task, entry, seeds) for entry in task.entries]),
    ]


def _row(task: TaskComparison, entry: LengthComparison, seeds: bool) -> Line:
    metric, found, notes = task.metric or "", entry.found, list(_notes(entry))
    length = f"{entry.length} ({format_ratio(entry.length / task.trained_length)})" + (
        f" seed {entry.seed}" if seeds else ""
    )
    difference = difference_entry(
        found, metric_format(metric), display_factor(metric), star=entry.significant, notes=notes
    )
    if found is None or found.difference is None:
        return [length, "", "", difference, "", ""]
    values = [format_metric_value(metric, number or 0.0) for number in (found.baseline_value, found.value)]
    if entry.same_attention:
        return [length, *values, SAME_ATTENTION_WORDS, "", str(found.pairs)]
    return [length, *values, difference, format_p_value(found.p_holm or 0.0), str(found.pairs)]


def _notes(entry: LengthComparison) -> Iterator[str]:
    """Notes on a difference."""
    if entry.found is None:
        yield note_text(entry.apart) if entry.apart else "no pairs"
    else:
        if entry.found.limit:
            yield f"cannot be told: {note_text(entry.found.limit)}"
        yield from difference_notes(entry.found, (entry.found.pairs, entry.found.pairs))


def comparison_data(found: Comparison) -> dict[str, Any]:
    """The comparison as plain data; values and differences in the unit of their task."""
    return {
        "a": found.a,
        "b": found.b,
        "level": SIGNIFICANCE_LEVEL,
        "changes": [asdict(each) for each in found.changes],
        "tasks": [
            {
                "task": _task_name(task),
                **{name: getattr(task, name) for name in ("metric", "trained_length")},
                "verdict": verdict_text(task),
                "unit": display_unit(task.metric or ""),
                "could_be_missed": task.smallest,
                "entries": [_entry(task, entry) for entry in task.entries],
            }
            for task in found.tasks
        ],
        "only_a": [*map(cell_name, found.only_a)],
        "only_b": [*map(cell_name, found.only_b)],
        "problems": found.problems,
    }


def _entry(task: TaskComparison, entry: LengthComparison) -> dict[str, Any]:
    row = {"length": entry.length, "seed": entry.seed, "apart": entry.apart and note_text(entry.apart)}
    found = entry.found
    if found is None:
        return row
    names = {"baseline_value": "a_value", "value": "b_value"}
    numbers = {
        names.get(name, name): number for name, number in found.numbers(display_factor(task.metric or "")).items()
    }
    return {**row, "limit": found.limit and note_text(found.limit), **numbers, **found.tests(), **found.counts()}
