"""Reads and writes the measured values of all models of a study.

DIR/measured.parquet    a row per record, with its change from the trained length and the interval of that
DIR/models.json         facts of each model and its training
"""

import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lexbench.core.errors import ConfigError
from lexbench.core.files import read_object, write_bytes
from lexbench.core.method_key import MethodKey, key_from
from lexbench.core.record import Record
from lexbench.core.values import fits, fitting
from lexbench.parts.lab.study.settings import Order, Prediction, predicted
from lexbench.stats import records
from lexbench.stats.intervals import Interval, cluster_bootstrap, cluster_sums
from lexbench.stats.pairs import Outcome, Paired, outcomes, paired
from lexbench.store.cell_rows import read_key
from lexbench.store.format import Finished

ROWS, ABOUT = "measured.parquet", "models.json"
STATED_TASK = "stated_task"
"""Column of a task's name and parameters, as JSON."""


Documents = Mapping[str, Sequence[float]]
"""By document: sum of nats over all targets, and number of targets."""


@dataclass(frozen=True)
class Row:
    """One metric of one cell."""

    record: Record
    task: Mapping[str, Any]
    """Name and parameters of the task, as the identity of the cell states them."""
    change: float | None = None
    """For likelihoods and resolution: the value minus that at the trained length, on the same questions; None if the
    questions differ."""
    change_low: float | None = None
    """Lower end of the change's 95 % interval over documents."""
    change_high: float | None = None
    documents: Documents | None = None
    """For likelihoods."""


PAIRED = ("nll", "resolution")
"""Metrics with a change from the trained length."""


def measured(folders: Iterable[Path], revisions: Mapping[str, str] | None = None) -> list[Row]:
    """All metrics of run folders, sorted by model, task, method and length; without parts.

    Args:
        folders: run folders of one study.
        revisions: fingerprint of the weights by model name; cells of other weights are left out. All cells count of a
            model that is not listed.

    Raises ConfigError if a folder holds two cells of the same model, task, method, length and seed.
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


def check_protocols(rows: Iterable[Row], page: Path) -> None:
    """ConfigError for a task with two protocols, such as two versions of `resolution`: a page shows one protocol."""
    known: dict[str, Record] = {}
    for record in (row.record for row in rows if row.record.refused is None):
        other = known.setdefault(record.task, record)
        if other.protocol != record.protocol:
            raise ConfigError(
                f"page {page} must hold one protocol of {record.task}, {other.model} and {record.model} have two "
                f"({other.protocol}; {record.protocol}): measure one of them again, or give another results=DIR"
            )


def _current(cells: Iterable[Finished], revisions: Mapping[str, str]) -> Iterator[Finished]:
    for each in cells:
        revision = each.cell.identity["model"]["revision"]
        if revisions.get(each.cell.model, revision) == revision:
            yield each


def _check(cells: Iterable[Finished], folder: Path) -> None:
    """ConfigError for two cells of one curve and length: they differ in corpus, dtype or the like, not in the seed."""
    known: dict[tuple[object, ...], Finished] = {}
    for each in cells:
        other = known.setdefault((*_curve(each), each.cell.length), each)
        if other is not each:
            one, two = _plain(other.cell.identity), _plain(each.cell.identity)
            odd = [key for key in sorted(one.keys() | two.keys()) if one.get(key) != two.get(key)]
            differ = ", ".join(f"{key} {one.get(key)} and {two.get(key)}" for key in odd[:3])
            raise ConfigError(
                f"run folder {folder} must hold one cell of {each.cell.task}, method {each.cell.method}, length "
                f"{each.cell.length}, got two ({differ}): remove that folder, or give another results=DIR"
            )


def _plain(identity: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """The identity with dotted keys, such as `backend.dtype`."""
    found: dict[str, Any] = {}
    for key, value in identity.items():
        found |= _plain(value, f"{above}{key}.") if isinstance(value, Mapping) else {f"{above}{key}": value}
    return found


def _curve(finished: Finished) -> tuple[str, MethodKey, str, int]:
    cell = finished.cell
    return cell.model, cell.method, cell.task, cell.seed


def _order(record: Record) -> tuple[str, str, MethodKey, int, str]:
    return record.model, record.task, record.method, record.length, record.metric or ""


def _row(record: Record, finished: Finished, base: Finished | None) -> Row:
    stated = finished.cell.identity.get("task")
    task = stated if isinstance(stated, Mapping) else {"name": finished.cell.task_name}
    if record.metric not in PAIRED:
        return Row(record, task)
    own = outcomes(finished.samples, record.metric)
    before = outcomes(base.samples, record.metric) if base else []
    found = paired(before, own, record.metric) if base else Paired()
    documents = _documents(own) if record.metric == "nll" else None
    change, interval = found.difference, found.interval
    if documents is not None and found.unlike is not None:  # windows of other lengths, over the same tokens
        change, interval = document_difference(_documents(before), documents, exact=True) or (None, None)
    low, high = (interval.low, interval.high) if interval else (None, None)
    return Row(record, task, change, low, high, documents)


def document_difference(left: Documents, right: Documents, exact: bool = False) -> tuple[float, Interval | None] | None:
    """Difference right - left in nats per target and its interval, paired by document.

    Documents count whose numbers of targets are equal; None without one, and with `exact` unless all of them count.
    """
    shared = [name for name in left if right.get(name, (0, 0))[1] == left[name][1]]
    if not shared or (exact and not len(shared) == len(left) == len(right)):
        return None
    gaps = [right[name][0] - left[name][0] for name in shared]
    targets = [left[name][1] for name in shared]
    return math.fsum(gaps) / math.fsum(targets), cluster_bootstrap(gaps, targets, shared)


def _documents(found: Sequence[Outcome]) -> dict[str, tuple[float, float]]:
    """By document: sum of nats over all targets, and number of targets."""
    known = [(each.amount, each.units, each.cluster) for each in found if each.amount is not None]
    nats, targets, clusters = zip(*known, strict=True) if known else ((), (), ())
    names, sums = dict.fromkeys(clusters), cluster_sums(nats, targets, clusters)
    return {name: (float(nats), float(targets)) for name, (nats, targets) in zip(names, sums, strict=True)}


def keep(rows: Sequence[Row], folder: Path) -> None:
    """Write the rows into the folder's file."""
    own = [field.name for field in fields(Row) if field.name not in ("record", "task", "documents")]
    plain = [
        {
            **row.record.as_row(),
            **{name: getattr(row, name) for name in own},
            STATED_TASK: json.dumps(row.task),
            "documents": None if row.documents is None else json.dumps(row.documents),
        }
        for row in rows
    ]
    stream = io.BytesIO()
    # Few texts repeat, and no number: without a dictionary the file is a quarter smaller.
    pq.write_table(pa.Table.from_pylist(plain), stream, compression="zstd", compression_level=19, use_dictionary=False)
    write_bytes(folder / ROWS, stream.getvalue())


