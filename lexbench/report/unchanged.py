"""Whether a report is still that of its run folders, so that nothing need be made anew.

`.made.json` in the report's folder holds the states (size, mtime, inode) of what was read and of what was written: the
files of the run folders, lexbench's own files, the versions of its libraries and the settings on one side; the tables,
the figures, report.md and every records.jsonl on the other. A report that warned about a file is always made anew.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from lexbench.core.files import write_text
from lexbench.core.registry import PACKAGE_FOLDER, asset_folder

STATES_FILE_NAME = ".made.json"
REPORT_FIRST_LINE = "# lexbench report"
"""The first line of report.md."""
HASHED_LIBRARIES = ("matplotlib", "numpy", "pyarrow", "scipy")
REPORT_PATHS = ("report.md", "tables", "plots")
DERIVED_RUN_FILES = ("records.jsonl", "packed.parquet")
"""Files of a run folder that a report writes."""


def sources_hash(folders: Sequence[Path], out: Path, settings: object) -> str:
    """Hash of the states of all that a report is made from; take it before reading."""
    files = (each for folder in folders for each in _files(folder, out.resolve()))
    own = (each for folder in (PACKAGE_FOLDER, asset_folder("configs")) for each in _files(folder))
    about = [str(settings), *(f"{name} {version(name)}" for name in HASHED_LIBRARIES)]
    return _hash([*about, *_states(each for each in files if each.name not in DERIVED_RUN_FILES), *_states(own)])


def report_is_current(folders: Sequence[Path], out: Path, made_from: str) -> bool:
    """Whether a report was made from the same sources, and each file that it wrote is as it was."""
    with suppress(OSError, ValueError, RecursionError):
        held = json.loads((out / STATES_FILE_NAME).read_text(encoding="utf-8"))
        return bool(held == {"from": made_from, "to": _written_files_hash(folders, out)})
    return False


def record_report_states(folders: Sequence[Path], out: Path, made_from: str) -> None:
    """Note that a report is complete."""
    write_text(out / STATES_FILE_NAME, json.dumps({"from": made_from, "to": _written_files_hash(folders, out)}))


def _written_files_hash(folders: Sequence[Path], out: Path) -> str:
    files = (each for name in REPORT_PATHS for each in _files(out / name))
    records = (each for folder in folders for each in _files(folder) if each.name == DERIVED_RUN_FILES[0])
    return _hash(_states([*files, *records]))


def _files(folder: Path, without: Path | None = None) -> Iterator[Path | os.DirEntry[str]]:
    """A file, or the files below a folder without another one and without compiled code."""
    if folder.is_file():
        yield folder.resolve()
    else:
        yield from _entries_below(str(folder.resolve()), str(without))


def _entries_below(folder: str, without: str) -> Iterator[os.DirEntry[str]]:
    """Entries of the system's own lists: a path made of each takes ten times as long."""
    with suppress(OSError), os.scandir(folder) as entries:  # one that cannot be listed cannot be read, either
        for each in entries:
            if not each.is_dir(follow_symlinks=False):  # a link may be one of a loop
                yield each
            elif each.name != "__pycache__" and each.path != without:
                yield from _entries_below(each.path, without)


def _states(files: Iterable[Path | os.DirEntry[str]]) -> Iterator[str]:
    for file in sorted(files, key=os.fspath):
        with suppress(OSError):  # another process has just finished a cell; a loop of links
            state = file.stat()
            yield f"{os.fspath(file)} {state.st_size} {state.st_mtime_ns} {state.st_ino}"


def _hash(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()
