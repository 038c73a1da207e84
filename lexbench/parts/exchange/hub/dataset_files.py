"""Writes samples as Parquet files that `datasets` and the Hugging Face hub load.

    DIR/README.md                       the card: a configuration for every task, and `all` of them
    DIR/<task>/test-00000.parquet       a row per sample, with its cell's columns; one or more row groups per cell

All files have the same columns, so they can be read together. Only a few cells are in memory at a time.
"""

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lexbench.core.errors import ConfigError
from lexbench.core.method_key import BASELINE_METHOD
from lexbench.core.record import Cell, Sample
from lexbench.stats import metrics
from lexbench.stats.records import run_folders
from lexbench.stats.rescore import rescore_cell
from lexbench.store.format import SAMPLE_COLUMNS, FinishedCell
from lexbench.store.store import Store

COLUMNS_OF_CELLS = {
    "model": pa.string(),
    "method": pa.string(),
    "task": pa.string(),
    "length": pa.int64(),
    "trained_length": pa.int64(),
    "multiple": pa.float64(),
    "seed": pa.int64(),
    "corpus": pa.string(),
    "protocol": pa.string(),
    "backend": pa.string(),
    "dtype": pa.string(),
    "kernel": pa.string(),
    "version": pa.string(),
    "cell": pa.string(),
}
"""Columns with one value per cell; `cell` is its id."""
BEFORE_SCORES = ("index", "cluster", "tokens", "truncated", "failed")
AFTER_SCORES = ("chance", "nll", "bytes", "words", "prompt", "output", "hit_room", "depth", "parts", "facts")
SCORE_COLUMN_PREFIX = "score_"
"""Prefix of score columns."""
CELLS_AT_ONCE = 16
ROWS_OF_A_GROUP = 1000
BYTES_OF_A_FILE = 500_000_000
"""Approximate size after which a new file begins."""
SAMPLES_FILE_PATTERN = re.compile(r"test-\d{5}\.parquet")


@dataclass(frozen=True, eq=False)
class CellHead:
    """A finished cell without its samples."""

    folder: Path
    cell: Cell
    samples: int
    metrics: tuple[str, ...]
    refused: str | None


def read_cell_heads(folders: Iterable[Path], problems: list[str]) -> list[CellHead]:
    """All finished cells of run folders, each once, sorted; unreadable files are added to `problems`."""
    found: dict[str, CellHead] = {}
    for folder in run_folders(folders):
        ids = sorted(file.stem for file in (folder / "cells").glob("*.parquet"))
        for some in _batches_of_cells(ids):
            store = Store(folder)
            for each in store.load(some):
                whole = rescore_cell(each)
                names = tuple(
                    sorted({name for sample in whole.samples for name in sample.scores}, key=metrics.metric_sort_key)
                )
                found.setdefault(each.cell.id, CellHead(folder, each.cell, len(each.samples), names, each.refused))
            problems += store.problems

    def order(head: CellHead) -> tuple[Any, ...]:
        cell = head.cell
        return cell.task, cell.model, cell.method != BASELINE_METHOD, cell.method, cell.length, cell.seed, cell.id

    return sorted(found.values(), key=order)


