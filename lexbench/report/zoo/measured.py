"""What was measured of all models, in one file: records, and each likelihood's change against the trained length.

DIR/measured.parquet    a row a record, `change` and its interval beside it
DIR/models.json         what each model is, and how its training ended
"""

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lexbench.files import write_bytes
from lexbench.record import Record
from lexbench.report import records
from lexbench.report.pairs import Paired, outcomes, paired
from lexbench.report.statistics import cluster_sums
from lexbench.store import Finished

ROWS, ABOUT = "measured.parquet", "models.json"


@dataclass(frozen=True)
class Row:
    """One metric of one cell."""

    record: Record
    change: float | None = None
    """Of a likelihood: its value minus that at the trained length, over the same targets; None where they differ."""
    change_low: float | None = None
    """End of the 95 % interval, over documents."""
    change_high: float | None = None
    documents: Mapping[str, Sequence[float]] | None = None
    """Of a likelihood, by document: nats over all targets, and how many these are."""


def measured(folders: Iterable[Path]) -> list[Row]:
    """All metrics of run folders, by model, task, method and length; parts are left out."""
    found: list[Row] = []
    for folder in folders:
        cells = records.load([folder]).finished
        bases = {_curve(each): each for each in cells if each.cell.length == each.cell.trained_length}
        for each in cells:
            base = bases.get(_curve(each))
            rows = (_row(record, each, base) for record in records.records_of(each))
            found += [row for row in rows if row.record.part is None]
    return sorted(found, key=lambda row: _order(row.record))


def _curve(finished: Finished) -> tuple[str, str, str, int]:
    cell = finished.cell
    return cell.model, cell.method, cell.task, cell.seed


def _order(record: Record) -> tuple[str, str, str, int, str]:
    return record.model, record.task, record.method, record.length, record.metric or ""


def _row(record: Record, finished: Finished, base: Finished | None) -> Row:
    if record.metric != "nll":
        return Row(record)
    asked = outcomes(finished.samples, "nll")
    known = [(each.amount, each.units, each.cluster) for each in asked if each.amount is not None]
    nats, targets, clusters = zip(*known, strict=True) if known else ((), (), ())
    names, sums = dict.fromkeys(clusters), cluster_sums(nats, targets, clusters)
    documents = {name: (float(nats), float(targets)) for name, (nats, targets) in zip(names, sums, strict=True)}
    found = paired(outcomes(base.samples, "nll"), asked, "nll") if base else Paired()
    low, high = (found.interval.low, found.interval.high) if found.interval else (None, None)
    return Row(record, found.difference, low, high, documents)


def keep(rows: Sequence[Row], folder: Path) -> None:
    """Replace the folder's file."""
    own = [field.name for field in fields(Row) if field.name not in ("record", "documents")]
    plain = [
        {
            **asdict(row.record),
            **{name: getattr(row, name) for name in own},
            "documents": None if row.documents is None else json.dumps(row.documents),
        }
        for row in rows
    ]
    stream = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(plain), stream, compression="zstd")
    write_bytes(folder / ROWS, stream.getvalue())


def load(folder: Path) -> tuple[list[Row], Mapping[str, Any]]:
    """Rows, and what is known of the models; ValueError where the folder has neither."""
    for name in (ROWS, ABOUT):
        if not (folder / name).is_file():
            raise ValueError(f"folder {folder} has no {name}: give one that `lexbench suite` has written")
    names = {field.name for field in fields(Record)}
    with pq.ParquetFile(folder / ROWS, pre_buffer=False) as stored:
        plain = stored.read(use_threads=False).to_pylist()
    rows = [
        Row(
            Record(**{key: value for key, value in each.items() if key in names}),
            each["change"],
            each["change_low"],
            each["change_high"],
            None if each["documents"] is None else {k: tuple(v) for k, v in json.loads(each["documents"]).items()},
        )
        for each in plain
    ]
    about: Mapping[str, Any] = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    return rows, about
