"""The ledger: a folder with ledger.jsonl, one line for each admitted submission, in the order of admission.

    {"name", "by", "url", "date", "folder", "cells": {id: sha256}, "previous", "seal"}

`folder` is a run folder, relative to the ledger's and below it. The hashes are those of its cell files when it was
admitted, `previous` is the hash of the line before, `seal` that of the line itself without it (older lines have none):
what is changed afterwards is found. A run folder that has grown is admitted again, under another name: that line holds
its new cells alone.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lexbench.core.errors import ConfigError
from lexbench.core.files import read_bytes, read_utf8, why_not_a_folder, write_text
from lexbench.core.text import plain_text
from lexbench.core.values import checked_field_values

LEDGER_FILE_NAME = "ledger.jsonl"
SUBMISSION_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")
"""Names of submissions."""
CELL_ID_PATTERN, FILE_HASH_PATTERN = re.compile(r"[0-9a-f]{16}"), re.compile(r"[0-9a-f]{32}|")
"""Ids of cells, which are parts of paths; and hashes of their files, empty of one that could not be read."""
FIRST_PREVIOUS_HASH = "0" * 32
"""Hash before the first line of a ledger."""


@dataclass(frozen=True, kw_only=True)
class Submission:
    """Submission of a run folder: a line of the ledger."""

    name: str
    by: str
    """Person or group that measured."""
    url: str | None
    date: str
    """Date of the admission: 2026-11-23."""
    folder: str
    cells: Mapping[str, str]
    """The first 32 hexadecimal digits of the SHA-256 of each cell's file, by the cell's id."""
    previous: str
    seal: str | None = None
    """Hash of the line without the seal; None in lines of older versions."""

    def ledger_line(self) -> str:
        """Line of the ledger: the submission as JSON with sorted keys."""
        held = {key: value for key, value in vars(self).items() if key != "seal" or value is not None}
        return json.dumps(held, sort_keys=True, ensure_ascii=False)

    def with_seal(self) -> "Submission":
        """Copy with its seal: the hash of the line without the seal."""
        return replace(self, seal=short_digest(replace(self, seal=None).ledger_line().encode()))


def read_ledger(ledger: Path) -> list[Submission]:
    """All submissions, in the order of admission; ConfigError where a line is malformed, changed, or missing."""
    file = ledger / LEDGER_FILE_NAME
    if ledger.exists() and not ledger.is_dir():
        raise ConfigError(
            f"ledger {ledger} {why_not_a_folder(ledger)}: give the folder with {LEDGER_FILE_NAME} and the submissions"
        )
    if not file.is_file():
        raise ConfigError(
            f"ledger {ledger} has no {LEDGER_FILE_NAME}: begin it with lexbench board {ledger} --add RUN --by NAME"
        )
    found: list[Submission] = []
    before = FIRST_PREVIOUS_HASH
    for number, line in enumerate(read_utf8(file, "restore it").splitlines(), 1):
        try:
            each = Submission(**checked_field_values(Submission, json.loads(line), f"line {number}"))
        except (ValueError, TypeError, RecursionError) as error:
            said = " ".join(str(error).split())[:80]
            raise ConfigError(f"ledger {file} cannot be read at line {number} ({said}): restore it") from None
        if each.previous != before:
            raise ConfigError(
                f"ledger {file} was changed before line {number}: restore the lines as they were admitted"
            )
        if each.seal is not None and each != each.with_seal():
            raise ConfigError(f"ledger {file} was changed at line {number}: restore the line as it was admitted")
        if wrong := _find_fault(each, ledger):
            raise ConfigError(f"ledger {file} has {wrong} at line {number}: restore the line as it was admitted")
        before = short_digest(line.encode())
        found.append(each)
    return found


def _find_fault(submission: Submission, ledger: Path) -> str:
    """Fault of a line by which no file may be looked for and no page made; empty for a good line."""
    if not SUBMISSION_NAME_PATTERN.fullmatch(submission.name):
        return f"the name {plain_text(submission.name)[:80]!r}"
    if odd := [
        cell
        for cell, held in submission.cells.items()
        if not (CELL_ID_PATTERN.fullmatch(cell) and FILE_HASH_PATTERN.fullmatch(held))
    ]:
        return f"the cell {plain_text(odd[0])[:80]!r}"
    place = Path(submission.folder)
    below = not place.is_absolute() and (ledger / place).resolve().is_relative_to(ledger.resolve())
    return (
        "" if below and ".." not in place.parts else f"the folder {plain_text(submission.folder)[:80]!r}, outside of it"
    )


def hash_cell_files(folder: Path) -> dict[str, str]:
    """Hash of each finished cell's file, by the cell's id; empty of one that cannot be read."""
    return {file.stem: _hash_file(file) for file in sorted((folder / "cells").glob("*.parquet"))}


def _hash_file(file: Path) -> str:
    try:
        return short_digest(read_bytes(file))
    except OSError:
        return ""


def short_digest(content: bytes) -> str:
    """128 bits of the SHA-256, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()[:32]


def propose_submission(ledger: Path, run: Path, name: str, by: str, url: str | None, date: str) -> list[Submission]:
    """The ledger with one more submission at its end; nothing is written.

    Raises ConfigError where the name is taken or is no name of a folder, or the run folder holds no finished cell.
    """
    known = read_ledger(ledger) if (ledger / LEDGER_FILE_NAME).exists() else []
    if not SUBMISSION_NAME_PATTERN.fullmatch(name):
        raise ConfigError(
            f"name of a submission must be letters, digits, dots, dashes, got {name!r}: e.g. lab-yarn-2026"
        )
    if name in {each.name for each in known}:
        raise ConfigError(f"submission {name} is in the ledger already: choose another name")
    folder = _relative_folder(run, ledger)
    held = admitted_cells(known, folder)
    cells = {cell: found for cell, found in hash_cell_files(run).items() if cell not in held}
    if not cells:
        new = "new finished cell" if held else "finished cell"
        raise ConfigError(f"run folder {run} holds no {new}: give one that `lexbench run` has written")
    previous = short_digest(known[-1].ledger_line().encode()) if known else FIRST_PREVIOUS_HASH
    added = Submission(name=name, by=by, url=url, date=date, folder=folder, cells=cells, previous=previous)
    return [*known, added.with_seal()]


def admitted_cells(submissions: Sequence[Submission], folder: str) -> set[str]:
    """Ids of all cells of a run folder that the ledger has."""
    return {cell for each in submissions if each.folder == folder for cell in each.cells}


def _relative_folder(run: Path, ledger: Path) -> str:
    try:
        return run.resolve().relative_to(ledger.resolve()).as_posix()
    except ValueError:
        raise ConfigError(f"run folder {run} must lie in the ledger's folder {ledger}: copy it there") from None


def write_ledger(ledger: Path, submissions: Sequence[Submission]) -> None:
    """Replace the ledger."""
    write_text(ledger / LEDGER_FILE_NAME, "".join(f"{each.ledger_line()}\n" for each in submissions))
