"""Very many small cells of a run folder in one file, so that it is read in seconds: a file of its own takes 1 ms.

    DIR/packed.parquet    a row per cell: its file's name, size and time of change, the cell, its refusal, its samples

A copy, and never more: a row stands for its cell's file as long as that has the same size and time of change, and all
else is read from the files. It may be deleted at any time; one that is damaged counts as deleted.
"""

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lexbench.core.files import write_bytes
from lexbench.store import format
from lexbench.store.format import COLUMNS, DAMAGED, Finished

MANY = 500
"""Cells from which on a folder is packed; below it stays as small as it is."""
GROWN = 0.1
"""Share of new cells that makes a pack anew: a sweep's jobs together write a few times what the last one does."""
SMALL = 1 << 16
"""Bytes of a cell's file that is packed: larger ones have enough in them to be read one by one."""
ROWS = pa.schema(
    [
        pa.field("name", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("changed", pa.int64()),
        pa.field("again", pa.bool_()),
        pa.field("cell", pa.string()),
        pa.field("refused", pa.string()),
        pa.field("samples", pa.list_(pa.struct(list(COLUMNS)))),
    ]
)


@dataclass(frozen=True)
class State:
    """By which a file is known again."""

    size: int
    changed: int
    """Nanoseconds since 1970."""


def state_of(status: os.stat_result) -> State:
    """From what the system says of a file."""
    return State(status.st_size, status.st_mtime_ns)


def states(cells: Path, ids: Collection[str] | None = None) -> dict[str, State]:
    """Of finished cells' files in a folder, all or those of the ids, by id; none where there is no such folder."""
    found = {}
    with suppress(FileNotFoundError):
        for file in os.scandir(cells) if ids is None else [cells / f"{name}.parquet" for name in ids]:
            if file.name.endswith(".parquet") and not file.name.startswith("."):
                with suppress(FileNotFoundError):
                    found[file.name.removesuffix(".parquet")] = state_of(file.stat())
    return found


class Packed:
    """The pack of a run folder, as it is when it is first asked."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "packed.parquet"
        self._cells = folder / "cells"

    @cached_property
    def _index(self) -> dict[str, tuple[State, bool]]:
        """Each cell's file, and whether it is to be asked again."""
        table = self._read(["name", "size", "changed", "again"])
        columns = (table.column(name).to_pylist() for name in ("name", "size", "changed", "again"))
        return {name: (State(size, changed), again) for name, size, changed, again in zip(*columns, strict=True)}

    def settled(self, name: str, state: State) -> bool | None:
        """Whether a cell is measured, or refused for good; None where its file has to say."""
        known, again = self._index.get(name, (None, False))
        return not again if known == state else None

    def load(self, wanted: Mapping[str, State]) -> dict[str, Finished]:
        """Of these cells, those that it has as their files are now."""
        return {one.cell.id: one for one in _finished(self._cells, self._current(wanted, self._read(ROWS.names)))}

    def renew(self, now: Mapping[str, State]) -> None:
        """Pack those of all cells that are not packed yet, once they are many; files that cannot be read stay out."""
        wanted = {name: state for name, state in now.items() if state.size <= SMALL}
        kept = self._current(wanted, self._read(ROWS.names))
        new = wanted.keys() - set(kept.column("name").to_pylist())
        if len(new) < max(MANY, GROWN * len(kept)):
            return
        added = [row for name in sorted(new) if (row := _row(self._cells / f"{name}.parquet", wanted[name]))]
        sink = pa.BufferOutputStream()
        whole = pa.concat_tables([kept, *added]).combine_chunks()
        pq.write_table(
            whole, sink, compression="zstd", row_group_size=4096, write_statistics=False, write_page_checksum=True
        )
        write_bytes(self._file, memoryview(sink.getvalue()))

    def _read(self, columns: Collection[str]) -> pa.Table:
        """Without a file, or of one that is damaged or another version's: no rows."""
        try:
            with pq.ParquetFile(self._file, pre_buffer=False, page_checksum_verification=True) as stored:
                if stored.schema_arrow.equals(ROWS):
                    return stored.read(columns=list(columns), use_threads=False)
        except DAMAGED:
            pass
        return ROWS.empty_table().select(list(columns))

    @staticmethod
    def _current(wanted: Mapping[str, State], table: pa.Table) -> pa.Table:
        columns = (table.column(name).to_pylist() for name in ("name", "size", "changed"))
        same = [wanted.get(name) == State(size, changed) for name, size, changed in zip(*columns, strict=True)]
        return table.filter(pa.array(same, pa.bool_()))


def _row(file: Path, state: State) -> pa.Table | None:
    """A cell's file; None where it cannot be read, or is another version's."""
    try:
        table = format.table_of(file)
        about = table.schema.metadata or {}
        held = pa.concat_tables([COLUMNS.empty_table(), table.replace_schema_metadata()], promote_options="default")
        rows = held.cast(COLUMNS).combine_chunks().to_struct_array()
        values: dict[str, Any] = {
            "name": file.stem,
            "size": state.size,
            "changed": state.changed,
            "again": b"again" in about,
            "cell": about[b"cell"].decode(),
            "refused": about[b"refused"].decode(),
        }
        packed = pa.ListArray.from_arrays(pa.array([0, len(rows)], pa.int32()), rows.combine_chunks())
        columns = [pa.array([value], ROWS.field(name).type) for name, value in values.items()]
        return pa.Table.from_arrays([*columns, packed], schema=ROWS)
    except DAMAGED:
        return None


def _finished(cells: Path, table: pa.Table) -> Iterator[Finished]:
    """Cells of a pack's rows; those whose rows cannot be read are left out, for their files to be asked."""
    import pyarrow.compute as pc  # takes a quarter of a second, for folders that are packed alone

    held = pa.chunked_array(table.column("samples").chunks, ROWS.field("samples").type)
    counts = pc.list_value_length(held).to_pylist()
    ends = [0]
    for count in counts:
        ends.append(ends[-1] + count)
    try:
        flat = pa.Table.from_struct_array(pc.list_flatten(held)) if ends[-1] else COLUMNS.empty_table()
        samples = format.samples(flat)
    except DAMAGED:
        return
    heads = (table.column(name).to_pylist() for name in ("name", "cell", "refused", "again"))
    for (start, stop), (name, cell, refused, again) in zip(pairwise(ends), zip(*heads, strict=True), strict=True):
        try:
            yield format.finished(cells / f"{name}.parquet", cell, refused, again, samples[start:stop])
        except DAMAGED:
            continue
