"""The table of LongBench's paper: data sets down, buckets of stored length across, and their averages."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lexbench.core.groups import group_by_key
from lexbench.core.method_key import BASELINE_METHOD
from lexbench.core.record import Cell, Record, Sample
from lexbench.report.grid import TRUNCATION_NOTE, Grid, GridEntry, Line, truncated_share
from lexbench.report.notes import unchanged_prompts_sentence
from lexbench.stats.records import records_of
from lexbench.stats.same_attention import attention_forms, unchanged_up_to
from lexbench.store.format import FinishedCell
from lexbench.taskkit.longbench import LONGBENCH_DATASETS, LONGBENCH_E, bucket_names

ALL_EXAMPLES_COLUMN = "all"
"""The column of all examples."""
DATASET_PARAMETERS = ("dataset", "data", "room")
"""Parameters in which the data sets of one table differ."""


@dataclass(frozen=True, eq=False)
class LongBenchTable:
    """One table: a model under a method, at one ceiling."""

    cell: Cell
    """One of the cells, for the fields that all share."""
    rows: Mapping[str, Mapping[str, Record]]
    """Data set to column to the record of its official metric; no columns where it is refused."""
    refused: Mapping[str, str]
    """Data set to the reason why it has no score."""
    ids: frozenset[str]
    """Ids of all cells of the table."""
    tokens_median: float | None = None
    """Median length of prompt and answer over all examples, tokens; None: nothing is measured."""
    unchanged: tuple[int, int, float] = (0, 0, 0.0)
    """Prompts with a factor of their own: those that the method reads as none does; all; and the tokens up to
    which it does (inf: always)."""

    @property
    def e(self) -> bool:
        """Whether the data are LongBench-E's."""
        return bool(self.cell.identity["task"]["e"])

    @property
    def columns(self) -> list[str]:
        """Buckets of LongBench-E, and all examples."""
        return [*(bucket_names() if self.e else []), ALL_EXAMPLES_COLUMN]

    def column_average(self, column: str) -> tuple[float, int]:
        """Mean of a column over its data sets, x 100, each with the same weight; and their number. NaN without any."""
        values = [_points(row[column]) for row in self.rows.values() if column in row]
        return (float(np.mean(values)) if values else float("nan")), len(values)


def longbench_tables(finished: Iterable[FinishedCell]) -> list[LongBenchTable]:
    """The tables of LongBench: one per model, method, length, seed and wording; none of a single data set."""
    ordered = sorted(finished, key=lambda each: (each.cell.model, each.cell.method, each.cell.length, each.cell.id))
    groups = group_by_key(filter(_is_longbench, ordered), _shared_settings).values()
    forms = attention_forms(each.cell for each in ordered)
    return [_longbench_table(group, forms) for group in groups if len({_task(each)["dataset"] for each in group}) > 1]


def _is_longbench(finished: FinishedCell) -> bool:
    task = finished.cell.identity.get("task")
    return isinstance(task, Mapping) and {"dataset", "e", "similarity", "data"} <= task.keys()


def _shared_settings(finished: FinishedCell) -> str:
    """All that the cells of one table share, as text."""
    task = {name: value for name, value in _task(finished).items() if name not in DATASET_PARAMETERS}
    return json.dumps([{**finished.cell.identity, "task": task}, finished.cell.n], sort_keys=True)


def _longbench_table(group: Sequence[FinishedCell], forms: Mapping[str, str]) -> LongBenchTable:
    names = [name for name in LONGBENCH_DATASETS if name in LONGBENCH_E or not group[0].cell.identity["task"]["e"]]
    rows: dict[str, Mapping[str, Record]] = {}
    refused: dict[str, str] = {}
    for each in sorted(group, key=lambda each: names.index(_task(each)["dataset"])):
        name = str(_task(each)["dataset"])
        if each.refused is not None:
            refused.setdefault(name, each.refused)
        else:
            rows[f"{name} ({_task(each)['data']})" if name in rows else name] = dict(_columns(each))
    refused = {name: refused[name] for name in refused if name not in rows}
    cell, samples = group[0].cell, [sample for each in group for sample in each.samples]
    return LongBenchTable(
        cell,
        rows,
        refused,
        frozenset(each.cell.id for each in group),
        tokens_median=float(np.median([sample.tokens for sample in samples])) if samples else None,
        unchanged=_unchanged_prompts(cell, samples, forms.get(cell.id)),
    )


def _unchanged_prompts(cell: Cell, samples: Sequence[Sample], form: str | None) -> tuple[int, int, float]:
    """Prompts as of `LongBenchTable.unchanged`; of none itself no prompt counts."""
    with_factor = [sample for sample in samples if "factor" in sample.facts]
    if form is None or cell.method == BASELINE_METHOD:
        return 0, len(with_factor), 0.0
    up_to = unchanged_up_to(form)
    return sum(sample.tokens <= up_to for sample in with_factor), len(with_factor), up_to


