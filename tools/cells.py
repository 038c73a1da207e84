"""What commands take as a run folder's cells grow in number: python tools/cells.py --cells 1000 10000

Run folders of tiny cells: four methods, one passkey a cell, five lengths and up to 500 seeds, then more lengths (the
time of hydra's parser grows with the square of a list), answered by the backend `chance`, which loads no model. `fresh`
measures all of them; then the same command again: only its plan, and with nothing left to measure; then report,
leaderboard, check. Every command is a process of its own; `start` is what it takes on a folder of 20 cells, the
exponent that of the growth of what is above it, from one size to the next: 1 is linear. `--profile` runs each command
once more under cProfile at the last size, and prints where the time goes.

A command that took more than `--limit` seconds is not run at the next size, unless the limit is raised: 100,000 cells
take half an hour. Every seed is a section of the report; of more than 5,000 cells it shows 100 tables and plots of 5,
so that the exponent of `report` is that of reading and records.
"""

import argparse
import math
import pstats
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from tools import sides

METHODS = ("none", "pi", "ntk", "yarn")
LENGTHS = 5
SEEDS = 500
START = len(METHODS) * LENGTHS
"""Cells of the folder that shows what a command takes at the least."""


def commands(folder: Path, cells: int) -> dict[str, list[str]]:
    """Each command's words, in the order in which they run."""
    count = min(cells // START, SEEDS)
    seeds = ",".join(map(str, range(count)))
    lengths = ",".join(str(round(length)) for length in np.geomspace(64, 1024, cells // len(METHODS) // count))
    sweep = ["run", "-m", f"method={','.join(METHODS)}", "task=passkey", "backend=chance", f"lengths=[{lengths}]"]
    sweep += [f"seed=[{seeds}]", "n=1", f"results={folder}"]
    runs, baseline = str(folder), str(folder.parent / f"{folder.name}.json")
    return {
        "fresh": sweep,
        "plan": [*sweep, "--dry-run"],
        "resume": sweep,
        "report": ["report", runs, "--out", str(folder.parent / f"{folder.name}-report")],
        "leaderboard": ["leaderboard", runs],
        "check --update": ["check", runs, "--baseline", baseline, "--update"],
        "check": ["check", runs, "--baseline", baseline],
    }


def profiled(words: Sequence[str], top: int) -> None:
    """Functions by the time in them and below, and in them alone."""
    with tempfile.TemporaryDirectory() as temporary:
        file = str(Path(temporary) / "profile")
        sides.run([sys.executable, "-m", "cProfile", "-o", file, "-m", "lexbench", *words])
        for order in ("cumulative", "tottime"):
            pstats.Stats(file).sort_stats(order).print_stats(r"^(?!.*importlib)", top)


def measured(folder: Path, options: argparse.Namespace) -> None:
    names = [name for name in commands(folder, START) if name not in options.skip]
    sizes = [START, *sorted(options.cells)]
    taken: dict[str, dict[int, sides.Ran]] = {name: {} for name in names}
    sides.table(":command", "cells", "seconds", "ms a cell above start", "exponent", "peak MB")
    for size in sizes:
        given = commands(folder / str(size), size)
        for name in names:
            if any(ran.seconds > options.limit for ran in taken[name].values()):
                sides.row(name, f"{size:,}", f"left out: over {options.limit:.0f} before", "", "", "")
                continue
            ran = taken[name][size] = sides.run([sys.executable, "-m", "lexbench", *given[name]])
            above = ran.seconds - taken[name][START].seconds
            each = f"{1000 * above / size:.2f}" if size > START else "—"
            shown = growth(taken[name]) if size > START else "start"
            sides.row(name, f"{size:,}", f"{ran.seconds:.1f}", each, shown, f"{ran.bytes / 1e6:.0f}")
    if options.profile:
        for name, words in commands(folder / str(sizes[-1]), sizes[-1]).items():
            if name in names and name != "fresh" and sizes[-1] in taken[name]:
                print(f"\n## {name} at {sizes[-1]:,}\n")
                profiled(words, options.profile)


def growth(taken: dict[int, sides.Ran]) -> str:
    """Exponent between the last two sizes of what is above the start."""
    start, *grown = taken.items()
    if len(grown) < 2:
        return "—"
    (less, before), (more, after) = grown[-2:]
    least = start[1].seconds
    if before.seconds <= 1.1 * least:
        return "— (start dominates)"
    return f"{math.log((after.seconds - least) / (before.seconds - least)) / math.log(more / less):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--cells", type=int, nargs="+", default=[500, 2000], help=f"multiples of {START}; above 10,000 of 10,000"
    )
    parser.add_argument("--skip", nargs="+", default=[], metavar="COMMAND", help="of the table's names")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds: a slower command is not run at more")
    parser.add_argument("--profile", type=int, default=0, metavar="TOP", help="functions to print for each command")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="a folder for the runs, which are kept")
    options = parser.parse_args()
    whole = START * SEEDS
    if odd := [cells for cells in options.cells if cells % (START if cells < whole else whole) or cells <= START]:
        parser.error(f"--cells must be multiples of {START} above it, from {whole} on of {whole}, got {odd[0]}")
    sides.header("Cells of a run folder")
    with tempfile.TemporaryDirectory() as temporary:
        measured(options.keep or Path(temporary), options)


if __name__ == "__main__":
    main()
