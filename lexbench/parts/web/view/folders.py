"""State of run folders from names, sizes and times of files; a file is read again only if it has changed."""

import hashlib
import json
import math
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from lexbench.core.errors import ConfigError
from lexbench.core.files import check_regular, read_bytes, why_not_a_folder
from lexbench.core.values import is_whole

RUN_SUBFOLDERS = ("cells", "jobs", "report")
"""Folders inside a run folder; not searched for run folders."""


@dataclass(frozen=True)
class JobCell:
    """A cell of a job, measured or not."""

    method: str
    task: str
    length: int
    seed: int
    tokens: int
    """Tokens to read and write, over all questions of the first seed; 0 if the cell is refused from the start."""


@dataclass(frozen=True)
class WatchedJob:
    """Planned cells of one job of a run folder, from its file."""

    name: str
    model: str
    n: int
    """Samples per cell."""
    begun: float
    """Time of the last start, in seconds since the epoch."""
    planned: Mapping[str, JobCell]
    """Planned cells by id, in the order of measurement."""


@dataclass(frozen=True)
class UnfinishedCell:
    """A cell with samples that is not finished."""

    method: str
    task: str
    length: int
    n: int
    samples: int
    written: float
    """Time of the last sample, in seconds since the epoch."""
    seconds_per_sample: float | None
    """Measured since the first look at the cell; None without new samples."""


@dataclass(frozen=True)
class WatchedRun:
    """State of a run folder."""

    folder: Path
    finished: Mapping[str, float]
    """Time of each finished cell's file."""
    refused: frozenset[str]
    unfinished: Mapping[str, UnfinishedCell]
    jobs: Sequence[WatchedJob]
    seconds: Mapping[str, float]
    """Seconds that each cell took."""
    problems: Sequence[str]
    """Names of files that cannot be read."""


@dataclass
class _GrowingFile:
    """Reading state of an unfinished cell's file: each look reads only what was appended."""

    cell: dict[str, Any] | None = None
    offset: int = 0
    lines: int = 0
    first: tuple[float, int] | None = None
    """Time and number of samples at the first look."""


class FolderWatch:
    """Observes run folders, or folders of run folders, repeatedly."""

    def __init__(self, folders: Sequence[Path]) -> None:
        for folder in folders:
            if not folder.is_dir():
                raise ConfigError(
                    f"run folder {folder} {why_not_a_folder(folder)}: give the results folder of `lexbench run`"
                )
        self.folders = [Path(folder) for folder in folders]
        self._growing: dict[Path, _GrowingFile] = {}
        self._read: dict[Path, tuple[tuple[int, int], Any]] = {}
        self._lock = threading.Lock()

    def find_run_folders(self) -> list[Path]:
        """The run folders among and below the given folders, at this moment; each once."""
        found: dict[Path, None] = {}
        for folder in self.folders:
            for place, below, _ in os.walk(folder):
                if "cells" in below or "jobs" in below:
                    found[Path(place)] = None
                if Path(place) == folder and Path(place) in found:  # a run folder itself: nothing below it is one
                    break
                below[:] = sorted(name for name in below if name not in RUN_SUBFOLDERS)
        return list(found)

    def folders_state(self) -> tuple[str, int]:
        """A hash that changes exactly if the finished cells' files change, and the number of finished cells."""
        files = [
            (folder, name, status)
            for folder in self.find_run_folders()
            for name, status in _list_files(folder / "cells", ".parquet")
        ]
        lines = [f"{folder} {name} {status.st_mtime_ns} {status.st_size}" for folder, name, status in files]
        return hashlib.sha256(os.fsencode("\n".join(lines))).hexdigest()[:16], len({name for _, name, _ in files})

    def read_runs(self) -> list[WatchedRun]:
        """State of every run folder."""
        with self._lock:
            return [self._read_run(folder) for folder in self.find_run_folders()]

    def _read_run(self, folder: Path) -> WatchedRun:
        problems: list[str] = []
        files = {name.removesuffix(".parquet"): status for name, status in _list_files(folder / "cells", ".parquet")}
        finished, refused = {}, set()
        for cell, status in files.items():
            verdict = self._read_once(folder / "cells" / f"{cell}.parquet", status, _is_refused)
            if verdict is None:
                problems.append(f"cells/{cell}.parquet")
                continue
            finished[cell] = status.st_mtime
            if verdict:
                refused.add(cell)
        unfinished = {}
        for name, _ in _list_files(folder / "cells", ".jsonl"):
            cell = name.removesuffix(".jsonl")
            found = self._read_unfinished(folder / "cells" / name) if cell not in files else None
            if found:
                unfinished[cell] = found
        jobs = []
        for name, status in _list_files(folder / "jobs", ".json"):
            job = self._read_once(folder / "jobs" / name, status, _read_job)
            if job is None:
                problems.append(f"jobs/{name}")
            else:
                jobs.append(job)
        costs = [
            self._read_once(folder / name, status, _seconds_of_cells)
            for name, status in _list_files(folder, "costs.jsonl")
        ]
        return WatchedRun(
            folder, finished, frozenset(refused), unfinished, jobs, costs[0] or {} if costs else {}, problems
        )

    def _read_once(self, file: Path, status: os.stat_result, read: Any) -> Any:
        """Result of `read(file)`, cached until the file's size or mtime changes; None if it cannot be read."""
        version = (status.st_mtime_ns, status.st_size)
        if self._read.get(file, (None,))[0] != version:
            try:
                made = read(file)
            except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, pa.ArrowException):
                made = None
            self._read[file] = (version, made)
        return self._read[file][1]

    def _read_unfinished(self, file: Path) -> UnfinishedCell | None:
        """State of an unfinished cell; None if its file has no complete line yet, or is gone."""
        known = self._growing.setdefault(file, _GrowingFile())
        try:
            check_regular(file)
            with file.open("rb") as stream:
                status = os.fstat(stream.fileno())
                if status.st_size < known.offset:  # a resumed run truncates a torn line or starts again
                    known = self._growing[file] = _GrowingFile()
                if known.cell is None:
                    head = stream.readline()
                    if not head.endswith(b"\n"):
                        return None
                    known.cell, known.offset = dict(json.loads(head)), stream.tell()
                _count_new_lines(stream, known)
            cell = known.cell
            told = (
                str(cell["method"]),
                str(cell["task"]),
                _checked_whole_number(cell["length"], 1),
                _checked_whole_number(cell["n"], 1),
            )
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        known.first = known.first or (status.st_mtime, known.lines)
        gone, came = status.st_mtime - known.first[0], known.lines - known.first[1]
        return UnfinishedCell(*told, known.lines, status.st_mtime, gone / came if came > 0 and gone > 0 else None)


