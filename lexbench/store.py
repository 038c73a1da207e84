"""A run folder: what a run measured, and nothing that it could not compute again from it.

    DIR/cells/<cell id>.parquet   a finished cell: a row per sample, the cell and its refusal in the schema's metadata
    DIR/cells/<cell id>.jsonl     an unfinished one: the cell in the first line, then a sample a line
    DIR/records.jsonl             derived from all finished cells
    DIR/costs.jsonl               seconds, tokens and memory: apart, so that the rest is the same on every run

Cells are named by the hash of their identity, so methods, tasks and processes may share a folder. A file is replaced
whole or appended a line at a time; whatever kills a process leaves at most one torn line, which `resume` cuts. Who
measures a cell holds a lock on its .jsonl (`claimed`), which ends with the process.
"""

import base64
import errno
import fcntl
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lexbench.files import write_bytes, write_text
from lexbench.kinds import fits, fitting
from lexbench.record import Cell, Record, Sample

COLUMNS = pa.schema(
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
        pa.field("prompt", pa.string()),
        pa.field("output", pa.string()),
        pa.field("hit_room", pa.bool_()),
        pa.field("depth", pa.float64()),
        pa.field("facts", pa.string(), nullable=False),
    ]
)
"""A sample's fields; `scores`, `statistics` and `facts` are JSON. Files of older versions lack the later ones."""


@dataclass(frozen=True, eq=False)
class Finished:
    """A cell with all its samples, or with the reason why it has none."""

    cell: Cell
    samples: list[Sample]
    refused: str | None = None
    again: bool = False
    """It was put off: there is no answer yet, and the next run asks."""


