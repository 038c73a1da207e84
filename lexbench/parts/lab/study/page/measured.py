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
from lexbench.core.method_key import MethodKey, parse_label
from lexbench.core.record import Record
from lexbench.core.values import checked_field_values, has_type
from lexbench.parts.lab.study.settings import PredictedOrder, Prediction, read_predictions
from lexbench.stats import records
from lexbench.stats.intervals import Interval, cluster_bootstrap, cluster_sums
from lexbench.stats.metrics import is_token_loss
from lexbench.stats.pairs import Outcome, PairedDifference, outcomes_of_samples, paired_difference
from lexbench.store.cell_rows import read_key
from lexbench.store.format import FinishedCell

ROWS_FILE_NAME, MODELS_FILE_NAME = "measured.parquet", "models.json"
STATED_TASK = "stated_task"
"""Column of a task's name and parameters, as JSON."""


Documents = Mapping[str, Sequence[float]]
"""Sum of nats over all targets, and number of targets, by document."""


@dataclass(frozen=True)
class MeasuredRow:
    """Record of one metric of one cell, with what the page of a study needs beside it."""

    record: Record
    task: Mapping[str, Any]
    """Name and parameters of the task, as the identity of the cell states them."""
    change: float | None = None
    """Change: the value minus that at the trained length on the same questions, for likelihoods and resolution; None if
    the questions differ."""
    change_low: float | None = None
    """Lower end of the change's 95 % interval over documents."""
    change_high: float | None = None
    documents: Documents | None = None
    """Nats and targets by document, for likelihoods."""


METRICS_WITH_CHANGE = ("nll", "resolution")
"""Metrics with a change from the trained length."""


def measured_rows(folders: Iterable[Path], revisions: Mapping[str, str] | None = None) -> list[MeasuredRow]:
    """All metrics of run folders, sorted by model, task, method and length; without parts.

    Args:
        folders: run folders of one study.
        revisions: fingerprint of the weights by model name; cells of other weights are left out. All cells count of a
            model that is not listed.

    Raises ConfigError if a folder holds two cells of the same model, task, method, length and seed.
    """
    found: list[MeasuredRow] = []
    for folder in folders:
        cells = list(_current_cells(records.load_cells([folder]).finished, revisions or {}))
        _refuse_duplicate_cells(cells, folder)
        bases = {_curve_key(each): each for each in cells if each.cell.length == each.cell.trained_length}
        for each in cells:
            base = bases.get(_curve_key(each))
            rows = (_build_row(record, each, base) for record in records.records_of(each))
            found += [row for row in rows if row.record.part is None]
    return sorted(found, key=lambda row: _record_sort_key(row.record))


def check_protocols(rows: Iterable[MeasuredRow], page: Path) -> None:
    """ConfigError for a task with two protocols, such as two versions of `resolution`: a page shows one protocol."""
    known: dict[str, Record] = {}
    for record in (row.record for row in rows if row.record.refused is None):
        other = known.setdefault(record.task, record)
        if other.protocol != record.protocol:
            raise ConfigError(
                f"page {page} must hold one protocol of {record.task}, {other.model} and {record.model} have two "
                f"({other.protocol}; {record.protocol}): measure one of them again, or give another results=DIR"
            )


def _current_cells(cells: Iterable[FinishedCell], revisions: Mapping[str, str]) -> Iterator[FinishedCell]:
    for each in cells:
        revision = each.cell.identity["model"]["revision"]
        if revisions.get(each.cell.model, revision) == revision:
            yield each


