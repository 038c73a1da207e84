"""What was measured of all models, in one file: records, and each likelihood's change against the trained length.

DIR/measured.parquet    a row a record, `change` and its interval beside it
DIR/models.json         what each model is, and how its training ended
"""

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lexbench.core.files import read_object, write_bytes
from lexbench.core.record import Record
from lexbench.core.values import fits, fitting
from lexbench.stats import records
from lexbench.stats.intervals import cluster_sums
from lexbench.stats.pairs import Outcome, Paired, outcomes, paired
from lexbench.store.format import Finished

ROWS, ABOUT = "measured.parquet", "models.json"


@dataclass(frozen=True)
class Row:
    """One metric of one cell."""

    record: Record
    change: float | None = None
    """Of a likelihood or of resolution: its value minus that at the trained length, over the same questions; None
    where they differ."""
    change_low: float | None = None
    """End of the 95 % interval, over documents."""
    change_high: float | None = None
    documents: Mapping[str, Sequence[float]] | None = None
    """Of a likelihood, by document: nats over all targets, and how many these are."""


PAIRED = ("nll", "resolution")
"""Metrics whose change against the trained length is kept."""


def measured(folders: Iterable[Path], revisions: Mapping[str, str] | None = None) -> list[Row]:
    """All metrics of run folders, by model, task, method and length; parts are left out.

    Args:
        folders: of one suite.
        revisions: the weights of each model, by its name: cells of other weights are left out. Of a model that is not
            named here all cells are taken.

    Raises ValueError where a folder holds two cells of one model, task, method, length and seed.
    """
    found: list[Row] = []
    for folder in folders:
        cells = list(_current(records.load([folder]).finished, revisions or {}))
        _check(cells, folder)
        bases = {_curve(each): each for each in cells if each.cell.length == each.cell.trained_length}
        for each in cells:
            base = bases.get(_curve(each))
            rows = (_row(record, each, base) for record in records.records_of(each))
            found += [row for row in rows if row.record.part is None]
    return sorted(found, key=lambda row: _order(row.record))


def _current(cells: Iterable[Finished], revisions: Mapping[str, str]) -> Iterator[Finished]:
    for each in cells:
        revision = each.cell.identity["model"]["revision"]
        if revisions.get(each.cell.model, revision) == revision:
            yield each


def _check(cells: Iterable[Finished], folder: Path) -> None:
    """A cell is one value of one training: two of them are of two corpora, precisions or such, and no two seeds."""
    known: dict[tuple[object, ...], Finished] = {}
    for each in cells:
        other = known.setdefault((*_curve(each), each.cell.length), each)
        if other is not each:
            one, two = _plain(other.cell.identity), _plain(each.cell.identity)
            odd = [key for key in sorted(one.keys() | two.keys()) if one.get(key) != two.get(key)]
            differ = ", ".join(f"{key} {one.get(key)} and {two.get(key)}" for key in odd[:3])
            raise ValueError(
                f"run folder {folder} must hold one cell of {each.cell.task}, method {each.cell.method}, length "
                f"{each.cell.length}, got two ({differ}): remove that folder, or give another results=DIR"
            )


def _plain(identity: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """`backend.dtype` and such, and their values."""
    found: dict[str, Any] = {}
    for key, value in identity.items():
        found |= _plain(value, f"{above}{key}.") if isinstance(value, Mapping) else {f"{above}{key}": value}
    return found


def _curve(finished: Finished) -> tuple[str, str, str, int]:
    cell = finished.cell
    return cell.model, cell.method, cell.task, cell.seed


def _order(record: Record) -> tuple[str, str, str, int, str]:
    return record.model, record.task, record.method, record.length, record.metric or ""


def _row(record: Record, finished: Finished, base: Finished | None) -> Row:
    if record.metric not in PAIRED:
        return Row(record)
    asked = outcomes(finished.samples, record.metric)
    found = paired(outcomes(base.samples, record.metric), asked, record.metric) if base else Paired()
    low, high = (found.interval.low, found.interval.high) if found.interval else (None, None)
    return Row(record, found.difference, low, high, _documents(asked) if record.metric == "nll" else None)


def _documents(asked: Sequence[Outcome]) -> dict[str, tuple[float, float]]:
    """By document: nats over all targets, and how many these are."""
    known = [(each.amount, each.units, each.cluster) for each in asked if each.amount is not None]
    nats, targets, clusters = zip(*known, strict=True) if known else ((), (), ())
    names, sums = dict.fromkeys(clusters), cluster_sums(nats, targets, clusters)
    return {name: (float(nats), float(targets)) for name, (nats, targets) in zip(names, sums, strict=True)}


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
            raise ValueError(f"folder {folder} has no {name}: give one that `lexbench study` has written")
    try:
        with pq.ParquetFile(folder / ROWS, pre_buffer=False) as stored:
            plain = stored.read(use_threads=False).to_pylist()
        rows = [_row_of(each) for each in plain]
    except (pa.ArrowException, OSError, KeyError, ValueError, RecursionError) as error:
        said = " ".join(str(error).split())[:80]
        raise ValueError(f"{folder / ROWS} cannot be read ({said}): run the suite again") from error
    about = read_object(folder / ABOUT, "run the suite again")
    listed = about.get("models") if fits(about.get("models"), OF_SUITES["models"]) else ()
    for values, kinds in ((about, OF_SUITES), *((model, OF_MODELS) for model in listed or ())):
        for name, kind in kinds.items():
            if not fits(values.get(name), kind):
                raise ValueError(f"{folder / ABOUT} must say {name} of its suite or of each model: run the suite again")
    return rows, about


OF_SUITES: Mapping[str, Any] = {
    "suite": str,
    "recipe": str,
    "trained_length": int,
    "models": Sequence[Mapping[str, Any]],
    "published": Sequence[Mapping[str, Any]],
}
OF_MODELS: Mapping[str, Any] = {
    **dict.fromkeys(("name", "entry", "family"), str),
    "seed": int,
    **dict.fromkeys(("start", "failed", "device"), str | None),
    **dict.fromkeys(("tokens", "parameters"), int | None),
    "seconds": float | None,
}


def _row_of(plain: Mapping[str, Any]) -> Row:
    """A row from its columns; ValueError for a value of another kind."""
    names = {field.name for field in fields(Record)}
    record = Record(**fitting(Record, {key: value for key, value in plain.items() if key in names}, "a record"))
    documents = None if plain["documents"] is None else json.loads(plain["documents"])
    change, low, high = (plain[name] for name in ("change", "change_low", "change_high"))
    if not fits(documents, Mapping[str, Sequence[float]] | None) or not fits(
        [change, low, high], Sequence[float | None]
    ):
        raise ValueError("a record has a wrong change or wrong documents")
    if documents and any(len(pair) != 2 for pair in documents.values()):
        raise ValueError("a document has nats and targets")
    return Row(
        record,
        change,
        low,
        high,
        None if documents is None else {name: tuple(pair) for name, pair in documents.items()},
    )