def load(folder: Path) -> tuple[list[Row], Mapping[str, Any]]:
    """Rows and facts of the models; ConfigError if a file is missing or malformed."""
    for name in (ROWS, ABOUT):
        if not (folder / name).is_file():
            raise ConfigError(f"folder {folder} has no {name}: give a page folder of `lexbench study`")
    try:
        # One thread, as in `lexbench.store.format`: Arrow's own may abort the process at its end.
        with pq.ParquetFile(folder / ROWS, pre_buffer=False) as stored:
            plain = stored.read(use_threads=False).to_pylist()
        rows = [_row_of(each) for each in plain]
    except (pa.ArrowException, OSError, KeyError, ValueError, RecursionError) as error:
        said = " ".join(str(error).split())[:80]
        raise ConfigError(f"{folder / ROWS} cannot be read ({said}): run the study again") from error
    about = read_object(folder / ABOUT, "run the study again")
    listed = about.get("models") if fits(about.get("models"), OF_STUDIES["models"]) else ()
    for values, kinds in ((about, OF_STUDIES), *((model, OF_MODELS) for model in listed or ())):
        for name, kind in kinds.items():
            if not fits(values.get(name), kind):
                raise ConfigError(f"{folder / ABOUT} lacks {name} of the study or of a model: run the study again")
    try:
        own: dict[str, list[Any]] = {
            name: predicted(kind, about.get(f"{name}s"), name) for name, kind in STATED.items()
        }
    except ValueError as error:
        raise ConfigError(f"{folder / ABOUT}: {error}") from error
    return rows, {**about, **{f"{name}s": each for name, each in own.items()}}


STATED: Mapping[str, type] = {"prediction": Prediction, "order": Order}
OF_STUDIES: Mapping[str, Any] = {
    "study": str,
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


def _task_of(plain: Mapping[str, Any]) -> Mapping[str, Any]:
    """The task of a row; files of earlier versions hold its label alone."""
    if plain.get(STATED_TASK) is None:
        key = key_from(str(plain["task"]))
        return {"name": key.bare, **dict(key.parts[-1][1])}
    task: Mapping[str, Any] = json.loads(plain[STATED_TASK])
    if not fits(task, Mapping[str, Any]) or not isinstance(task.get("name"), str):
        raise ConfigError("a record has a task without a name")
    return task


def _row_of(plain: Mapping[str, Any]) -> Row:
    """A row from its columns; ConfigError for a value of another type."""
    names = {field.name for field in fields(Record)}
    known = {key: value for key, value in plain.items() if key in names}
    known["method"] = read_key(str(plain["method"]), None, None)
    record = Record(**fitting(Record, known, "a record"))
    documents = None if plain["documents"] is None else json.loads(plain["documents"])
    change, low, high = (plain[name] for name in ("change", "change_low", "change_high"))
    if not fits(documents, Mapping[str, Sequence[float]] | None) or not fits(
        [change, low, high], Sequence[float | None]
    ):
        raise ConfigError("a record has a wrong change or wrong documents")
    if documents and any(len(pair) != 2 for pair in documents.values()):
        raise ConfigError("a document must have nats and targets")
    return Row(
        record,
        _task_of(plain),
        change,
        low,
        high,
        None if documents is None else {name: tuple(pair) for name, pair in documents.items()},
    )
