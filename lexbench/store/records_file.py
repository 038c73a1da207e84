"""The lines of records.jsonl: which stay when it is written anew, their order, and which are stale."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from lexbench.core.record import Record
from lexbench.store.format import Finished, as_json
from lexbench.store.packed import State, states

Row = dict[str, Any]
"""A line of records.jsonl."""
NAME = "records.jsonl"
SAID = ("cell", "metric", "part", "n", "refused")
"""Fields of a record by which it is found again."""


def kept(file: Path, now: Mapping[str, State]) -> tuple[list[Row] | None, dict[str, list[Row]]]:
    """All rows of records.jsonl, None if unreadable; and by cell the rows to keep, those of cells that are older.

    Args:
        file: records.jsonl.
        now: states of the cells' files, by cell id. Refused cells are read again.
    """
    found: dict[str, list[Row]] = {}
    try:
        written = file.stat().st_mtime_ns
        before = [dict(json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]
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


def in_order(rows: Iterable[Row]) -> list[Row]:
    """Rows by model, task, method, length, seed, metric and cell."""
    names = ("model", "task", "method", "length", "seed")
    return sorted(rows, key=lambda row: (*(row[name] for name in names), row["metric"] or "", row["cell"]))


def stale(folder: Path, records_of: Callable[[Finished], Iterable[Record]], cells: Iterable[Finished]) -> list[str]:
    """Lines where a run folder's records.jsonl does not say what these cells do, or names cells without a file."""
    file = folder / NAME
    try:
        held = [
            {key: row[key] for key in SAID} for row in map(json.loads, file.read_text(encoding="utf-8").splitlines())
        ]
        lost = {str(row["cell"]) for row in held} - states(folder / "cells").keys()
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        return [f"{file} cannot be read ({type(error).__name__}): the same run command writes it again"]
    rows = (record for each in cells for record in records_of(each))
    due = {as_json({key: getattr(row, key) for key in SAID}) for row in rows}
    apart = len(due - set(map(as_json, held)))
    found = [f"{file} lacks {apart} of {len(due)} records: the same run command writes it again"] if apart else []
    if lost:
        which = f"{len(lost)} in all, first {min(lost)}"
        found.append(f"{file} names cells that have no file ({which}): repeat the run command to measure them")
    return found
