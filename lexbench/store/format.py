"""The files of a cell: Parquet when it is finished, JSON lines while it is measured."""

import base64
import hashlib
import json
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lexbench.core.errors import ConfigError
from lexbench.core.files import check_regular
from lexbench.core.record import Cell, Sample
from lexbench.core.values import checked_field_values, has_type
from lexbench.store.cell_rows import KNOWN_ROW_KEYS, NEWER_ROW_KEYS, cell_row, read_cell

SAMPLE_COLUMNS = pa.schema(
    [
        pa.field("index", pa.int64(), nullable=False),
        pa.field("cluster", pa.string(), nullable=False),
        pa.field("tokens", pa.int64(), nullable=False),
        pa.field("truncated", pa.bool_(), nullable=False),
        pa.field("failed", pa.string()),
        pa.field("scores", pa.string(), nullable=False),
        pa.field("chance", pa.float64()),
        pa.field("parts", pa.list_(pa.string())),
        pa.field("statistics", pa.string()),
        pa.field("nll", pa.list_(pa.float32())),
        pa.field("bytes", pa.int64()),
        pa.field("words", pa.int64()),
        pa.field("floors", pa.string()),
        pa.field("prompt", pa.string()),
        pa.field("output", pa.string()),
        pa.field("hit_room", pa.bool_()),
        pa.field("depth", pa.float64()),
        pa.field("facts", pa.string(), nullable=False),
        pa.field("question", pa.string()),
        pa.field("checksum", pa.string()),
    ]
)
"""The fields of a sample; `scores`, `floors`, `statistics` and `facts` are JSON. Old files lack later fields."""

MAX_FAST_COMPRESSED_BYTES = 1 << 14
"""Bytes of samples that are compressed fast rather than well: on disk a file takes 4 KiB at least."""

COLUMNS_WITH_REPEATED_VALUES = [name for name in SAMPLE_COLUMNS.names if name != "nll"]
"""Columns that Parquet writes with a dictionary of their values; losses of tokens hardly repeat."""


MAX_COST_AMOUNT = 1e15
"""Largest seconds, tokens and bytes of a cost: more than any machine has."""
COST_KEY = "cost"
"""Key of an unfinished cell's line beside the fields of its sample: seconds, of these for the answer, and tokens."""


@dataclass(frozen=True)
class SampleCost:
    """What one answer has taken."""

    seconds: float
    """Since the answer before it, or since the cell's start."""
    answer_seconds: float
    """Of these, from the request for the answer until it was there."""
    tokens: int
    """Read and written."""


@dataclass(frozen=True, eq=False)
class FinishedCell:
    """A cell with all its samples, or with the reason of its refusal."""

    cell: Cell
    samples: list[Sample]
    refused: str | None = None
    deferred: bool = False
    """The next run measures the cell again."""
    asked: int | None = None
    """Questions that the task asked; None: the file is older than this count."""


def cell_parquet(
    cell: Cell, samples: list[Sample], refused: str | None, deferred: bool = False, asked: int | None = None
) -> bytes:
    """The file of a finished or deferred cell; the same samples give the same bytes."""
    return table_parquet(cell_table(cell, samples, refused, deferred, asked))


def cell_table(
    cell: Cell, samples: list[Sample], refused: str | None, deferred: bool = False, asked: int | None = None
) -> pa.Table:
    """Table in the file of a finished cell, as `read_cell_table` reads it; arguments as in `cell_parquet`."""
    # Without locks on its file system two processes may append one question: the later answer counts.
    once = {sample.index: sample for sample in samples}
    rows = []
    for _, sample in sorted(once.items()):
        row = sample_values(sample)
        rows.append(row | {name: as_json(row[name]) for name in ("scores", "floors", "statistics", "facts")})
    about = {"cell": as_json(cell_row(cell)), "refused": as_json(refused), **({"again": "true"} if deferred else {})}
    if asked is not None:
        about["asked"] = str(asked)
    # All columns at once: `Table.from_pylist` takes twice as long for a small cell.
    table = pa.Table.from_struct_array(pa.array(rows, pa.struct(list(SAMPLE_COLUMNS))))
    about["content"] = _content(table, _rows(table))
    return table.replace_schema_metadata({**about, "digest": _digest(about)})


