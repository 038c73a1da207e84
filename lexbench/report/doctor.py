"""`lexbench doctor`: what is wrong with run folders, as text and as data."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lexbench.core.record import Cell
from lexbench.core.text import count_with_noun, plain_text
from lexbench.report import formats
from lexbench.stats import invariants
from lexbench.stats.damages import damages_by_cell, sample_damages
from lexbench.stats.records import records_of, run_folders
from lexbench.store.folder_faults import folder_faults
from lexbench.store.records_file import stale_lines
from lexbench.store.store import Store


@dataclass(frozen=True)
class Diagnosis:
    """Run folders, examined."""

    folders: int
    cells: int
    """Finished cells, refused ones among them."""
    unfinished: int
    faults: list[str]
    """Faults of files and cells, one line each."""
    milliseconds: float
    """Milliseconds to examine a cell, without the time to read it."""


def examine_runs(folders: Sequence[Path]) -> Diagnosis:
    """Examine every finished cell: its file's checksums, the hash of its identity, its invariants, and its records; and
    every line of an unfinished one.

    ConfigError where there is no run folder.
    """
    faults, cells, unfinished, seconds = [], 0, 0, 0.0
    runs = run_folders(folders)
    for folder in runs:
        store = Store(folder)
        found = store.load(packed=False)
        unread = list(store.problems)
        start = time.perf_counter()
        said = invariants.record_problems(found)
        damaged = damages_by_cell([each for each in found if each.cell.id not in said])
        said |= {
            each.cell.id: invariants.fault_line(each, damaged[each.cell.id])
            for each in found
            if each.cell.id in damaged
        }
        seconds += time.perf_counter() - start
        beside = folder_faults(folder, found)
        good = [each for each in found if each.cell.id not in said]
        old = stale_lines(folder, records_of, good)
        left = store.unfinished_cells()  # adds to the problems of `load`
        begun = [fault for cell in left for fault in _unfinished_faults(store, cell)]
        more = store.problems[len(unread) :]
        faults += [f"{folder}: {each}" for each in (*unread, *said.values(), *old, *beside, *more, *begun)]
        cells += len(found)
        unfinished += len(left)
    return Diagnosis(len(runs), cells, unfinished, list(dict.fromkeys(faults)), 1000 * seconds / max(1, cells))


def _unfinished_faults(store: Store, cell: Cell) -> Iterator[str]:
    """Faults of an unfinished cell's samples so far."""
    try:
        samples = store.unfinished_samples(cell)
        damaged = (f"sample {one.index} with {fault}" for one in samples for fault in sample_damages(one))
        for fault in (*invariants.unfinished_cell_faults(cell, samples), *damaged):
            file = store.folder / "cells" / f"{cell.id}.jsonl"
            remedy = invariants.remedy_of(fault, "it", "run the same command again")
            yield f"samples {file} have {plain_text(fault)}: {remedy}"
            return
    except FileNotFoundError:  # another process has just finished it
        return
    except (OSError, ValueError) as error:
        yield str(error)


def doctor_command(folders: Sequence[Path], *, as_data: bool = False) -> tuple[str, int]:
    """The text to print and the exit code: 1 where something is wrong."""
    found = examine_runs(folders)
    code = 1 if found.faults else 0
    if as_data:
        return formats.as_json(vars(found)), code
    held = f"{count_with_noun(found.cells, 'finished cell')} in {count_with_noun(found.folders, 'run folder')}"
    left = f", {count_with_noun(found.unfinished, 'unfinished cell')}" if found.unfinished else ""
    end = f"{len(found.faults)} wrong" if found.faults else "all sound"
    return "\n".join([f"{held}{left}: {end} ({found.milliseconds:.2f} ms per cell)", *found.faults]), code
