"""Tables: methods down, lengths across, one metric; only cells that differ in nothing else stand in one table."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lexbench.record import Cell, Record
from lexbench.report.records import HEADLINES, LOWER_IS_BETTER, dataframe, records_of
from lexbench.store import Finished, Store

LABELS = {
    "nll": "NLL (nats per token)",
    "perplexity": "perplexity (per token)",
    "bits_per_byte": "bits per byte",
    "word_perplexity": "perplexity per word",
}
Place = tuple[str, int]
"""Row and length."""


@dataclass(frozen=True, eq=False)
class Table:
    """One metric of cells that share everything but method and length."""

    name: str
    """Unique among the tables of a report, fit for a file."""
    setting: str
    """Hash of what the cells share."""
    metric: str | None
    """None: nothing was scored."""
    cell: Cell
    """One of the cells: tells what they share."""
    differs: str
    """What tells it from tables of the same model and task; empty where there are none."""
    entries: dict[Place, Record]
    methods: list[str]
    lengths: list[int]

    @property
    def label(self) -> str:
        """The metric, with its unit."""
        return LABELS.get(self.metric, self.metric) if self.metric else "nothing scored"

    @property
    def rising(self) -> bool:
        """Whether higher is better."""
        return self.metric not in LOWER_IS_BETTER

    def csv(self) -> str:
        """All fields of the records, one line a cell."""
        records = [record for row in self.methods for record in self.of(row)]
        return str(dataframe(records).to_csv(index=False, lineterminator="\n"))

    def of(self, row: str) -> list[Record]:
        """Records of one method, by length."""
        return [self.entries[row, length] for length in self.lengths if (row, length) in self.entries]

    def at(self, length: int) -> list[Record]:
        """Records of one length, by method."""
        return [self.entries[row, length] for row in self.methods if (row, length) in self.entries]


def tables(finished: Iterable[Finished]) -> list[Table]:
    """Tables by model and task; headline metrics first."""
    groups: dict[str, list[Finished]] = {}
    for each in sorted(finished, key=lambda each: (each.cell.model, each.cell.task, each.cell.seed, each.cell.id)):
        groups.setdefault(_setting(each.cell), []).append(each)
    firsts = [group[0].cell for group in groups.values()]
    made = []
    for setting, group in groups.items():
        cell = group[0].cell
        rivals = [other for other in firsts if (other.model, other.task) == (cell.model, cell.task)]
        entries = _placed(group)
        metrics = {record.metric for records in entries.values() for record in records} - {None}
        for metric in sorted(metrics, key=_headline) or [None]:
            name = "-".join(filter(None, [cell.model, cell.task, metric, setting if len(rivals) > 1 else None]))
            made.append(
                Table(
                    name=re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-"),
                    setting=setting,
                    metric=metric,
                    cell=cell,
                    differs=_differences(cell, rivals),
                    entries={place: _of_metric(records, metric) for place, records in entries.items()},
                    methods=sorted({row for row, _ in entries}, key=lambda row: (row.split(" #")[0] != "none", row)),
                    lengths=sorted({length for _, length in entries}),
                )
            )
    return made


def _setting(cell: Cell) -> str:
    """Hash of everything that cells of one table must share: the identity without method and length."""
    shared = {key: value for key, value in cell.identity.items() if key not in ("method", "attention", "length")}
    names = ("model", "task", "protocol", "backend", "dtype", "kernel", "corpus", "n", "seed", "trained_length")
    shown = [getattr(cell, name) for name in names]
    return hashlib.sha256(json.dumps([shared, shown], sort_keys=True).encode()).hexdigest()[:8]


def _placed(group: Sequence[Finished]) -> dict[Place, list[Record]]:
    """Records by row and length; where two cells bear one label, the second has a row of its own."""
    placed: dict[Place, list[Record]] = {}
    for finished in group:
        row, again = finished.cell.method, 1
        while (row, finished.cell.length) in placed:
            again += 1
            row = f"{finished.cell.method} #{again}"
        placed[row, finished.cell.length] = records_of(finished)
    return placed


def _of_metric(records: Sequence[Record], metric: str | None) -> Record:
    return next((record for record in records if record.metric == metric), records[0])


def _headline(metric: str | None) -> tuple[int, str]:
    order = [*LOWER_IS_BETTER, "accuracy"]
    return (order.index(metric) if metric in order else len(order), metric or "")


def _differences(cell: Cell, rivals: Sequence[Cell]) -> str:
    """The parts of the identity in which tables of one model and task differ, as this one has them."""
    parts = [_leaves(other.identity) for other in rivals]
    names = sorted({name for part in parts for name in part} - {"length"})
    odd = [name for name in names if len({part.get(name) for part in parts}) > 1]
    own = _leaves(cell.identity)
    return ", ".join(f"{name} {own.get(name)}" for name in odd if not name.startswith(("method.", "attention")))


def _leaves(value: Any, name: str = "") -> dict[str, str]:
    if not isinstance(value, dict):
        return {name: str(value)}
    found: dict[str, str] = {}
    for key, part in value.items():
        found.update(_leaves(part, f"{name}.{key}" if name else key))
    return found


def caption(table: Table) -> str:
    """What all of the table's cells share: the protocol, and in a second line the rest."""
    cell = table.cell
    corpus = f", corpus {cell.corpus}" if cell.corpus else ""
    own = f"; this table: {table.differs}" if table.differs else ""
    return (
        f"{cell.protocol}\n{cell.n} samples a cell, seed {cell.seed}{corpus}, "
        f"{cell.backend} in {cell.dtype} ({cell.kernel}), trained length {cell.trained_length}{own}"
    )


