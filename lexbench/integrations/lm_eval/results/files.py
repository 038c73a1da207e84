"""What lm-evaluation-harness leaves behind: a results file, and beside it a file of samples for each task.

    OUT/MODEL/results_DATE.json           aggregates, settings and versions
    OUT/MODEL/samples_TASK_DATE.jsonl     with --log_samples: an example a line, once for each filter

They are read as what a stranger wrote: sizes are bounded, and whatever is not as it should be is a ValueError of one
line that names the file.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LARGEST = 256 << 20
"""Bytes of a results file, and of a line of a file of samples, above which it is none."""
DATED = re.compile(r".+_(\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d(?:\.\d+)?)")
"""How the names of all files of one evaluation end."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Results:
    """One evaluation."""

    file: Path
    content: Mapping[str, Any]
    samples: Mapping[str, Path]
    """By task, where they were logged."""

    def section(self, name: str) -> Mapping[str, Any]:
        """A part of the content; empty where there is none."""
        return mapping(self.content.get(name))


def mapping(value: Any) -> Mapping[str, Any]:
    """A value that ought to be one; empty where it is none."""
    return value if isinstance(value, Mapping) else {}


def whole(value: Any) -> int | None:
    """A whole number above 0 that any file can hold; None where it is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 53 else None


def results_files(paths: Sequence[Path]) -> list[Path]:
    """The results files themselves, or those in folders, at any depth; each once.

    Raises ValueError for a path that does not exist, and for a folder without a results file.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if not path.exists():
            raise ValueError(f"results {path} do not exist: give what lm_eval wrote to its --output_path")
        below = (
            [path] if path.is_file() else [file for file in sorted(path.rglob("*.json")) if DATED.fullmatch(file.stem)]
        )
        if not below:
            raise ValueError(f"folder {path} holds no results_DATE.json: give what lm_eval wrote to its --output_path")
        found.update(dict.fromkeys(below))
    return list(found)


def read_results(file: Path) -> Results:
    """A results file, with the files of samples beside it; ValueError in one line where it is none."""
    if file.stat().st_size > LARGEST:
        raise ValueError(f"results {file} are larger than {LARGEST >> 20} MiB: give the harness's results_DATE.json")
    content = _parsed(file.read_bytes(), f"results {file}")
    if not isinstance(content.get("results"), Mapping):
        raise ValueError(f"results {file} have no results by task: give the harness's results_DATE.json")
    dated = DATED.fullmatch(file.stem)
    ending = f"_{dated[1]}" if dated else ""
    beside = {each.name: each for each in file.parent.glob("samples_*.jsonl")}  # names are looked up, never opened
    names = {task: f"samples_{task}{ending}.jsonl" for task in content["results"]}
    return Results(file=file, content=content, samples={t: beside[name] for t, name in names.items() if name in beside})


def tasks_of(results: Results) -> list[str]:
    """The tasks that have results of their own; groups are sums over tasks."""
    groups = {name for name, parts in results.section("group_subtasks").items() if parts} | {*results.section("groups")}
    return [task for task in results.section("results") if task not in groups]


@dataclass(frozen=True, eq=False)
class Line:
    """One line of a file of samples."""

    place: str
    """What to call it."""
    row: Mapping[str, Any]
    hash: bytes


def read_samples(file: Path) -> Iterator[Line]:
    """The samples of a task, one after the other; ValueError where one is none."""
    with file.open("rb") as stream:
        number = 0
        while line := stream.readline(LARGEST + 1):
            number += 1
            place = f"line {number} of {file}"
            if len(line) > LARGEST:
                raise ValueError(f"{place} is larger than {LARGEST >> 20} MiB: log the samples again")
            yield Line(place, _parsed(line, place), hashlib.sha256(line.rstrip()).digest())
    if not number:
        raise ValueError(f"samples {file} are empty: run lm_eval again with --log_samples")


def _parsed(content: bytes, place: str) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place} cannot be read as JSON ({' '.join(str(error).split())}): log it again") from None
    if not isinstance(value, dict):
        raise ValueError(f"{place} must be a JSON object, got {type(value).__name__}: log it again")
    return value
