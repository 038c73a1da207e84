"""Reads output files of lm-evaluation-harness: a results file, and beside it a samples file for each task.

    OUT/MODEL/results_DATE.json           aggregates, settings and versions
    OUT/MODEL/samples_TASK_DATE.jsonl     with --log_samples: one example per line and filter

The files are not trusted: sizes are bounded, and anything malformed is a ConfigError of one line that names the file.
"""

import gzip
import hashlib
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from lexbench.core.errors import ConfigError
from lexbench.core.files import parse_object
from lexbench.core.values import is_whole

MAX_FILE_BYTES = 256 << 20
"""Most bytes of a line, of a file that is read whole, and of a log as it is unpacked."""
MAX_UNPACKED_BYTES = 1 << 30
"""Most bytes that a file packed by gzip may hold."""
GZIP_START = b"\x1f\x8b"
DATED_NAME_PATTERN = re.compile(r".+_(\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d(?:\.\d+)?)")
"""File name with a date; all files of one evaluation share the date."""


@dataclass(frozen=True, kw_only=True, eq=False)
class HarnessResults:
    """Results file of one evaluation by the harness, with its samples files."""

    file: Path
    content: Mapping[str, Any]
    samples: Mapping[str, Path]
    """Samples file by task, for tasks with logged samples."""

    def section(self, name: str) -> Mapping[str, Any]:
        """A section of the results file; empty if missing."""
        return mapping_or_empty(self.content.get(name))


def mapping_or_empty(value: Any) -> Mapping[str, Any]:
    """The value if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def whole_number_or_none(value: Any) -> int | None:
    """The value if it is a whole number from 1 to 2^53 - 1, else None."""
    return value if is_whole(value, 1) and value < 1 << 53 else None


def find_results_files(paths: Sequence[Path]) -> list[Path]:
    """The given results files, and those in the given folders at any depth; each once.

    Raises ConfigError for a path that does not exist, and for a folder without results files.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if not path.exists():
            raise ConfigError(f"results {path} do not exist: give the --output_path of lm_eval")
        below = (
            [path]
            if path.is_file()
            else [file for file in sorted(path.rglob("*.json")) if DATED_NAME_PATTERN.fullmatch(file.stem)]
        )
        if not below:
            raise ConfigError(f"folder {path} has no results_DATE.json: give the --output_path of lm_eval")
        found.update(dict.fromkeys(below))
    return list(found)


def read_results(file: Path) -> HarnessResults:
    """Read a results file and find the samples files beside it; ConfigError if it is malformed."""
    if file.stat().st_size > MAX_FILE_BYTES:
        raise ConfigError(
            f"results {file} are larger than {MAX_FILE_BYTES >> 20} MiB: give the harness's results_DATE.json"
        )
    content = parse_object(file.read_bytes(), f"results {file}", "log it again")
    if not isinstance(content.get("results"), Mapping):
        raise ConfigError(f"results {file} have no results by task: give the harness's results_DATE.json")
    dated = DATED_NAME_PATTERN.fullmatch(file.stem)
    ending = f"_{dated[1]}" if dated else ""
    # Never open a path built from names in the file: they may lead anywhere.
    beside = {each.name: each for each in file.parent.glob("samples_*.jsonl")}
    names = {task: f"samples_{task}{ending}.jsonl" for task in content["results"]}
    return HarnessResults(
        file=file, content=content, samples={t: beside[name] for t, name in names.items() if name in beside}
    )


def tasks_of(results: HarnessResults) -> list[str]:
    """Tasks of the results, without groups, which only aggregate tasks."""
    groups = {name for name, parts in results.section("group_subtasks").items() if parts} | {*results.section("groups")}
    return [task for task in results.section("results") if task not in groups]


@dataclass(frozen=True, eq=False)
class SamplesLine:
    """Line of a samples file: place, row and hash."""

    place: str
    """Line and file, for error messages."""
    row: Mapping[str, Any]
    hash: bytes


def numbered_lines(path: Path, remedy: str) -> Iterator[tuple[str, bytes]]:
    """Each line of a file, unpacked where gzip packed it, with its place.

    ConfigError with the remedy for a line of more than `MAX_FILE_BYTES`, and for a file that is damaged or unpacks to
    more than `MAX_UNPACKED_BYTES`.
    """
    total = 0
    with open_unpacked(path) as stream:
        # Bounded: a file without line ends would be read into memory whole.
        for number, line in enumerate(iter(lambda: stream.readline(MAX_FILE_BYTES + 1), b""), 1):
            place, total = f"line {number} of {path}", total + len(line)
            if len(line) > MAX_FILE_BYTES:
                raise ConfigError(f"{place} is larger than {MAX_FILE_BYTES >> 20} MiB: {remedy}")
            if isinstance(stream, gzip.GzipFile) and total > MAX_UNPACKED_BYTES:
                raise ConfigError(f"{path} unpacks to more than {MAX_UNPACKED_BYTES >> 20} MiB: unpack it yourself")
            yield place, line


@contextmanager
def open_unpacked(path: Path) -> Iterator[IO[bytes] | gzip.GzipFile]:
    """A file opened for reading, through gzip where it begins as such a file does; ConfigError where it is damaged."""
    with path.open("rb") as stream:
        packed = stream.read(len(GZIP_START)) == GZIP_START
    try:
        with gzip.open(path) if packed else path.open("rb") as stream:
            yield stream
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ConfigError(f"{path} cannot be unpacked ({str(error)[:80]}): pack it again") from None


def read_samples(file: Path) -> Iterator[SamplesLine]:
    """Lines of a samples file; ConfigError for a malformed one."""
    place = ""
    for place, line in numbered_lines(file, "log the samples again"):
        yield SamplesLine(place, parse_object(line, place, "log it again"), hashlib.sha256(line.rstrip()).digest())
    if not place:
        raise ConfigError(f"samples {file} are empty: run lm_eval again with --log_samples")
