"""Many small cells of a run folder in one file, for fast reading: one file per cell takes 1 ms each.

    DIR/packed.parquet    one row per cell: name, size and mtime of its file, the cell, its refusal, its samples

The pack is only a copy: a row is used while the cell's file has the same size and mtime; all other cells are read from
their files. It may be deleted at any time; a damaged one is ignored.
"""

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lexbench.core.files import check_regular, write_bytes
from lexbench.store import format
from lexbench.store.format import DAMAGED_FILE_ERRORS, SAMPLE_COLUMNS, FinishedCell

MIN_NEW_CELLS_TO_PACK = 500
"""Least number of new cells for which a pack is written."""
MIN_NEW_CELL_SHARE = 0.1
"""Least share of new cells, of the packed ones, for which the pack is rewritten: a sweep rewrites it rarely."""
MAX_PACKED_FILE_BYTES = 1 << 16
"""Largest file to pack, in bytes; for larger files, opening them costs little compared with reading."""
PACK_SCHEMA = pa.schema(
    [
        pa.field("name", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("changed", pa.int64()),
        pa.field("again", pa.bool_()),
        pa.field("asked", pa.int64()),
        pa.field("cell", pa.string()),
        pa.field("refused", pa.string()),
        pa.field("samples", pa.list_(pa.struct(list(SAMPLE_COLUMNS)))),
    ]
)


@dataclass(frozen=True)
class FileState:
    """File size and mtime, for cache validation."""

    size: int
    changed: int
    """Nanoseconds since 1970."""


def file_state(status: os.stat_result) -> FileState:
    """The state of a file from its stat result."""
    return FileState(status.st_size, status.st_mtime_ns)


def _cell_file_state(file: "os.DirEntry[str] | Path") -> FileState:
    """State of a cell's file; for a loop of links a state that no file has, so that reading it reports the error."""
    try:
        return file_state(file.stat())
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            raise
        return FileState(-1, 0)


def cell_file_states(cells: Path, ids: Collection[str] | None = None) -> dict[str, FileState]:
    """States of the files of finished cells, all or those with the ids, by id; empty if there is no such folder."""
    found = {}
    with suppress(FileNotFoundError):
        for file in os.scandir(cells) if ids is None else [cells / f"{name}.parquet" for name in ids]:
            if file.name.endswith(".parquet") and not file.name.startswith("."):
                with suppress(FileNotFoundError):
                    found[file.name.removesuffix(".parquet")] = _cell_file_state(file)
    return found


class CellPack:
    """The pack of a run folder. Its index is read once, on first use."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "packed.parquet"
        self._cells = folder / "cells"

    @cached_property
    def _index(self) -> dict[str, tuple[FileState, bool]]:
        """State of each cell's file, and whether the cell is deferred."""
        table = self._read(["name", "size", "changed", "again"])
        columns = (table.column(name).to_pylist() for name in ("name", "size", "changed", "again"))
        return {name: (FileState(size, changed), again) for name, size, changed, again in zip(*columns, strict=True)}

    def cell_is_settled(self, name: str, state: FileState) -> bool | None:
        """Whether a cell is measured or refused and not deferred; None: read its file."""
        known, again = self._index.get(name, (None, False))
        return not again if known == state else None

    def load(self, wanted: Mapping[str, FileState]) -> dict[str, FinishedCell]:
        """Load the cells whose row matches the present state of the file."""
        return {
            one.cell.id: one
            for one in _read_finished_cells(self._cells, self._current(wanted, self._read(PACK_SCHEMA.names)))
        }

    def add_new_cells(self, now: Mapping[str, FileState], tables: Mapping[str, pa.Table]) -> bool:
        """Add the cells that are not packed yet, if there are many; returns whether there were. Skips unreadable files.

        Args:
            now: states of the files of all cells.
            tables: contents of some of these files by cell id, which are then not read.
        """
        wanted = {name: state for name, state in now.items() if state.size <= MAX_PACKED_FILE_BYTES}
        packed = set(self._current(wanted, self._read(["name", "size", "changed"])).column("name").to_pylist())
        new = wanted.keys() - packed
        if len(new) < max(MIN_NEW_CELLS_TO_PACK, MIN_NEW_CELL_SHARE * len(packed)):
            return False
        kept = self._current(wanted, self._read(PACK_SCHEMA.names))
        added = _rows({self._cells / f"{name}.parquet": wanted[name] for name in sorted(new)}, tables)
        sink = pa.BufferOutputStream()
        whole = pa.concat_tables([kept, added]).combine_chunks()
        pq.write_table(
            whole, sink, compression="zstd", row_group_size=4096, write_statistics=False, write_page_checksum=True
        )
        write_bytes(self._file, memoryview(sink.getvalue()))
        return True

    def _read(self, columns: Collection[str]) -> pa.Table:
        """Read columns of the pack; no rows if the file is missing, damaged or from another version."""
        try:
            check_regular(self._file)
            with pq.ParquetFile(self._file, pre_buffer=False, page_checksum_verification=True) as stored:
                if stored.schema_arrow.equals(PACK_SCHEMA):
                    return stored.read(columns=list(columns), use_threads=False)
        except DAMAGED_FILE_ERRORS:
            pass
        return pa.Table.from_batches([], PACK_SCHEMA).select(list(columns))

    @staticmethod
    def _current(wanted: Mapping[str, FileState], table: pa.Table) -> pa.Table:
        columns = (table.column(name).to_pylist() for name in ("name", "size", "changed"))
        same = [wanted.get(name) == FileState(size, changed) for name, size, changed in zip(*columns, strict=True)]
        # Usually all are: an array of the others imports pandas, which takes 0.3 s.
        return table if all(same) else table.filter(pa.array(same, pa.bool_()))


def _rows(files: Mapping[Path, FileState], tables: Mapping[str, pa.Table]) -> pa.Table:
    """Rows of the pack, of all cells' files but those that are unreadable or from another version."""
    heads, samples = list[dict[str, Any]](), [SAMPLE_COLUMNS.empty_table()]
    for file, state in files.items():
        with suppress(*DAMAGED_FILE_ERRORS):
            table = tables.get(file.stem)
            if table is None:
                format.verified_samples(table := format.read_cell_table(file))
            head, whole = (
                _head(file, state, table.schema.metadata or {}),
                _with_all_columns(table.replace_schema_metadata()),
            )
            heads.append(head)
            samples.append(whole)
    rows = pa.concat_tables(samples).combine_chunks().to_struct_array().combine_chunks()
    # A cell's samples are one value: a list from the end of the one before.
    ends = pa.array(accumulate(map(len, samples)), pa.int32())
    columns = [
        pa.array([head[name] for head in heads], PACK_SCHEMA.field(name).type) for name in PACK_SCHEMA.names[:-1]
    ]
    return pa.Table.from_arrays([*columns, pa.ListArray.from_arrays(ends, rows)], schema=PACK_SCHEMA)


def _head(file: Path, state: FileState, about: Mapping[bytes, bytes]) -> dict[str, Any]:
    """The columns of a cell's row beside its samples; raises one of `DAMAGED_FILE_ERRORS`."""
    return {
        "name": file.stem,
        "size": state.size,
        "changed": state.changed,
        "again": b"again" in about,
        "asked": format.question_count(about),
        "cell": about[b"cell"].decode(),
        "refused": about[b"refused"].decode(),
    }


def _with_all_columns(table: pa.Table) -> pa.Table:
    """Table of samples with all columns; columns that an older file lacks are null.

    Raises one of `DAMAGED_FILE_ERRORS` for a table that has other columns.
    """
    if table.schema == SAMPLE_COLUMNS:
        return table
    return pa.concat_tables([SAMPLE_COLUMNS.empty_table(), table], promote_options="default").cast(SAMPLE_COLUMNS)


def _read_finished_cells(cells: Path, table: pa.Table) -> Iterator[FinishedCell]:
    """Cells of a pack's rows; skips unreadable rows, whose cells are then read from their files."""
    import pyarrow.compute as pc  # the import takes 0.25 s, and only packed folders need it

    held = pa.chunked_array(table.column("samples").chunks, PACK_SCHEMA.field("samples").type)
    counts = pc.list_value_length(held).to_pylist()
    ends = [0, *accumulate(counts)]
    try:
        flat = (
            pa.Table.from_struct_array(pc.list_flatten(held)) if ends[-1] else pa.Table.from_batches([], SAMPLE_COLUMNS)
        )
        samples = format.samples_of_table(flat)
    except DAMAGED_FILE_ERRORS:  # rows are read at once, so a damaged one leaves all cells to their own files
        return
    heads = (table.column(name).to_pylist() for name in ("name", "cell", "refused", "again", "asked"))
    for (start, stop), (name, cell, refused, again, asked) in zip(
        pairwise(ends), zip(*heads, strict=True), strict=True
    ):
        try:
            yield format.build_finished_cell(
                cells / f"{name}.parquet", cell, refused, again, asked, samples[start:stop]
            )
        except DAMAGED_FILE_ERRORS:
            continue
