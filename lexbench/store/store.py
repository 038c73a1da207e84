"""A run folder: the raw results of a run, and records derived from them.

    DIR/cells/<cell id>.parquet   a finished cell: one row per sample; cell and refusal are in the schema's metadata
    DIR/cells/<cell id>.jsonl     an unfinished cell: the cell in the first line, then one sample per line
    DIR/records.jsonl             derived from all finished cells
    DIR/packed.parquet            copies of many small cells (`lexbench.store.packed`)
    DIR/costs.jsonl               seconds, tokens and memory; separate, because only these differ between equal runs

The file name of a cell is the hash of its identity, so methods, tasks and processes can share a folder. A file is
replaced atomically or appended line by line; a killed process leaves at most one incomplete line, which `resume`
removes. The process that measures a cell locks its .jsonl (`claimed`); the lock ends with the process. If this file or
the folder disappears meanwhile, ConfigError is raised and the file is not created again.
"""

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from lexbench.core.errors import ConfigError
from lexbench.core.files import check_regular, clear_leftovers, lock_file, read_bytes, write_bytes, write_text
from lexbench.core.record import Cell, Record, Sample
from lexbench.store import format
from lexbench.store.folder_format import check_format, write_format
from lexbench.store.format import (
    MAX_FAST_COMPRESSED_BYTES,
    FinishedCell,
    SampleCost,
    as_json,
    cell_line,
    cell_parquet,
    cell_table,
    file_is_settled,
    parse_cell_line,
    parse_sample_cost,
    parse_sample_line,
    sample_line,
    table_parquet,
)
from lexbench.store.packed import CellPack, FileState, cell_file_states, file_state
from lexbench.store.records_file import RECORDS_FILE_NAME, rows_to_keep, sort_rows

_derived: dict[Path, tuple[object, dict[str, FileState], FileState]] = {}
"""Deriving function, states of the cells' files and own state of each records.jsonl that this process has written."""
MAX_CELLS_READ_SINGLY = 50
"""Largest number of cells that are read from their own files although there is a pack."""
MAX_GROUP_DELAY_SECONDS = 1.0
"""Seconds after which a cell that is closed in a group is on disk, at the latest."""
MAX_GROUP_CELLS = 64
"""Most cells of a group."""
MAX_CACHED_TABLES = 1 << 12
"""Most tables of small cells that are kept in memory, 64 MiB, because records are made of them soon."""
N_WRITER_THREADS = 8
"""Threads that write a group: what several of them flush at once, the file system flushes together."""


@dataclass(eq=False)
class _ClosedCell:
    """A cell whose file is to be written."""

    cell: Cell
    table: pa.Table
    held: BinaryIO | None = None
    """The cell's .jsonl, which stays locked until the file is written."""


