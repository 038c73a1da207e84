"""A run folder: what a run measured, and nothing that it could not compute again from it.

    DIR/cells/<cell id>.parquet   a finished cell: a row per sample, the cell and its refusal in the schema's metadata
    DIR/cells/<cell id>.jsonl     an unfinished one: the cell in the first line, then a sample a line
    DIR/records.jsonl             derived from all finished cells
    DIR/packed.parquet            copies of very many small cells (`lexbench.store.packed`)
    DIR/costs.jsonl               seconds, tokens and memory: apart, so that the rest is the same on every run

Cells are named by the hash of their identity, so methods, tasks and processes may share a folder. A file is replaced
whole or appended a line at a time; whatever kills a process leaves at most one torn line, which `resume` cuts. Who
measures a cell holds a lock on its .jsonl (`claimed`), which ends with the process. Where that file or the folder
vanishes meanwhile, ValueError says so, and nothing is made anew in its place.
"""

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from lexbench.core.files import clear_leftovers, locked, write_bytes, write_text
from lexbench.core.record import Cell, Record, Sample
from lexbench.store import format
from lexbench.store.format import Finished, as_json, cell_line, cell_of, parquet, sample_line, sample_of, settled
from lexbench.store.packed import Packed, State, state_of, states

Row = dict[str, Any]
"""A line of records.jsonl."""
_derived: dict[Path, tuple[object, dict[str, State], State]] = {}
"""Of each records.jsonl that this process has written: how, of which cells' files, and its own state."""
FEW = 50
"""Cells for which their own files are read, whatever is packed."""