def table_parquet(table: pa.Table) -> bytes:
    """Bytes of the file that holds a table of `cell_table`."""
    sink = pa.BufferOutputStream()
    # zstd takes a millisecond to begin with the columns.
    compression = "snappy" if table.nbytes < MAX_FAST_COMPRESSED_BYTES else "zstd"
    # Arrow's own form of the schema would hold the metadata once more, in base64.
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression=compression,
        use_dictionary=COLUMNS_WITH_REPEATED_VALUES,
        write_statistics=False,
        write_page_checksum=True,
        store_schema=False,
    ) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(table.schema.metadata)
    return bytes(sink.getvalue())


def read_cell_file(file: Path, table: pa.Table | None = None) -> FinishedCell:
    """Read a finished cell from its file, or from the table in it; ConfigError with the file name if unreadable."""
    try:
        table = read_cell_table(file) if table is None else table
        about = table.schema.metadata or {}
        _check_known_fields(table.column_names, SAMPLE_COLUMNS.names, file)
        held = verified_samples(table)
        return build_finished_cell(
            file, about[b"cell"], about[b"refused"], b"again" in about, question_count(about), held
        )
    except _OtherVersionError:
        raise
    except DAMAGED_FILE_ERRORS as error:  # Arrow raises OSError for a damaged page
        said = _first_sentence(error)
        raise ConfigError(f"cell {file} cannot be read ({said}): delete it, and repeat the run command") from error


def read_cell_table(file: Path) -> pa.Table:
    """The table of a finished cell's file, with checksums verified; raises one of `DAMAGED_FILE_ERRORS`."""
    check_regular(file)
    # One thread: Arrow's own threads abort the process at its end if they hold Python bytes (apache/arrow#34314).
    with pq.ParquetFile(file, pre_buffer=False, page_checksum_verification=True) as stored:
        table = stored.read(use_threads=False)
    about = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
    if about.pop("digest", None) not in (None, _digest(about)):  # None: written before there was a digest
        raise ConfigError("its metadata has changed")
    return table


def _digest(about: Mapping[str, str]) -> str:
    """Checksum of a file's metadata, because Parquet's page checksums do not cover it; of the content's, too."""
    return hashlib.sha256(json.dumps(dict(about), sort_keys=True).encode()).hexdigest()[:16]


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    """Rows of a table without `nll`, of which to_pylist would make a Python float a token."""
    rows: list[dict[str, Any]] = table.drop_columns(["nll"]).to_pylist()
    return rows


def _content(table: pa.Table, rows: Sequence[Mapping[str, Any]]) -> str:
    """Checksum of the samples: the page checksums of another program's file hold for whatever it wrote.

    Args:
        table: with its column `nll`.
        rows: its other columns, by `_rows`.
    """
    found = hashlib.sha256()
    for row, nll in zip(rows, table.column("nll"), strict=True):
        found.update(repr(row).encode(errors="backslashreplace"))
        found.update(b"-" if nll.values is None else np.from_dlpack(nll.values).astype("<f4").tobytes())
    return found.hexdigest()[:16]


def verified_samples(table: pa.Table) -> list[Sample]:
    """Samples of a cell's table.

    Raises one of `DAMAGED_FILE_ERRORS` for a damaged table, or where the samples do not have the checksum that was
    written with them.
    """
    rows, stated = _rows(table), (table.schema.metadata or {}).get(b"content")
    if stated not in (None, _content(table, rows).encode()):  # None: written before there was this checksum
        raise ConfigError("its samples have changed")
    return samples_of_table(table, rows)


def question_count(about: Mapping[bytes, bytes]) -> int | None:
    """Number of questions in a file's metadata; None in older files; ConfigError for what is no number."""
    return int(about[b"asked"]) if b"asked" in about else None