def _batches_of_cells(every: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for begin in range(0, len(every), CELLS_AT_ONCE):
        yield every[begin : begin + CELLS_AT_ONCE]


def configuration_names(tasks: Iterable[str]) -> dict[str, str]:
    """Name of the configuration and folder of each task; unique even on a case-insensitive disk."""
    taken = {"all"}
    names: dict[str, str] = {}
    for task in sorted(set(tasks)):
        plain = re.sub(r"[^A-Za-z0-9_.]+", "-", task)[:80].strip("-_.") or "task"
        numbered = itertools.chain([plain], (f"{plain}-{number}" for number in itertools.count(2)))
        names[task] = next(name for name in numbered if name.lower() not in taken)
        taken.add(names[task].lower())
    return names


def samples_schema(cells: Iterable[CellHead]) -> pa.Schema:
    """Columns of the files, with one for every score of any cell; null in cells without that score."""
    scores = sorted({name for head in cells for name in head.metrics}, key=metrics.metric_sort_key)
    before, after = (
        [SAMPLE_COLUMNS.field(name).with_nullable(True) for name in names] for names in (BEFORE_SCORES, AFTER_SCORES)
    )
    columns = [pa.field(SCORE_COLUMN_PREFIX + name, pa.float64()) for name in scores]
    return pa.schema([*(pa.field(name, kind) for name, kind in COLUMNS_OF_CELLS.items()), *before, *columns, *after])


def write_samples(cells: Sequence[CellHead], out: Path, folders: Mapping[str, str]) -> None:
    """Write the files of cells, without the card; the same cells give the same bytes.

    `folders` maps tasks to folders. Raises ConfigError if `out` is a file, or holds other Parquet files: `datasets`
    would load them with ours.
    """
    _refuse_other_files(out, folders.values())
    columns = samples_schema(cells)
    for task, name in folders.items():
        chosen = [head for head in cells if head.cell.task == task]
        files = _write_tables(out / name, (_table_of_cell(each, columns) for each in _load_cells(chosen)), columns)
        left_over = sorted((out / name).glob("test-*.parquet"))[files:]  # from an earlier export with more files
        for file in left_over:
            file.unlink()


def _refuse_other_files(out: Path, names: Iterable[str]) -> None:
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--samples {out} is a file: give a folder")
    for file in sorted(out.rglob("*.parquet")):
        if not (
            file.parent.parent == out and file.parent.name in set(names) and SAMPLES_FILE_PATTERN.fullmatch(file.name)
        ):
            raise ConfigError(
                f"folder {out} holds {file.relative_to(out)}, which share did not write: give an empty folder"
            )


def _load_cells(cells: Sequence[CellHead]) -> Iterator[FinishedCell]:
    """Cells with their samples, in this order, loaded a few at a time."""
    for some in _batches_of_cells(cells):
        found: dict[str, FinishedCell] = {}
        for folder in {head.folder for head in some}:
            found.update(
                {each.cell.id: rescore_cell(each) for each in Store(folder).load({head.cell.id for head in some})}
            )
        yield from (found[head.cell.id] for head in some)


def _table_of_cell(finished: FinishedCell, columns: pa.Schema) -> pa.Table:
    cell = finished.cell
    about = {name: getattr(cell, name) for name in COLUMNS_OF_CELLS if name not in ("multiple", "cell")}
    about["method"] = str(cell.method)
    shared = {**about, "multiple": cell.length / cell.trained_length, "cell": cell.id}
    return pa.Table.from_pylist([{**shared, **_row_of_sample(sample)} for sample in finished.samples], schema=columns)


def _row_of_sample(sample: Sample) -> Mapping[str, Any]:
    row = {name: getattr(sample, name) for name in (*BEFORE_SCORES, *AFTER_SCORES)}
    scores = {SCORE_COLUMN_PREFIX + name: value for name, value in sample.scores.items()}
    # As text: facts differ from task to task, and a Parquet struct would give all rows the keys of all.
    facts = json.dumps(dict(sample.facts), sort_keys=True, ensure_ascii=False)
    return {**row, **scores, "facts": facts}


def _write_tables(folder: Path, tables: Iterable[pa.Table], columns: pa.Schema) -> int:
    """Write tables to as many files as needed, and return their number; unfinished files have a hidden name."""
    folder.mkdir(parents=True, exist_ok=True)
    source, number = iter(tables), 0
    table = next(source, None)
    while table is not None:
        # `datasets` skips hidden files, so a killed export leaves nothing that it would load.
        hidden = folder / f".test-{number:05}.parquet"
        try:
            # Statistics only of columns that readers filter by: those of prompts would only enlarge the footer.
            options = {"compression": "zstd", "write_statistics": list(COLUMNS_OF_CELLS)}
            with hidden.open("wb") as stream, pq.ParquetWriter(stream, columns, **options) as writer:
                while table is not None and stream.tell() < BYTES_OF_A_FILE:
                    writer.write_table(table, row_group_size=ROWS_OF_A_GROUP)
                    table = next(source, None)
            hidden.replace(folder / hidden.name[1:])
        finally:
            hidden.unlink(missing_ok=True)
        number += 1
    return number
