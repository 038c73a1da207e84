"""The lines of records.jsonl: which stay when it is written anew, their order, and which are stale."""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from lexbench.core.files import read_bytes
from lexbench.core.groups import group_by_key
from lexbench.core.record import Record
from lexbench.store.format import FinishedCell
from lexbench.store.packed import FileState, cell_file_states

Row = dict[str, Any]
"""A line of records.jsonl."""
RECORDS_FILE_NAME = "records.jsonl"
RECORD_ROUNDING_SHARE = 1e-6
"""Largest relative difference between the values of one record on two processors."""


def rows_to_keep(file: Path, now: Mapping[str, FileState]) -> tuple[list[Row] | None, dict[str, list[Row]]]:
    """All rows of records.jsonl, None if unreadable; and by cell the rows to keep, those of cells that are older.

    Args:
        file: records.jsonl.
        now: states of the cells' files, by cell id. Refused cells are read again.
    """
    found: dict[str, list[Row]] = {}
    try:
        written = file.stat().st_mtime_ns
        before = _rows(file)
        for row in before:
            found.setdefault(str(row["cell"]), []).append(row)
        # A cell that finished in the same tick of the clock counts as younger: it is read once more.
        old = {name for name, state in now.items() if state.changed < written}
        rows = {name: each for name, each in found.items() if name in old}
        known = {field.name for field in fields(Record)}
        whole = [name for name, each in rows.items() if all(row.keys() == known for row in each)]
        there = old - {name for name in whole if any(row["refused"] for row in rows[name])}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None, {}
    return before, {name: rows[name] for name in whole if name in there}


def sort_rows(rows: Iterable[Row]) -> list[Row]:
    """Rows by model, task, method, length, seed, metric and cell."""
    names = ("model", "task", "method", "length", "seed")
    return sorted(rows, key=lambda row: (*(row[name] for name in names), row["metric"] or "", row["cell"]))


def stale_lines(
    folder: Path, records_of: Callable[[FinishedCell], Iterable[Record]], cells: Iterable[FinishedCell]
) -> list[str]:
    """Lines where a run folder's records.jsonl does not say what these cells do, or names cells without a file."""
    file = folder / RECORDS_FILE_NAME
    anew = f"lexbench report {folder} writes it anew"
    try:
        held = group_by_key(_rows(file), _record_place)
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        return [f"{file} cannot be read ({type(error).__name__}): {anew}"]
    known = list(cells)
    due = {_record_place(row): row for each in known for record in records_of(each) for row in [record.as_row()]}
    here = {each.cell.id for each in known}
    lost = {place[0] for place in held} - cell_file_states(folder / "cells").keys()
    counts = {
        f"lacks {{}} of {len(due)} records": len(due.keys() - held.keys()),
        "has {} records that its cells do not have": sum(place[0] in here for place in held.keys() - due.keys()),
        "has {} records twice": sum(len(rows) > 1 for rows in held.values()),
        "has {} records that are not those of their samples": sum(
            not all(_rows_agree(row, due[place]) for row in rows) for place, rows in held.items() if place in due
        ),
    }
    found = [f"{file} {said.format(count)}: {anew}" for said, count in counts.items() if count]
    if lost:
        which = f"{len(lost)} in all, first {min(lost)}"
        found.append(f"{file} names cells that have no file ({which}): repeat the run command to measure them")
    return found


def _rows(file: Path) -> list[Row]:
    """All rows of a records.jsonl; raises OSError, ConfigError or TypeError."""
    return [dict(json.loads(line)) for line in read_bytes(file).decode().splitlines()]


def _record_place(row: Mapping[str, Any]) -> tuple[str, Any, Any]:
    """Cell, metric and part of a row; KeyError where it does not say so."""
    return str(row["cell"]), row["metric"], row["part"]


def _rows_agree(one: Row, other: Row) -> bool:
    """Whether two rows say the same, but for the last digits of numbers, which differ between processors."""
    return one.keys() == other.keys() and all(_values_agree(value, other[name]) for name, value in one.items())


def _values_agree(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=RECORD_ROUNDING_SHARE, abs_tol=RECORD_ROUNDING_SHARE)
    return type(one) is type(other) and bool(one == other)
