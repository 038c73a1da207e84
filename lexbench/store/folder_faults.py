"""Faults of the files of a run folder beside its cells: pages of jobs, costs, records, and files that hold no cell."""

import hashlib
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from lexbench.core.errors import ConfigError
from lexbench.core.files import read_bytes, read_object
from lexbench.store.folder_format import FORMAT_FILE
from lexbench.store.format import MAX_COST_AMOUNT, FinishedCell
from lexbench.store.records_file import RECORDS_FILE_NAME
from lexbench.store.stopped import stopped_faults


def folder_faults(folder: Path, cells: Collection[FinishedCell]) -> Iterator[str]:
    """Faults of the files beside the cells, one line each, with the remedy."""
    yield from _job_faults(folder, cells)
    yield from _cost_faults(folder / "costs.jsonl")
    yield from stopped_faults(folder)
    yield from _empty_files(folder / "cells")
    if cells and (folder / FORMAT_FILE).is_file() and not (folder / RECORDS_FILE_NAME).exists():
        yield f"{folder / RECORDS_FILE_NAME} is missing: lexbench report {folder} writes it anew"


def _job_faults(folder: Path, cells: Collection[FinishedCell]) -> Iterator[str]:
    pages = []
    again = "repeat its run command, which writes it anew"
    for file in sorted((folder / "jobs").glob("*.json")):
        try:
            page = read_object(file, again)
        except (OSError, ConfigError) as error:
            yield f"job {file} cannot be read ({' '.join(str(error).split())[:80]}): {again}"
            continue
        if job_name(page.get("config")) != file.stem:
            yield f"job {file} holds other settings than its name says: {again}"
        pages.append(page)
    yield from _unnamed_cells(folder, pages, cells)
    yield from _other_protocols(pages, cells)


def job_name(config: Any) -> str:
    """The name of the page of a job with these settings: their hash."""
    return hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _planned_cells(page: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Cells that a job's page names; None where it is of a version that named none."""
    held = page.get("cells")
    return [each for each in held if isinstance(each, dict)] if isinstance(held, list) else None


def _unnamed_cells(folder: Path, pages: list[dict[str, Any]], cells: Collection[FinishedCell]) -> Iterator[str]:
    """Cells that a run has measured here and no job asked for."""
    planned = [_planned_cells(page) for page in pages]
    if any(each is None for each in planned) or not (folder / FORMAT_FILE).is_file():
        return  # of a version that names no cells
    named = {row.get("cell") for each in planned for row in each or ()}
    measured = _cells_with_costs(folder / "costs.jsonl")
    lost = sorted(each.cell.id for each in cells if each.cell.id in measured and each.cell.id not in named)
    if lost:
        yield (
            f"{folder / 'jobs'} names no job of {len(lost)} cells (first {lost[0]}): put its page back, or repeat the "
            "run command"
        )


def _cells_with_costs(file: Path) -> set[str]:
    """Ids of the cells of costs.jsonl whose answers tell their numbers: those that a run has measured."""
    found = set()
    for line in read_bytes(file).splitlines() if file.is_file() else ():
        try:
            row = json.loads(line)
            if row.get("indices"):
                found.add(row["cell"])
        except (ValueError, AttributeError, KeyError, RecursionError):
            continue
    return found


def _other_protocols(pages: list[dict[str, Any]], cells: Collection[FinishedCell]) -> Iterator[str]:
    stated = {row.get("cell"): row.get("protocol") for page in pages for row in _planned_cells(page) or ()}
    for each in cells:
        said = stated.get(each.cell.id)
        if said is not None and said != each.cell.protocol:
            yield (
                f"cell {each.cell.id} says another protocol than its job: delete cells/{each.cell.id}.parquet and run "
                "the same command again"
            )


def _cost_faults(file: Path) -> Iterator[str]:
    try:
        lines = read_bytes(file).splitlines()
    except FileNotFoundError:
        return
    except OSError as error:
        yield f"costs {file} cannot be read ({error.strerror}): remove it"
        return
    odd = [number for number, line in enumerate(lines, 1) if not _is_cost(line)]
    if odd:
        yield f"costs {file} have {len(odd)} lines that are no cost (first {odd[0]}): remove them"


def _is_cost(line: bytes) -> bool:
    try:
        row = json.loads(line)
        numbers = [row["seconds"], row["tokens"], row["peak_bytes"] or 0]
        numbers += [number for pair in row.get("timings") or () for number in pair]
        return isinstance(row["cell"], str) and all(0 <= float(each) <= MAX_COST_AMOUNT for each in numbers)
    except (ValueError, KeyError, TypeError, OverflowError, AttributeError, RecursionError):
        return False


def _empty_files(cells: Path) -> Iterator[str]:
    """Files of unfinished cells that begin with no cell, as a power cut leaves them."""
    for file in sorted(cells.glob("*.jsonl")):
        try:
            head = read_bytes(file)[:4096]
        except OSError:  # said where the unfinished cells are read
            continue
        if head and b"\n" not in head and not head.startswith(b"{"):
            yield f"samples {file} begin with no cell: delete it and run the same command again"
