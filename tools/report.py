"""`lexbench report` of a reference folder: python tools/report.py

Times the first report of a copy of the folder, another one of the unchanged folder, and one with PNG files, in
processes of their own: seconds, and the processor seconds of the process and of what it starts, which other programs on
the machine disturb less. `--against DIR` times the first report of another checkout of lexbench, in turns.
"""

import argparse
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools import sides

KINDS: dict[str, list[str]] = {"first": [], "again, unchanged": [], "with PNG": ["--png"]}
OTHER: dict[str, list[str]] = {"first": []}
Times = tuple[float, float]
"""Seconds, and processor seconds."""


def timed(checkout: Path, run: Path, *more: str) -> Times:
    """Seconds, and processor seconds, of one report."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    words = [sys.executable, "-P", "-m", "lexbench", "report", str(run), *more]
    sides.run(words, PYTHONPATH=str(checkout), OMP_NUM_THREADS=os.environ.get("OMP_NUM_THREADS", "1"))
    after, seconds = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - started
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def turn(checkout: Path, folder: Path, scratch: Path, kinds: Mapping[str, Sequence[str]]) -> dict[str, Times]:
    """Reports of a fresh copy, one after another: by their name, what the command is given."""
    run = scratch / "run"
    shutil.copytree(folder, run)
    shutil.rmtree(run / "report", ignore_errors=True)
    try:
        return {kind: timed(checkout, run, *more) for kind, more in kinds.items()}
    finally:
        shutil.rmtree(run)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=sides.ROOT / "results" / "reference" / "lexlet")
    parser.add_argument("--against", type=Path, help="folder of another checkout")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    sides.header(f"Report of {len(list((options.folder / 'cells').glob('*.parquet')))} cells")
    found: dict[tuple[str, str], list[Times]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for _ in range(options.repeat):
            for name, checkout, kinds in (("this", sides.ROOT, KINDS), ("the other", options.against, OTHER)):
                if checkout:
                    for kind, times in turn(checkout, options.folder, Path(scratch), kinds).items():
                        found.setdefault((name, kind), []).append(times)
    sides.table(":checkout", ":report", "seconds", "smallest", "processor seconds", "smallest")
    for (name, kind), each in found.items():
        columns = zip(*each, strict=True)
        numbers = [f"{pick(column):.1f}" for column in columns for pick in (statistics.median, min)]
        sides.row(name, kind, *numbers)


if __name__ == "__main__":
    main()