def build_finished_cell(
    file: Path, cell: str | bytes, refused: str | bytes, deferred: bool, asked: int | None, held: list[Sample]
) -> FinishedCell:
    """A finished cell from its samples and the JSON of cell and refusal; raises one of `DAMAGED_FILE_ERRORS`."""
    reason = json.loads(refused)
    if not has_type(reason, str | None):
        raise ConfigError("its refusal must be a text")
    found = _cell(json.loads(cell), file)
    if found.id != file.stem:  # the name is the hash of the identity
        raise ConfigError("its cell does not match its name")
    return FinishedCell(found, held, reason, deferred, asked)


def file_is_settled(file: Path) -> bool:
    """Whether a cell's file exists, is undamaged, and is not deferred."""
    try:
        about = (read_cell_table(file).schema.metadata or {}) if file.exists() else {}
    except DAMAGED_FILE_ERRORS:
        return False
    return b"cell" in about and b"again" not in about


class _OtherVersionError(ConfigError):
    """An undamaged file of another version."""


DAMAGED_FILE_ERRORS = (
    *(pa.ArrowException, OSError, KeyError, ValueError, TypeError, AttributeError, OverflowError, RecursionError),
)
"""Errors that reading a damaged file raises."""


def samples_of_table(table: pa.Table, rows: list[dict[str, Any]] | None = None) -> list[Sample]:
    """Samples from a table with the fields of `SAMPLE_COLUMNS`; raises one of `DAMAGED_FILE_ERRORS`. `rows` are those
    of `_rows`."""
    found = []
    losses = table.column("nll")
    for place, row in enumerate(_rows(table) if rows is None else rows):
        row.update(scores=json.loads(row["scores"]), facts=json.loads(row["facts"]))
        row.update(parts=tuple(row.get("parts") or ()), floors=_parse_json_text(row.get("floors")))
        row.update(statistics=_unpack_arrays(_parse_json_text(row.get("statistics"))))
        nll = losses[place].values
        # Not to_numpy, which imports pandas: 0.3 s.
        row["nll"] = None if nll is None else np.from_dlpack(nll).astype(np.float32)
        found.append(Sample(**checked_field_values(Sample, row, f"sample {place}")))
    return found


def _parse_json_text(text: str | None) -> Any:
    """The value of a text of JSON, an empty object of none; most samples have neither floors nor statistics."""
    return {} if text is None or text in ("", "{}") else json.loads(text)


def _check_known_fields(names: Iterable[str], known: Collection[str], file: Path) -> None:
    """ConfigError for a file with fields that this version does not know."""
    odd = ", ".join(sorted(set(names) - set(known)))
    if odd:
        raise _OtherVersionError(
            f"cell {file} was written by a newer version of lexbench (it has {odd}): use that version"
        )


def _cell(row: Mapping[str, Any], file: Path) -> Cell:
    if isinstance(row, Mapping) and (differing := (row.keys() | NEWER_ROW_KEYS) ^ KNOWN_ROW_KEYS):
        odd = ", ".join(sorted(differing))
        raise _OtherVersionError(
            f"cell {file} was written by another version of lexbench (differs in {odd}): use that version"
        )
    return read_cell(row, "its identity")


def sample_values(sample: Sample) -> dict[str, Any]:
    """The fields of a sample as values that JSON can hold, but for `nll`."""
    row = {field.name: getattr(sample, field.name) for field in fields(sample)}
    more = {"parts": list(sample.parts), "floors": dict(sample.floors), "statistics": _pack_arrays(sample.statistics)}
    return {**row, "scores": dict(sample.scores), "facts": dict(sample.facts), **more}


def _pack_arrays(arrays: Mapping[str, NDArray[np.float32]]) -> dict[str, Any]:
    """Arrays by name: shape, and numbers."""
    return {name: {"shape": list(array.shape), "data": _base64(array)} for name, array in arrays.items()}


def _unpack_arrays(packed: Mapping[str, Any]) -> dict[str, NDArray[np.float32]]:
    return {name: _from_base64(each["data"]).reshape(each["shape"]) for name, each in packed.items()}


def _base64(array: NDArray[np.float32]) -> str:
    """Little-endian float32 on every processor, so that a cell's bytes and hash are the same everywhere."""
    return base64.b64encode(array.astype("<f4").tobytes()).decode()


def _from_base64(text: str) -> NDArray[np.float32]:
    return np.frombuffer(base64.b64decode(text), "<f4").astype(np.float32)


