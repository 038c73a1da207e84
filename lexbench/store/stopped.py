"""stopped.jsonl of a run folder: comparisons that have stopped, each with its verdict and interval.

    {"cell": ..., "baseline": ..., "metric": "accuracy", "verdict": "better", "questions": 64, ...}

Both cells stay unfinished: how many questions they hold was decided by their answers, so no statistic of a fixed number
of them may read them. A run with `n` set asks the rest, and makes them ordinary cells.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from lexbench.core.files import read_bytes
from lexbench.core.values import checked_field_values

STOPPED_FILE_NAME = "stopped.jsonl"


@dataclass(frozen=True, kw_only=True)
class StoppedComparison:
    """A method against the baseline, as far as it was asked; amounts are in the metric's own unit."""

    cell: str
    """Id of the method's cell, and of the baseline's."""
    baseline: str
    method: str
    task: str
    length: int
    seed: int
    metric: str
    margin: float
    level: float
    """Chance of a wrong verdict on this comparison, at any number of questions."""
    family: int
    """Comparisons of the run, which share 5 %."""
    questions: int
    """Questions of either cell; with `budget` of them the run would have ended."""
    budget: int
    clusters: int
    clipped: int
    """Clusters whose gain lies beyond the bound of the bets."""
    verdict: str
    gain: float | None
    """Mean gain over the baseline, positive where the method is better; None: no question has a value."""
    low: float | None
    """Ends of the anytime-valid interval; None: nothing is known on this side."""
    high: float | None


def add_stopped(folder: Path, found: StoppedComparison) -> None:
    """Append a comparison that has stopped."""
    with (folder / STOPPED_FILE_NAME).open("a+b") as stream:
        stream.seek(max(0, stream.tell() - 1))
        torn = stream.read(1) not in (b"", b"\n")  # by a process that was killed: it spoils no further line
        stream.write(b"\n" * torn + json.dumps(asdict(found)).encode() + b"\n")


def read_stopped(folder: Path) -> list[StoppedComparison]:
    """Comparisons of a run folder whose cells are unfinished still, the last of each; lines that are none are left out.

    (`stopped_faults` lists those.)
    """
    file = folder / STOPPED_FILE_NAME
    found: dict[tuple[str, str], StoppedComparison] = {}
    for line in read_bytes(file).splitlines() if file.is_file() else ():
        one = _parse(line)
        if one is not None:
            found.pop((one.cell, one.baseline), None)
            found[one.cell, one.baseline] = one
    return [each for each in found.values() if not (folder / "cells" / f"{each.cell}.parquet").exists()]


def stopped_faults(folder: Path) -> list[str]:
    """A line where stopped.jsonl has lines that are no comparison."""
    file = folder / STOPPED_FILE_NAME
    lines = read_bytes(file).splitlines() if file.is_file() else []
    odd = [number for number, line in enumerate(lines, 1) if _parse(line) is None]
    return [f"{file} has {len(odd)} lines that are no comparison (first {odd[0]}): remove them"] if odd else []


def _parse(line: bytes) -> StoppedComparison | None:
    try:
        return StoppedComparison(**checked_field_values(StoppedComparison, json.loads(line), "a comparison"))
    except (ValueError, RecursionError):
        return None