class Store:
    """One run folder. Nothing is written before there is something to write; OSError (a full disk) rises."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.problems: list[str] = []
        """What `load` and `unfinished` could not read, one line each, since the last `load`."""

    def finished(self, cell: Cell) -> bool:
        """Whether the cell is measured, or refused for good, in a file that can be read."""
        return _settled(self._file(cell, "parquet"))

    @contextmanager
    def claimed(self, cell: Cell, wait: bool = False) -> Iterator[bool]:
        """Whether the cell is this process's alone inside the block; with `wait`, it is, once others have let go of it.

        Where the file system knows no locks, everybody's claim holds.
        """
        file = self._file(cell, "jsonl")
        file.parent.mkdir(parents=True, exist_ok=True)
        while True:
            with file.open("ab") as held:
                mine = _locked(held.fileno(), wait)
                if mine and not _is_at(held.fileno(), file):
                    continue  # it was finished or given up, and removed, while we waited
                try:
                    yield mine
                finally:
                    if mine and file.exists() and file.stat().st_size == 0:
                        file.unlink(missing_ok=True)  # nothing came of it
                return

    def adopt(self, cell: Cell, twin: Cell) -> bool:
        """Finish a cell with the samples of a finished one that asked the same; whether that one has any."""
        found = self.load({twin.id})
        if not found or found[0].refused is not None:
            return False
        self._close(cell, found[0].samples, None)
        return True

    def resume(self, cell: Cell) -> list[Sample]:
        """Samples that an interrupted run left, in the order in which they were measured; a torn line is cut off."""
        file = self._file(cell, "jsonl")
        if not file.exists():
            return []
        content = file.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            with file.open("r+b") as stream:
                stream.truncate(whole)
        return [_sample(_parsed(line, file), file) for line in content[:whole].splitlines()[1:]]

    def append(self, cell: Cell, sample: Sample) -> None:
        """Keep one sample of an unfinished cell, as soon as it is measured."""
        file = self._file(cell, "jsonl")
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("ab") as stream:
            if stream.tell() == 0:
                stream.write(_json(_cell_row(cell)).encode() + b"\n")
            stream.write(_json(_sample_row(sample)).encode() + b"\n")

    def finish(self, cell: Cell) -> None:
        """The samples appended so far are all: they become the cell's one file."""
        self._close(cell, self.resume(cell), None)

    def refuse(self, cell: Cell, reason: str) -> None:
        """The cell has no honest answer; samples that it has already are dropped."""
        self._close(cell, [], reason)

    def put_off(self, cell: Cell, reason: str) -> None:
        """The cell has no answer now: it counts as refused until a run finishes it, and keeps the samples it has."""
        self._write(cell, _parquet(cell, [], reason, again=True))

    def cost(self, cell: Cell, seconds: float, tokens: int, peak_bytes: int | None, own_peak: bool = False) -> None:
        """What measuring took, this time; `own_peak`: the peak is counted from the cell's start, not the process's.

        `peak_bytes` is None where the memory is another process's.
        """
        row = {"cell": cell.id, "seconds": round(seconds, 3), "tokens": tokens, "peak_bytes": peak_bytes}
        row["own_peak"] = own_peak
        with (self.folder / "costs.jsonl").open("ab") as stream:
            stream.write(_json(row).encode() + b"\n")

    def load(self, ids: Collection[str] | None = None) -> list[Finished]:
        """Finished cells, all or those of the ids, sorted by id; files that cannot be read go to `problems`."""
        self.problems = []
        found = []
        for file in sorted((self.folder / "cells").glob("*.parquet")):
            if ids is None or file.stem in ids:
                try:
                    found.append(_finished(file))
                except ValueError as error:
                    self.problems.append(str(error))
        return found

    def unfinished(self) -> list[Cell]:
        """Cells that a run began and did not finish, sorted by id; what cannot be read goes to `problems`."""
        left = []
        for file in sorted((self.folder / "cells").glob("*.jsonl")):
            try:
                with file.open("rb") as stream:
                    head = stream.readline()
            except FileNotFoundError:  # finished at this moment
                continue
            except OSError as error:  # a folder, a loop of links, no permission
                self.problems.append(f"samples {file} cannot be read ({error.strerror}): remove it")
                continue
            if head.endswith(b"\n") and not file.with_suffix(".parquet").exists():
                try:
                    left.append(_cell(_parsed(head, file), file))
                except ValueError as error:
                    self.problems.append(str(error))
        return left

    def write_records(self, records_of: Callable[[Finished], Iterable[Record]], afresh: bool = False) -> None:
        """Replace records.jsonl by the records of all finished cells, one process at a time.

        Cells whose files are not younger than records.jsonl keep their lines, unless all are to be made `afresh`. Also
        clears away what a process killed at the end of a cell has left of it.
        """
        cells = self.folder / "cells"
        cells.mkdir(parents=True, exist_ok=True)
        held = os.open(cells, os.O_RDONLY)
        try:
            _locked(held, wait=True)
            for file in cells.glob("*.jsonl"):
                if _settled(file.with_suffix(".parquet")):
                    file.unlink(missing_ok=True)
            kept = {} if afresh else self._derived()
            self.problems = []
            new = (record for finished in self.load(self._ids() - kept.keys()) for record in records_of(finished))
            rows = [*map(asdict, new), *(row for rows in kept.values() for row in rows)]
            lines = (f"{_json(row)}\n" for row in sorted(rows, key=_order))
            write_text(self.folder / "records.jsonl", "".join(lines))
        finally:
            os.close(held)

    def _ids(self) -> set[str]:
        return {file.stem for file in (self.folder / "cells").glob("*.parquet")}

    def _derived(self) -> dict[str, list[dict[str, Any]]]:
        """Lines of records.jsonl by cell, where they are still those of the cell's file; a refusal may be lifted."""
        file = self.folder / "records.jsonl"
        found: dict[str, list[dict[str, Any]]] = {}
        try:
            written = file.stat().st_mtime_ns
            for line in file.read_text(encoding="utf-8").splitlines():
                row = dict(json.loads(line))
                found.setdefault(str(row["cell"]), []).append(row)
            files = os.scandir(self.folder / "cells")
            young = {each.name for each in files if each.stat().st_mtime_ns >= written}
            rows = {name: each for name, each in found.items() if f"{name}.parquet" not in young}
            known = {field.name for field in fields(Record)}
            whole = [name for name, each in rows.items() if all(row.keys() == known for row in each)]
            there = self._ids() - {name for name in whole if any(row["refused"] for row in rows[name])}
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return {}
        return {name: rows[name] for name in whole if name in there}

    def write_text(self, name: str, content: str) -> None:
        """Replace a text file of the folder."""
        write_text(self.folder / name, content)

    def _file(self, cell: Cell, suffix: str) -> Path:
        return self.folder / "cells" / f"{cell.id}.{suffix}"

    def _close(self, cell: Cell, samples: list[Sample], refused: str | None) -> None:
        self._write(cell, _parquet(cell, samples, refused))
        self._file(cell, "jsonl").unlink(missing_ok=True)

    def _write(self, cell: Cell, content: bytes) -> None:
        file = self._file(cell, "parquet")
        for left in file.parent.glob(f".{file.name}.*"):  # temporary files of a killed process
            left.unlink()
        if not self.finished(cell):  # another process may have been faster
            write_bytes(file, content)