def check_sample(sample: Sample) -> None:
    """AssertionError unless the sample's fields have their types, and can be written: JSON values, whole characters."""
    try:
        checked_field_values(Sample, {field.name: getattr(sample, field.name) for field in fields(sample)}, "a sample")
        as_json({**sample_values(sample), "nll": None})
        assert sample.nll is None or sample.nll.dtype == np.float32, f"nll must be float32, got {sample.nll.dtype}"
        for text in (sample.cluster, sample.failed, sample.output, sample.prompt, *sample.parts):
            (text or "").encode()
    except (*DAMAGED_FILE_ERRORS, UnicodeEncodeError) as error:
        raise AssertionError(str(error)) from error


def cell_line(cell: Cell) -> bytes:
    """The first line of an unfinished cell's file."""
    return as_json(cell_row(cell)).encode() + b"\n"


def sample_line(sample: Sample, cost: SampleCost | None = None) -> bytes:
    """A further line of an unfinished cell's file, with what the sample has taken."""
    row = sample_values(sample)
    if cost is not None:
        row[COST_KEY] = [round(cost.seconds, 6), round(cost.answer_seconds, 6), cost.tokens]
    if sample.nll is not None:
        assert sample.nll.dtype == np.float32, f"nll of {sample.nll.dtype}"
        row["nll"] = _base64(sample.nll)
    return as_json(row).encode() + b"\n"


def parse_cell_line(line: bytes, file: Path) -> Cell:
    """The cell from a first line; ConfigError with the file name, also where that is not the cell's."""
    row = _parse_json_line(line, file)
    try:
        found = _cell(row, file)
    except _OtherVersionError:
        raise
    except DAMAGED_FILE_ERRORS as error:
        raise ConfigError(f"samples {file} cannot be read ({_first_sentence(error)}): delete it, run again") from error
    if found.id != file.stem:
        raise ConfigError(f"samples {file} are of another cell, {found.id}: delete it, run again")
    return found


def parse_sample_line(line: bytes, file: Path) -> Sample:
    """The sample from a further line; ConfigError with the file name."""
    row = _parse_json_line(line, file)
    row.pop(COST_KEY, None)
    _check_known_fields(row, [field.name for field in fields(Sample)], file)
    try:
        row.update(parts=tuple(row.get("parts", ())), statistics=_unpack_arrays(row.get("statistics", {})))
        if row["nll"] is not None:
            row["nll"] = _from_base64(row["nll"])
        return Sample(**checked_field_values(Sample, row, "a sample"))
    except DAMAGED_FILE_ERRORS as error:
        raise ConfigError(
            f"samples {file} hold a wrong line ({_first_sentence(error)}): delete it, run again"
        ) from error


def parse_sample_cost(line: bytes, file: Path) -> tuple[int, SampleCost] | None:
    """Index and cost of the sample in a line that `parse_sample_line` accepts; None where it tells none."""
    row = _parse_json_line(line, file)
    try:
        seconds, waited, tokens = row[COST_KEY]
        numbers = float(seconds), float(waited), int(tokens)
    except (KeyError, ValueError, TypeError, OverflowError):
        return None
    return (row["index"], SampleCost(*numbers)) if all(0 <= each < MAX_COST_AMOUNT for each in numbers) else None


def _first_sentence(error: BaseException) -> str:
    """An error's first sentence in one line, with whole words."""
    return textwrap.shorten(str(error).partition(". ")[0], 80, placeholder=" ...")


def _parse_json_line(line: bytes, file: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(line))
    except (ValueError, TypeError, RecursionError) as error:
        raise ConfigError(f"samples {file} must hold JSON lines: delete it and run the command again") from error


def as_json(value: Any) -> str:
    """JSON in one line, with sorted keys; numpy's numbers and arrays become plain ones."""
    return _ENCODER.encode(value)


def plain_value(value: Any) -> Any:
    """Numpy's numbers and arrays as plain ones, because tasks may put them into facts."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"facts must hold JSON values, got {type(value).__name__} {value!r}")


_ENCODER = json.JSONEncoder(sort_keys=True, default=plain_value)
"""Made once: for each line, it would take as long as the line."""