def _count_new_lines(stream: BinaryIO, known: _GrowingFile) -> None:
    """Count complete new lines; an incomplete last line is read again next time."""
    place = known.offset
    stream.seek(place)
    while added := stream.read(1 << 20):
        if whole := added.rfind(b"\n") + 1:
            known.lines += added.count(b"\n")
            known.offset = place + whole
        place += len(added)


def _list_files(folder: Path, suffix: str) -> list[tuple[str, os.stat_result]]:
    """Files of a folder with this suffix, sorted; none if the folder does not exist yet."""
    found = []
    try:
        for entry in os.scandir(folder):
            if entry.name.endswith(suffix) and not entry.name.startswith("."):
                try:
                    found.append((entry.name, entry.stat()))
                except OSError:  # removed in the meantime, or a loop of links
                    continue
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(found, key=lambda each: each[0])


def _is_refused(file: Path) -> bool:
    """Whether a finished cell's file holds a refusal."""
    check_regular(file)
    return json.loads(pq.read_metadata(file).metadata[b"refused"]) is not None


def _read_job(file: Path) -> WatchedJob:
    """Read a job's file; `planned` is empty if it lists no cells."""
    content = json.loads(read_bytes(file))
    config = content["config"]
    planned = {
        str(row["cell"]): JobCell(
            method=str(row["method"]),
            task=str(row["task"]),
            length=_checked_whole_number(row["length"], 1),
            seed=_checked_whole_number(row["seed"], 0),
            tokens=_checked_whole_number(row["tokens"], 0),
        )
        for row in content.get("cells", [])
    }
    return WatchedJob(
        file.stem, str(config["model"]["name"]), _checked_whole_number(config["n"], 1), file.stat().st_mtime, planned
    )


def _seconds_of_cells(file: Path) -> dict[str, float]:
    """Seconds of each cell, summed over its rows; malformed rows are skipped."""
    found: dict[str, float] = {}
    for line in read_bytes(file).splitlines():
        try:
            row = json.loads(line)
            cell, seconds = str(row["cell"]), float(row["seconds"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):  # being written now, or damaged
            continue
        if 0 <= seconds < math.inf:
            found[cell] = found.get(cell, 0.0) + seconds
    return found


def _checked_whole_number(value: Any, least: int) -> int:
    """The value if it is a whole number of at least `least`, else ConfigError."""
    if not is_whole(value, least):
        raise ConfigError(f"{value!r} must be a whole number of at least {least}")
    return int(value)