def _refuse_duplicate_cells(cells: Iterable[FinishedCell], folder: Path) -> None:
    """ConfigError for two cells of one curve and length: they differ in corpus, dtype or the like, not in the seed."""
    known: dict[tuple[object, ...], FinishedCell] = {}
    for each in cells:
        other = known.setdefault((*_curve_key(each), each.cell.length), each)
        if other is not each:
            one, two = _dotted_identity(other.cell.identity), _dotted_identity(each.cell.identity)
            odd = [key for key in sorted(one.keys() | two.keys()) if one.get(key) != two.get(key)]
            differ = ", ".join(f"{key} {one.get(key)} and {two.get(key)}" for key in odd[:3])
            raise ConfigError(
                f"run folder {folder} must hold one cell of {each.cell.task}, method {each.cell.method}, length "
                f"{each.cell.length}, got two ({differ}): remove that folder, or give another results=DIR"
            )


def _dotted_identity(identity: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """The identity with dotted keys, such as `backend.dtype`."""
    found: dict[str, Any] = {}
    for key, value in identity.items():
        found |= _dotted_identity(value, f"{above}{key}.") if isinstance(value, Mapping) else {f"{above}{key}": value}
    return found


def _curve_key(finished: FinishedCell) -> tuple[str, MethodKey, str, int]:
    cell = finished.cell
    return cell.model, cell.method, cell.task, cell.seed


def _record_sort_key(record: Record) -> tuple[str, str, MethodKey, int, str]:
    return record.model, record.task, record.method, record.length, record.metric or ""


def _build_row(record: Record, finished: FinishedCell, base: FinishedCell | None) -> MeasuredRow:
    stated = finished.cell.identity.get("task")
    task = stated if isinstance(stated, Mapping) else {"name": finished.cell.task_name}
    if record.metric not in METRICS_WITH_CHANGE:
        return MeasuredRow(record, task)
    own = outcomes_of_samples(finished.samples, record.metric)
    before = outcomes_of_samples(base.samples, record.metric) if base else []
    found = paired_difference(before, own, record.metric) if base else PairedDifference()
    documents = _nats_by_document(own) if is_token_loss(record.metric) else None
    change, interval = found.difference, found.interval
    if documents is not None and found.first_mismatch is not None:  # windows of other lengths, over the same tokens
        change, interval = document_difference(_nats_by_document(before), documents, exact=True) or (None, None)
    low, high = (interval.low, interval.high) if interval else (None, None)
    return MeasuredRow(record, task, change, low, high, documents)


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


def _nats_by_document(found: Sequence[Outcome]) -> dict[str, tuple[float, float]]:
    """Sum of nats over all targets, and number of targets, by document."""
    known = [(each.amount, each.units, each.cluster) for each in found if each.amount is not None]
    nats, targets, clusters = zip(*known, strict=True) if known else ((), (), ())
    names, sums = dict.fromkeys(clusters), cluster_sums(nats, targets, clusters)
    return {name: (float(nats), float(targets)) for name, (nats, targets) in zip(names, sums, strict=True)}


def write_rows(rows: Sequence[MeasuredRow], folder: Path) -> None:
    """Write the rows into the folder's file."""
    own = [field.name for field in fields(MeasuredRow) if field.name not in ("record", "task", "documents")]
    plain = [
        {
            **row.record.as_row(),
            **{name: getattr(row, name) for name in own},
            STATED_TASK: json.dumps(row.task),
            "documents": None if row.documents is None else _documents_text(row.documents),
        }
        for row in rows
    ]
    stream = io.BytesIO()
    # Few texts repeat, and no number: without a dictionary the file is a quarter smaller.
    pq.write_table(pa.Table.from_pylist(plain), stream, compression="zstd", compression_level=19, use_dictionary=False)
    write_bytes(folder / ROWS_FILE_NAME, stream.getvalue())


def _documents_text(documents: Documents) -> str:
    """JSON of nats and targets by document; nats with the seven digits that their float32 terms have."""
    return json.dumps({name: (float(f"{nats:.7g}"), targets) for name, (nats, targets) in documents.items()})


def read_page_data(folder: Path) -> tuple[list[MeasuredRow], Mapping[str, Any]]:
    """Rows and facts of the models; ConfigError if a file is missing or malformed."""
    for name in (ROWS_FILE_NAME, MODELS_FILE_NAME):
        if not (folder / name).is_file():
            raise ConfigError(f"folder {folder} has no {name}: give a page folder of `lexbench study`")
    try:
        # One thread, as in `lexbench.store.format`: Arrow's own may abort the process at its end.
        with pq.ParquetFile(folder / ROWS_FILE_NAME, pre_buffer=False) as stored:
            plain = stored.read(use_threads=False).to_pylist()
        rows = [_row_of(each) for each in plain]
    except (pa.ArrowException, OSError, KeyError, ValueError, RecursionError) as error:
        said = " ".join(str(error).split())[:80]
        raise ConfigError(f"{folder / ROWS_FILE_NAME} cannot be read ({said}): run the study again") from error
    about = read_object(folder / MODELS_FILE_NAME, "run the study again")
    listed = about.get("models") if has_type(about.get("models"), STUDY_FACT_TYPES["models"]) else ()
    for values, kinds in ((about, STUDY_FACT_TYPES), *((model, MODEL_FACT_TYPES) for model in listed or ())):
        for name, kind in kinds.items():
            if not has_type(values.get(name), kind):
                raise ConfigError(
                    f"{folder / MODELS_FILE_NAME} lacks {name} of the study or of a model: run the study again"
                )
    try:
        own: dict[str, list[Any]] = {
            name: read_predictions(kind, about.get(f"{name}s"), name) for name, kind in CLASS_OF_STATEMENT.items()
        }
    except ValueError as error:
        raise ConfigError(f"{folder / MODELS_FILE_NAME}: {error}") from error
    return rows, {**about, **{f"{name}s": each for name, each in own.items()}}


CLASS_OF_STATEMENT: Mapping[str, type] = {"prediction": Prediction, "order": PredictedOrder}
STUDY_FACT_TYPES: Mapping[str, Any] = {
    "study": str,
    "recipe": str,
    "trained_length": int,
    "models": Sequence[Mapping[str, Any]],
    "published": Sequence[Mapping[str, Any]],
}
MODEL_FACT_TYPES: Mapping[str, Any] = {
    **dict.fromkeys(("name", "entry", "family"), str),
    "seed": int,
    **dict.fromkeys(("start", "failed", "device"), str | None),
    **dict.fromkeys(("tokens", "parameters"), int | None),
    "seconds": float | None,
}


def _task_of(plain: Mapping[str, Any]) -> Mapping[str, Any]:
    """The task of a row; files of earlier versions hold its label alone."""
    if plain.get(STATED_TASK) is None:
        key = parse_label(str(plain["task"]))
        return {"name": key.bare, **dict(key.parts[-1][1])}
    task: Mapping[str, Any] = json.loads(plain[STATED_TASK])
    if not has_type(task, Mapping[str, Any]) or not isinstance(task.get("name"), str):
        raise ConfigError("a record has a task without a name")
    return task


def _row_of(plain: Mapping[str, Any]) -> MeasuredRow:
    """A row from its columns; ConfigError for a value of another type."""
    names = {field.name for field in fields(Record)}
    known = {key: value for key, value in plain.items() if key in names}
    known["method"] = read_key(str(plain["method"]), None, None)
    record = Record(**checked_field_values(Record, known, "a record"))
    documents = None if plain["documents"] is None else json.loads(plain["documents"])
    change, low, high = (plain[name] for name in ("change", "change_low", "change_high"))
    if not has_type(documents, Mapping[str, Sequence[float]] | None) or not has_type(
        [change, low, high], Sequence[float | None]
    ):
        raise ConfigError("a record has a wrong change or wrong documents")
    if documents and any(len(pair) != 2 for pair in documents.values()):
        raise ConfigError("a document must have nats and targets")
    return MeasuredRow(
        record,
        _task_of(plain),
        change,
        low,
        high,
        None if documents is None else {name: tuple(pair) for name, pair in documents.items()},
    )