class Store:
    """One run folder. Nothing is written before there is something to write; OSError (a full disk) rises."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.problems: list[str] = []
        """What `load` and `unfinished` could not read, one line each, since the last `load`."""
        self._packed = Packed(self.folder)
        self._begun: dict[str, tuple[int, int]] = {}
        """Device and inode of the .jsonl of each cell that is being measured."""
        self._made = False

    def finished(self, cell: Cell) -> bool:
        """Whether the cell is measured, or refused for good, in a file that can be read."""
        file = self._file(cell, "parquet")
        try:
            known = self._packed.settled(cell.id, state_of(file.stat()))
        except OSError:
            return False
        return settled(file) if known is None else known

    @contextmanager
    def claimed(self, cell: Cell, wait: bool = False) -> Iterator[bool]:
        """Whether the cell is this process's alone inside the block; with `wait`, it is, once others have let go of it.

        Where the file system knows no locks, everybody's claim holds. ValueError where the folder has vanished since an
        earlier claim.
        """
        file = self._file(cell, "jsonl")
        while True:
            self._check_folder()
            file.parent.mkdir(parents=True, exist_ok=True)
            self._made = True
            with file.open("ab") as held:
                mine = locked(held.fileno(), wait)
                if mine and not _is_at(held.fileno(), file):
                    continue  # it was finished or given up, and removed, while we waited
                if mine:
                    self._begun[cell.id] = _inode(os.fstat(held.fileno()))
                try:
                    yield mine
                finally:
                    if mine:
                        self._begun.pop(cell.id, None)
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
        return [sample_of(line, file) for line in content[:whole].splitlines()[1:]]

    def append(self, cell: Cell, sample: Sample) -> None:
        """Keep one sample of an unfinished cell, as soon as it is measured.

        ValueError where the samples before it have vanished; a cell that another process has finished needs no more.
        """
        file = self._file(cell, "jsonl")
        if self._vanished(cell):
            if self.finished(cell):
                return
            raise self._gone()
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("ab") as stream:
            if stream.tell() == 0:
                stream.write(cell_line(cell))
            stream.write(sample_line(sample))

    def finish(self, cell: Cell, asked: Collection[int]) -> None:
        """The samples appended so far are all: they become the cell's one file.

        ValueError where a question that was `asked`, by its index, has no sample there.
        """
        samples = self.resume(cell)
        missing = set(asked) - {sample.index for sample in samples}
        if missing and not self.finished(cell):
            if self._vanished(cell):
                raise self._gone()
            held = f"{len(asked) - len(missing)} of {len(asked)} samples"
            raise ValueError(f"cell {cell.id} of {self.folder} holds {held}: run the same command again")
        self._close(cell, samples, None)

    def refuse(self, cell: Cell, reason: str) -> None:
        """The cell has no honest answer; samples that it has already are dropped."""
        self._close(cell, [], reason)

    def defer(self, cell: Cell, reason: str) -> None:
        """The cell has no answer now: it counts as refused until a run finishes it, and keeps the samples it has."""
        self._write(cell, parquet(cell, [], reason, again=True))

    def cost(self, cell: Cell, seconds: float, tokens: int, peak_bytes: int | None, own_peak: bool = False) -> None:
        """What measuring took, this time; `own_peak`: the peak is counted from the cell's start, not the process's.

        `peak_bytes` is None where the memory is another process's.
        """
        row = {"cell": cell.id, "seconds": round(seconds, 3), "tokens": tokens, "peak_bytes": peak_bytes}
        row["own_peak"] = own_peak
        self._check_folder()
        with (self.folder / "costs.jsonl").open("ab") as stream:
            stream.write(as_json(row).encode() + b"\n")

    def load(self, ids: Collection[str] | None = None) -> list[Finished]:
        """Finished cells, all or those of the ids, sorted by id; files that cannot be read go to `problems`."""
        self.problems = []
        cells = self.folder / "cells"
        wanted = states(cells, ids)
        found = Packed(self.folder).load(wanted) if len(wanted) > FEW else {}
        for name in sorted(wanted.keys() - found.keys()):
            try:
                found[name] = format.read(cells / f"{name}.parquet")
            except ValueError as error:
                self.problems.append(str(error))
        return [found[name] for name in sorted(found)]

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
                    left.append(cell_of(head, file))
                except ValueError as error:
                    self.problems.append(str(error))
        return left

    def write_records(self, records_of: Callable[[Finished], Iterable[Record]], afresh: bool = False) -> None:
        """Replace records.jsonl by the records of all finished cells, one process at a time.

        Cells whose files are not younger than records.jsonl keep their lines, unless all are to be made `afresh`; where
        all lines come out as they were, it is not written. Also packs very many cells, and clears away what a process
        killed at the end of a cell has left of it.
        """
        cells, records = self.folder / "cells", self.folder.resolve() / "records.jsonl"
        self._check_folder()
        cells.mkdir(parents=True, exist_ok=True)
        held = os.open(cells, os.O_RDONLY)
        try:
            locked(held, wait=True)
            for file in cells.glob("*.jsonl"):
                if settled(file.with_suffix(".parquet")):
                    file.unlink(missing_ok=True)
            clear_leftovers(cells, "*.parquet")
            now = states(cells)
            if not afresh and records.exists() and _derived.get(records) == (records_of, now, state_of(records.stat())):
                return
            self._packed.renew(now)
            now = states(cells)  # packing may have taken long
            before, kept = (None, {}) if afresh else self._kept(now)
            self.problems = []
            new = [asdict(record) for each in self.load(now.keys() - kept.keys()) for record in records_of(each)]
            rows = sorted([*new, *(row for rows in kept.values() for row in rows)], key=_order)
            if rows != before:
                write_text(records, "".join(f"{as_json(row)}\n" for row in rows))
            _derived[records] = (records_of, now, state_of(records.stat()))
        finally:
            os.close(held)

    def _kept(self, now: Mapping[str, State]) -> tuple[list[Row] | None, dict[str, list[Row]]]:
        """All lines of records.jsonl, if it can be read; and by cell those of its file: a refusal may be lifted."""
        file = self.folder / "records.jsonl"
        found: dict[str, list[Row]] = {}
        try:
            written = file.stat().st_mtime_ns
            before = [dict(json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]
            for row in before:
                found.setdefault(str(row["cell"]), []).append(row)
            old = {name for name, state in now.items() if state.changed < written}
            rows = {name: each for name, each in found.items() if name in old}
            known = {field.name for field in fields(Record)}
            whole = [name for name, each in rows.items() if all(row.keys() == known for row in each)]
            there = old - {name for name in whole if any(row["refused"] for row in rows[name])}
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None, {}
        return before, {name: rows[name] for name in whole if name in there}

    def write_text(self, name: str, content: str) -> None:
        """Replace a text file of the folder."""
        write_text(self.folder / name, content)

    def _file(self, cell: Cell, suffix: str) -> Path:
        return self.folder / "cells" / f"{cell.id}.{suffix}"

    def _close(self, cell: Cell, samples: list[Sample], refused: str | None) -> None:
        self._write(cell, parquet(cell, samples, refused))
        self._file(cell, "jsonl").unlink(missing_ok=True)

    def _write(self, cell: Cell, content: bytes) -> None:
        if not self.finished(cell):  # another process may have been faster
            if self._vanished(cell):
                raise self._gone()
            write_bytes(self._file(cell, "parquet"), content)

    def _vanished(self, cell: Cell) -> bool:
        """Whether the file of a claimed cell is not there any more."""
        begun = self._begun.get(cell.id)
        try:
            return begun is not None and _inode(self._file(cell, "jsonl").stat()) != begun
        except FileNotFoundError:
            return True

    def _check_folder(self) -> None:
        """ValueError where cells have been claimed, and their folder is not there any more."""
        if self._made and not (self.folder / "cells").is_dir():
            raise self._gone()

    def _gone(self) -> ValueError:
        remedy = "put it back, or run the same command again"
        return ValueError(f"run folder {self.folder} was moved or removed while it was measured: {remedy}")


def _inode(state: os.stat_result) -> tuple[int, int]:
    return state.st_dev, state.st_ino


def _is_at(handle: int, file: Path) -> bool:
    """Whether an open file still lies there."""
    try:
        return os.path.samestat(os.fstat(handle), file.stat())
    except FileNotFoundError:
        return False


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    names = ("model", "task", "method", "length", "seed")
    return *(row[name] for name in names), row["metric"] or "", row["cell"]