def _task(finished: FinishedCell) -> Mapping[str, Any]:
    task: Mapping[str, Any] = finished.cell.identity["task"]
    return task


def _columns(finished: FinishedCell) -> Iterator[tuple[str, Record]]:
    """Column and record of the official metric."""
    facts = LONGBENCH_DATASETS[_task(finished)["dataset"]]
    for record in records_of(finished):
        if record.metric == facts.metric_name(_task(finished)["similarity"]) and record.value is not None:
            if record.part is None:
                yield ALL_EXAMPLES_COLUMN, record
            elif record.part.startswith(f"{facts.unit} "):
                yield record.part.removeprefix(f"{facts.unit} "), record


def _points(record: Record) -> float:
    assert record.value is not None
    return 100 * record.value


def longbench_grid(layout: LongBenchTable) -> Grid:
    """Scores x 100 with two decimals, as published, and the examples behind each; averages in the last row."""
    names = [name for name in LONGBENCH_DATASETS if name in layout.rows or name in layout.refused]
    names += [name for name in layout.rows if name not in names]
    middle = "" if layout.tokens_median is None else f", median {layout.tokens_median:g}"
    cut = any(record.truncated for row in layout.rows.values() for record in row.values())
    rows: list[Line] = []
    for name in names:
        row = layout.rows.get(name, {})
        rows.append([name, *(_entry(row.get(column), layout.refused.get(name), cut) for column in layout.columns)])
    averages = [layout.column_average(column) for column in layout.columns]
    last = [
        GridEntry(text=f"{mean:.2f}", more=f"of {count}") if count else GridEntry(text="-") for mean, count in averages
    ]
    rows.append(["average", *last])
    cell, sizes = layout.cell, len(LONGBENCH_E) if layout.e else len(LONGBENCH_DATASETS)
    absent = sizes - len([name for name in LONGBENCH_DATASETS if name in layout.rows])
    buckets = " Buckets: words of the whole example, as stored in the data." if layout.e else ""
    below = [f"Official scores x 100; n: examples.{buckets}"]
    if cut:
        below.append(TRUNCATION_NOTE)
    if layout.unchanged[0]:
        below.append(unchanged_prompts_sentence([cell.method], *layout.unchanged))
    below.append("Average: over the data sets of the column, each with the same weight.")
    if absent:
        below.append(f"{absent} of {sizes} data sets have no score: averages do not compare with published ones.")
    return Grid(
        head=["data set", *layout.columns],
        rows=rows,
        title=f"LongBench{'-E' if layout.e else ''}: {cell.model}, {cell.method}",
        above=[
            f"{_prompt_sentence(cell.identity['task'])}; prompt and answer at most {cell.length} tokens{middle}; "
            f"at most {cell.n} examples a data set, seed {cell.seed}."
        ],
        below=below,
    )


def _prompt_sentence(task: Mapping[str, Any]) -> str:
    """Wording, limit and wrapper of the prompts, which all data sets share."""
    parts = ["Our own wording" if task["prompts"] is None else f"Prompts {task['prompts']}"]
    if task.get("limit") is not None:
        parts.append(f"beyond {task['limit']} tokens without their middle")
    if task.get("wrapper") is not None:
        parts.append(f"wrapper {json.dumps(task['wrapper'])} but for few-shot and code")
    return ", ".join(parts)


def _entry(record: Record | None, refused: str | None, cut: bool) -> GridEntry:
    if record is not None:
        share = f" {truncated_share(record)}" if cut else ""
        return GridEntry(text=f"{_points(record):.2f}", more=f"n {record.n}{share}")
    return GridEntry(text="refused", notes=(refused,)) if refused else GridEntry(text="-", more="n 0")


def rows_of(found: Sequence[LongBenchTable]) -> list[dict[str, Any]]:
    """One row per table, data set and column, unrounded; `refused` holds the reason of a data set without a score."""
    rows = []
    for layout in found:
        cell = layout.cell
        about = {"model": cell.model, "method": cell.method, "length": cell.length, "seed": cell.seed, "e": layout.e}
        for name, columns in layout.rows.items():
            for column, record in columns.items():
                value = {"dataset": name, "metric": record.metric, "bucket": column, "value": _points(record)}
                rows.append({**about, **value, "n": record.n, "truncated": record.truncated, "refused": None})
        for name, reason in layout.refused.items():
            nothing = dict.fromkeys(("metric", "bucket", "value", "n", "truncated"))
            rows.append({**about, "dataset": name, **nothing, "refused": reason})
    return rows