def _locked(handle: int, wait: bool) -> bool:
    """Take the lock of an open file; whether it is ours."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
    return True


def _is_at(handle: int, file: Path) -> bool:
    """Whether an open file still lies there."""
    try:
        return os.path.samestat(os.fstat(handle), file.stat())
    except FileNotFoundError:
        return False


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    names = ("model", "task", "method", "length", "seed")
    return *(row[name] for name in names), row["metric"] or "", row["cell"]


def _settled(file: Path) -> bool:
    """Whether a cell's file is there, can be read, and is not to be asked again."""
    try:
        about = (pq.read_schema(file).metadata or {}) if file.exists() else {}
    except (pa.ArrowException, OSError):
        return False
    return b"cell" in about and b"again" not in about


def _parquet(cell: Cell, samples: list[Sample], refused: str | None, again: bool = False) -> bytes:
    """A finished cell's file, or that of one to ask `again`; the same samples give the same bytes."""
    once = {sample.index: sample for sample in samples}
    rows = []
    for _, sample in sorted(once.items()):
        row = {field.name: getattr(sample, field.name) for field in fields(sample)}
        json_fields = {
            "scores": dict(sample.scores),
            "facts": dict(sample.facts),
            "statistics": _packed(sample.statistics),
        }
        rows.append({**row, "parts": list(sample.parts), **{name: _json(value) for name, value in json_fields.items()}})
    about = {"cell": _json(_cell_row(cell)), "refused": _json(refused), **({"again": "true"} if again else {})}
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema=COLUMNS.with_metadata(about)), sink, compression="zstd")
    return bytes(sink.getvalue())


def _finished(file: Path) -> Finished:
    """A finished cell from its file; ValueError naming the file where it cannot be read."""
    try:
        # One thread: Arrow's own abort the process at its end when they hold Python's bytes (apache/arrow#34314).
        with pq.ParquetFile(file, pre_buffer=False) as stored:
            table = stored.read(use_threads=False)
        about = table.schema.metadata or {}
        cell, refused = json.loads(about[b"cell"]), json.loads(about[b"refused"])
        if not fits(refused, str | None):
            raise ValueError("its refusal is no text")
        _known(table.column_names, COLUMNS.names, file)
        found = _cell(cell, file)
        if found.id != file.stem:
            raise ValueError("it holds another cell than its name says")
        return Finished(found, _samples(table), refused, b"again" in about)
    except _OtherVersionError:
        raise
    except DAMAGED as error:  # OSError: Arrow's word for a damaged page
        said = " ".join(str(error).split())[:80]
        raise ValueError(f"cell {file} cannot be read ({said}): delete it and run the same command again") from error