class Store:
    """Files of one run folder, created when there is something to write; OSError (e.g. a full disk) is not caught.

    ConfigError for a folder of a newer format (`lexbench.store.folder_format`).
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        check_format(self.folder)
        self.problems: list[str] = []
        """One line per file that `load` or `unfinished` could not read, since the last `load`."""
        self._packed = CellPack(self.folder)
        self._begun: dict[str, tuple[int, int]] = {}
        """Device and inode of the .jsonl of each claimed cell."""
        self._made = False
        self._grouping = False
        self._closed: dict[str, _ClosedCell] = {}
        self._written: dict[str, FileState] = {}
        """Files of closed cells that this object has written."""
        self._tables: dict[str, pa.Table] = {}
        """Tables of small closed cells by id, at most `MAX_CACHED_TABLES`."""
        self._flushed = -MAX_GROUP_DELAY_SECONDS
        self._timer: threading.Timer | None = None
        self._failed: Exception | None = None
        """Error of the timer's thread; the next flush raises it."""
        self._lock = threading.RLock()

    @contextmanager
    def group_writes(self) -> Iterator[None]:
        """Inside the block, write the files of cells that are closed within a second together.

        To write a file safely, the disk is flushed, which takes longer than a small cell; one flush serves a group. A
        closed cell is on disk after `MAX_GROUP_DELAY_SECONDS` seconds at the latest, and all of them are at the end of
        the block. Until then its samples stay in its .jsonl, and it stays claimed, so that a killed process loses none.
        """
        self._grouping = True
        try:
            yield
        finally:
            self._grouping = False
            self._flush()

    def is_finished(self, cell: Cell) -> bool:
        """Whether the cell has a readable file, measured or refused, and is not deferred."""
        with self._lock:
            return cell.id in self._closed or self._on_disk(cell)

    def _on_disk(self, cell: Cell) -> bool:
        file = self._file(cell, "parquet")
        try:
            state = file_state(file.stat())
        except OSError:
            return False
        if self._written.get(cell.id) == state:
            return True
        known = self._packed.cell_is_settled(cell.id, state)
        return file_is_settled(file) if known is None else known

    @contextmanager
    def claim(self, cell: Cell, wait: bool = False) -> Iterator[bool]:
        """Claim the cell for this process; yields whether it succeeded. With `wait`, wait for the other process.

        If the file system does not support locks, every claim succeeds. ConfigError if the folder has disappeared since
        an earlier claim.
        """
        file = self._file(cell, "jsonl")
        check_regular(file)
        while True:
            self._check_folder()
            write_format(self.folder)
            self._made = True
            with ExitStack() as stack:
                held = stack.enter_context(file.open("ab"))
                mine = lock_file(held.fileno(), wait)
                if mine and not _is_at(held.fileno(), file):
                    continue  # another process finished the cell or gave it up, and removed the file, while we waited
                if mine:
                    self._begun[cell.id] = _inode(os.fstat(held.fileno()))
                try:
                    yield mine
                finally:
                    with self._lock:
                        if mine and cell.id in self._closed:
                            self._closed[cell.id].held = held  # `_put` gives the claim up
                            stack.pop_all()
                        elif mine:
                            self._begun.pop(cell.id, None)
                            if file.exists() and file.stat().st_size == 0:
                                file.unlink(missing_ok=True)  # no sample was measured
                return

    def adopt_twin(self, cell: Cell, twin: str) -> bool:
        """Finish a cell with the samples of an equal finished one, by its id; returns whether that one has samples."""
        found = self.load({twin})
        if not found or found[0].refused is not None:
            return False
        self._close(cell, found[0].samples, None, found[0].asked)
        return True

    def unfinished_samples(self, cell: Cell) -> list[Sample]:
        """Samples of an unfinished cell, in the order of measurement, without an incomplete last line; none of no file.

        ConfigError where its file is of another cell, or has a line that is no sample.
        """
        file = self._file(cell, "jsonl")
        lines = _whole_lines(file).splitlines() if file.exists() else []
        if lines:
            parse_cell_line(lines[0], file)
        return [parse_sample_line(line, file) for line in lines[1:]]

    def resume(self, cell: Cell, asked: Collection[int] | None = None) -> list[Sample]:
        """Samples of an interrupted run (`unfinished_samples`); an incomplete last line of their file is removed.

        ConfigError where one has an index that is not in `asked`, the indices of all questions.
        """
        file = self._file(cell, "jsonl")
        if not file.exists():
            return []
        samples = self.unfinished_samples(cell)
        if asked is not None and (odd := {sample.index for sample in samples} - set(asked)):
            raise ConfigError(
                f"samples {file} have index {min(odd)}, which is not asked: delete it and run the command again"
            )
        if (size := len(_whole_lines(file))) < file.stat().st_size:
            os.truncate(file, size)
        return samples

    def sample_costs(self, cell: Cell) -> dict[int, SampleCost]:
        """What the samples of an unfinished cell have taken, by index, in their order, as far as their lines tell."""
        file = self._file(cell, "jsonl")
        if not file.exists():
            return {}
        found = (parse_sample_cost(line, file) for line in _whole_lines(file).splitlines()[1:])
        return dict(each for each in found if each is not None)

    def restart(self, cell: Cell) -> None:
        """Drop the samples of a claimed unfinished cell."""
        with suppress(FileNotFoundError):
            os.truncate(self._file(cell, "jsonl"), 0)

    def append(self, cell: Cell, sample: Sample, cost: SampleCost | None = None) -> None:
        """Append one sample of an unfinished cell, with what it has taken, which only the unfinished cell's file holds.

        Does nothing if another process has finished the cell.

        ConfigError if the file with the earlier samples has disappeared.
        """
        file = self._file(cell, "jsonl")
        if self._has_vanished(cell):
            if self.is_finished(cell):
                return
            raise self._moved_error()
        write_format(self.folder)
        with file.open("ab") as stream:
            if stream.tell() == 0:
                stream.write(cell_line(cell))
            stream.write(sample_line(sample, cost))

    def finish(self, cell: Cell, asked: Collection[int]) -> None:
        """Turn the appended samples into the file of the finished cell.

        ConfigError if an index in `asked`, the indices of all questions, has no sample, or a sample another index.
        """
        samples = self.resume(cell, asked)
        missing = set(asked) - {sample.index for sample in samples}
        if missing and not self.is_finished(cell):
            if self._has_vanished(cell):
                raise self._moved_error()
            held = f"{len(asked) - len(missing)} of {len(asked)} samples"
            raise ConfigError(f"cell {cell.id} of {self.folder} has {held}: run the same command again")
        self._close(cell, samples, None, len(set(asked)))

    def refuse(self, cell: Cell, reason: str) -> None:
        """Finish the cell with a refusal, and drop its samples."""
        self._close(cell, [], reason)

    def defer(self, cell: Cell, reason: str) -> None:
        """Mark the cell as refused until a later run finishes it, and keep its samples."""
        self._write(cell, cell_parquet(cell, [], reason, deferred=True))

    def cost(
        self,
        cell: Cell,
        seconds: float,
        tokens: int,
        peak_bytes: int | None,
        own_peak: bool = False,
        timings: Sequence[tuple[float, int]] = (),
        indices: Sequence[int] = (),
    ) -> None:
        """Append the costs of one measurement of the cell.

        `peak_bytes` is None if another process has the memory. `own_peak`: the peak is since the start of the cell, not
        of the process. `timings` are seconds and tokens of each answer, `indices` the numbers of their questions.
        """
        row = {
            "cell": cell.id,
            "seconds": round(seconds, 3),
            "tokens": tokens,
            "peak_bytes": peak_bytes,
            "own_peak": own_peak,
            "timings": [[round(each, 6), count] for each, count in timings],
            **({"indices": list(indices)} if indices else {}),
        }
        self._check_folder()
        with (self.folder / "costs.jsonl").open("a+b") as stream:
            stream.seek(max(0, stream.tell() - 1))
            torn = stream.read(1) not in (b"", b"\n")  # by a process that was killed: it spoils no further line
            stream.write(b"\n" * torn + as_json(row).encode() + b"\n")

    def load(self, ids: Collection[str] | None = None, packed: bool = True) -> list[FinishedCell]:
        """Finished cells, all or those with the ids, sorted by id; unreadable files are listed in `problems`.

        Without `packed` each is read from its own file, though the pack may hold it; with it, many cells that no pack
        holds are packed first, so that only the first reader opens all files.
        """
        if ids is None or not self._closed.keys().isdisjoint(ids):
            self._flush()
        now = cell_file_states(self.folder / "cells", ids)
        if packed and ids is None:
            with suppress(OSError):  # a folder that only others may write
                self._packed.add_new_cells(now, self._known_tables(now))
        return self._read(now, packed)

    def _read(self, wanted: Mapping[str, FileState], packed: bool = True) -> list[FinishedCell]:
        """Finished cells by the states of their files, as `load` does."""
        self.problems = []
        found = self._packed.load(wanted) if packed and len(wanted) > MAX_CELLS_READ_SINGLY else {}
        known = self._known_tables(wanted)
        for name in sorted(wanted.keys() - found.keys()):
            try:
                found[name] = format.read_cell_file(self.folder / "cells" / f"{name}.parquet", known.get(name))
            except ValueError as error:
                self.problems.append(str(error))
        return [found[name] for name in sorted(found)]

    def unfinished_cells(self) -> list[Cell]:
        """Unfinished cells, sorted by id; unreadable files are listed in `problems`."""
        left = []
        for file in sorted((self.folder / "cells").glob("*.jsonl")):
            try:
                check_regular(file)
                with file.open("rb") as stream:
                    head = stream.readline()
            except FileNotFoundError:  # another process has just finished it
                continue
            except OSError as error:  # a folder, a loop of links, no permission
                self.problems.append(f"samples {file} cannot be read ({error.strerror}): remove it")
                continue
            if head.endswith(b"\n") and not file.with_suffix(".parquet").exists():
                try:
                    left.append(parse_cell_line(head, file))
                except ValueError as error:
                    self.problems.append(str(error))
        return left

    def write_records(
        self, records_of: Callable[[FinishedCell], Iterable[Record]], afresh: bool = False
    ) -> list[FinishedCell]:
        """Replace records.jsonl by the records of all finished cells, one process at a time.

        Cells whose files are not younger than records.jsonl keep their lines, unless `afresh` is set. The file is not
        written if no line changes. Also packs many cells, and removes leftovers of processes killed at the end of a
        cell. Returns the cells that it has read: with `afresh` all.
        """
        cells, records = self.folder / "cells", self.folder.resolve() / RECORDS_FILE_NAME
        self._check_folder()
        cells.mkdir(parents=True, exist_ok=True)
        held = os.open(cells, os.O_RDONLY)  # the folder itself is locked: no lock file stays behind
        try:
            lock_file(held, wait=True)
            for file in cells.glob("*.jsonl"):
                if file_is_settled(file.with_suffix(".parquet")):
                    file.unlink(missing_ok=True)
            clear_leftovers(cells)
            now = cell_file_states(cells)
            if (
                not afresh
                and records.exists()
                and _derived.get(records) == (records_of, now, file_state(records.stat()))
            ):
                return []
            if self._packed.add_new_cells(now, self._known_tables(now)):
                now = cell_file_states(cells)  # again, as it may take long
            before, old = (None, {}) if afresh else rows_to_keep(records, now)
            read = self._read({name: state for name, state in now.items() if name not in old})
            new = [record.as_row() for each in read for record in records_of(each)]
            rows = sort_rows([*new, *(row for rows in old.values() for row in rows)])
            if rows != before:
                write_text(records, "".join(f"{as_json(row)}\n" for row in rows))
            _derived[records] = (records_of, now, file_state(records.stat()))
            return read
        finally:
            os.close(held)

    def write_text(self, name: str, content: str) -> None:
        """Replace a text file of the folder."""
        write_text(self.folder / name, content)

    def _file(self, cell: Cell, suffix: str) -> Path:
        return self.folder / "cells" / f"{cell.id}.{suffix}"

    def _close(self, cell: Cell, samples: list[Sample], refused: str | None, asked: int | None = None) -> None:
        table = cell_table(cell, samples, refused, asked=asked)
        with self._lock:
            self._closed[cell.id] = _ClosedCell(cell, table)
            # After a quiet second at once: only cells that follow closely wait for one another.
            late = time.monotonic() - self._flushed >= MAX_GROUP_DELAY_SECONDS or len(self._closed) >= MAX_GROUP_CELLS
            if late or not self._grouping:
                self._flush()
            elif self._timer is None:
                self._timer = threading.Timer(MAX_GROUP_DELAY_SECONDS, self._flush_in_time)
                self._timer.daemon = True
                self._timer.start()

    def _flush(self) -> None:
        """Write the files of all closed cells; raises the first error, after which their samples are kept as before."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            closed, self._closed, self._timer = list(self._closed.values()), {}, None
            errors = [self._failed] if self._failed else []
            self._failed = None
            if closed:
                with ThreadPoolExecutor(N_WRITER_THREADS) as pool:
                    futures = [pool.submit(self._put, each) for each in closed]
                errors += [error for future in futures if isinstance(error := future.exception(), Exception)]
            self._flushed = time.monotonic()
            if errors:
                raise errors[0]

    def _flush_in_time(self) -> None:
        try:
            self._flush()
        except Exception as error:
            self._failed = error

    def _put(self, closed: _ClosedCell) -> None:
        """Write the file of a closed cell, and give up its claim where its block has ended."""
        cell, file = closed.cell, self._file(closed.cell, "parquet")
        try:
            ours = self._write(cell, table_parquet(closed.table))
            self._written[cell.id] = file_state(file.stat())
            if ours and closed.table.nbytes < MAX_FAST_COMPRESSED_BYTES and len(self._tables) < MAX_CACHED_TABLES:
                self._tables[cell.id] = closed.table
            self._file(cell, "jsonl").unlink(missing_ok=True)
        finally:
            if closed.held is not None:
                self._begun.pop(cell.id, None)
                closed.held.close()

    def _write(self, cell: Cell, content: bytes) -> bool:
        """Write a cell's file; False if it is there: another process may have been faster."""
        if self._on_disk(cell):
            return False
        if self._has_vanished(cell):
            raise self._moved_error()
        write_format(self.folder)
        write_bytes(self._file(cell, "parquet"), content)
        return True

    def _known_tables(self, wanted: Mapping[str, FileState]) -> dict[str, pa.Table]:
        """Contents of files that this object has written and nobody has changed since, by cell id."""
        ours = wanted.keys() & self._tables.keys()
        return {name: self._tables[name] for name in ours if self._written[name] == wanted[name]}

    def _has_vanished(self, cell: Cell) -> bool:
        """Whether the file of a claimed cell has disappeared or was replaced."""
        begun = self._begun.get(cell.id)
        try:
            return begun is not None and _inode(self._file(cell, "jsonl").stat()) != begun
        except FileNotFoundError:
            return True

    def _check_folder(self) -> None:
        """ConfigError if the folder of claimed cells has disappeared."""
        if self._made and not (self.folder / "cells").is_dir():
            raise self._moved_error()

    def _moved_error(self) -> ConfigError:
        remedy = "put it back, or run the same command again"
        return ConfigError(f"run folder {self.folder} was moved or removed while it was measured: {remedy}")


def _whole_lines(file: Path) -> bytes:
    """A file without an incomplete last line."""
    content = read_bytes(file)
    return content[: content.rfind(b"\n") + 1]


def _inode(state: os.stat_result) -> tuple[int, int]:
    return state.st_dev, state.st_ino


def _is_at(handle: int, file: Path) -> bool:
    """Whether a path still leads to the open file."""
    try:
        return os.path.samestat(os.fstat(handle), file.stat())
    except FileNotFoundError:
        return False