def heading(table: Table) -> list[str]:
    """The task, the model and the caption above the tables of one setting."""
    protocol, rest = caption(table).split("\n", 1)
    return [f"## {table.cell.task} on {table.cell.model}", "", f"Protocol: {protocol}.  ", f"{rest}.", ""]


def markdown(table: Table) -> str:
    """The table with aligned columns, the best of each column bold, and its notes below."""
    notes: dict[str, int] = {}
    best = {length: _best(table, length) for length in table.lengths}
    rows = [
        [row, *(_entry(table, row, length, best[length], notes) for length in table.lengths)] for row in table.methods
    ]
    lines = aligned(table, rows)
    below = [*(f"({mark}) {text}" for text, mark in notes.items()), *_realised(table)]
    return "\n".join([*lines, "", "  \n".join(below)] if below else lines) + "\n"


def aligned(table: Table, rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table: rows of a label and an entry per length of the table, columns of one width each."""
    head = ["method", *(f"{length} ({length / table.cell.trained_length:.3g}x)" for length in table.lengths)]
    safe = [[label.replace("|", "\\|"), *entries] for label, *entries in rows]
    widths = [max(len(line[column]) for line in [head, *safe]) for column in range(len(head))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return [_line(row, widths) for row in (head, rule, *safe)]


def _line(texts: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = zip(texts, widths, strict=True)
    return f"| {first[0]:<{first[1]}} | " + " | ".join(f"{text:>{width}}" for text, width in others) + " |"


def _best(table: Table, length: int) -> float | None:
    """The best value of a column; None where there are not two different ones."""
    values = {record.value for record in table.at(length) if record.value is not None}
    return None if len(values) < 2 else max(values) if table.rising else min(values)


def _entry(table: Table, row: str, length: int, best: float | None, notes: dict[str, int]) -> str:
    record = table.entries.get((row, length))
    if record is None:
        return ""
    if record.value is None:
        text = "refused" if record.refused else "no value"
    else:
        text = number(record, record.value)
        text = f"**{text}**" if record.value == best else text
        if record.low is not None and record.high is not None:
            text += f" [{number(record, record.low)}, {number(record, record.high)}]"
    marks = [notes.setdefault(note, len(notes) + 1) for note in _notes(record, table.cell.n)]
    return f"{text} ({', '.join(map(str, marks))})" if marks else text


def _notes(record: Record, asked: int) -> Iterator[str]:
    """What a reader must know of a value."""
    likelihood = record.metric in LOWER_IS_BETTER
    samples = record.n + (record.failed if likelihood else 0)
    if record.refused:
        yield f"refused: {' '.join(record.refused.split())}"
        return
    if record.metric is not None and samples != asked:
        yield f"{samples} samples of {asked} asked"
    if record.failed:
        fate = "left out of the value" if likelihood else "counted as 0" if record.metric else "no score"
        yield f"{record.failed} of {samples or asked} samples failed, {fate}"
    if record.truncated:
        yield f"{record.truncated} of {samples or asked} samples truncated"
    if record.value is not None and record.low is None:
        yield f"no interval: {record.clusters} cluster{'s' if record.clusters != 1 else ''}"


def _realised(table: Table) -> Iterator[str]:
    """Realised tokens of the columns whose samples are not all exactly as long as asked."""
    parts = []
    for length in table.lengths:
        low = min((record.tokens_min for record in table.at(length) if record.tokens_min is not None), default=length)
        high = max((record.tokens_max for record in table.at(length) if record.tokens_max is not None), default=length)
        if (low, high) != (length, length):
            parts.append(f"{low} to {high} at {length}")
    if parts:
        yield f"Realised tokens: {', '.join(parts)}."


def number(record: Record, value: float) -> str:
    """A value with as many digits as its metric deserves."""
    if record.metric in ("perplexity", "word_perplexity"):
        return f"{value:.2f}" if value < 100 else f"{value:.0f}" if value < 1e5 else f"{value:.1e}"
    few = record.metric not in LOWER_IS_BETTER and record.n < 100
    return f"{value:.2f}" if few else f"{value:.3f}"


def terminal(measured: Sequence[tuple[Path, Sequence[str]]]) -> str:
    """Headline tables of the named cells of run folders, for a terminal; empty where there are none."""
    wanted: dict[Path, set[str]] = {}
    for folder, ids in measured:
        wanted.setdefault(folder, set()).update(ids)
    finished = {each.cell.id: each for folder, ids in wanted.items() for each in Store(folder).load(ids)}
    every = tables(finished.values())
    shown = []
    for table in every:
        metrics = {other.metric for other in every if other.setting == table.setting}
        if table.metric in HEADLINES or not metrics & set(HEADLINES):
            shown.append(f"{table.cell.task}, {table.label}, {table.cell.model}\n{caption(table)}\n\n{markdown(table)}")
    return "\n".join(shown)