class _OtherVersionError(ValueError):
    """A file of another version, which is whole."""


DAMAGED = (
    *(pa.ArrowException, OSError, KeyError, ValueError, TypeError, AttributeError, OverflowError, RecursionError),
)
"""What reading a file raises that holds something else than we wrote."""


def _samples(table: pa.Table) -> list[Sample]:
    samples = []
    losses = table.column("nll")
    for place, row in enumerate(table.drop_columns(["nll"]).to_pylist()):
        row.update(scores=json.loads(row["scores"]), facts=json.loads(row["facts"]))
        row.update(parts=tuple(row.get("parts") or ()))
        row.update(statistics=_unpacked(json.loads(row.get("statistics") or "{}")))
        nll = losses[place].values
        row["nll"] = None if nll is None else nll.to_numpy().astype(np.float32)
        samples.append(Sample(**fitting(Sample, row, f"sample {place}")))
    return samples


def _known(names: Iterable[str], known: Collection[str], file: Path) -> None:
    """ValueError for a file that holds more of a sample than this version knows."""
    odd = ", ".join(sorted(set(names) - set(known)))
    if odd:
        raise _OtherVersionError(
            f"cell {file} was written by a newer version of lexbench (it has {odd}): use that version"
        )


def _cell_row(cell: Cell) -> dict[str, Any]:
    return {field.name: getattr(cell, field.name) for field in fields(cell)}


def _cell(row: Mapping[str, Any], file: Path) -> Cell:
    known = {field.name for field in fields(Cell)}
    if isinstance(row, Mapping) and row.keys() != known:
        odd = ", ".join(sorted(row.keys() ^ known))
        raise _OtherVersionError(
            f"cell {file} was written by another version of lexbench (differs in {odd}): use that version"
        )
    return Cell(**fitting(Cell, row, f"cell {file}"))


def _sample_row(sample: Sample) -> dict[str, Any]:
    row = {field.name: getattr(sample, field.name) for field in fields(sample)}
    if sample.nll is not None:
        assert sample.nll.dtype == np.float32, f"nll of {sample.nll.dtype}"
        row["nll"] = base64.b64encode(sample.nll.astype("<f4").tobytes()).decode()
    more = {"parts": list(sample.parts), "statistics": _packed(sample.statistics)}
    return {**row, "scores": dict(sample.scores), "facts": dict(sample.facts), **more}


def _packed(arrays: Mapping[str, NDArray[np.float32]]) -> dict[str, Any]:
    """Arrays as JSON: shape, and little-endian float32 in base64."""
    return {
        name: {"shape": list(array.shape), "data": base64.b64encode(array.astype("<f4").tobytes()).decode()}
        for name, array in arrays.items()
    }


def _unpacked(packed: Mapping[str, Any]) -> dict[str, NDArray[np.float32]]:
    return {
        name: np.frombuffer(base64.b64decode(each["data"]), "<f4").astype(np.float32).reshape(each["shape"])
        for name, each in packed.items()
    }


def _sample(row: dict[str, Any], file: Path) -> Sample:
    _known(row, [field.name for field in fields(Sample)], file)
    try:
        row.update(parts=tuple(row.get("parts", ())), statistics=_unpacked(row.get("statistics", {})))
        if row["nll"] is not None:
            row["nll"] = np.frombuffer(base64.b64decode(row["nll"]), "<f4").astype(np.float32)
        return Sample(**fitting(Sample, row, "a sample"))
    except DAMAGED as error:
        said = " ".join(str(error).split())[:80]
        raise ValueError(f"samples {file} hold a line that is none ({said}): delete it, run again") from error


def _parsed(line: bytes, file: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(line))
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"samples {file} hold a line that is no JSON: delete it and run the command again") from error


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=_plain)


def _plain(value: Any) -> Any:
    """Numbers and arrays of numpy, which tasks may put into facts, as plain ones."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no JSON: facts must hold plain values, got {value!r}")
