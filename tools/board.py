"""What `lexbench board` takes as a ledger grows: python tools/board.py --entries 1000 10000

Each entry is a committed cell of results/reference/lexlet (32 samples, likelihoods and written answers) under another
seed, so every entry has an identity of its own. The files are written and admitted first; then a process, with one more
for each processor, recomputes all and writes the page.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from lexbench.parts.web.board import ledger
from lexbench.store import format

REFERENCE = Path(__file__).parents[1] / "results" / "reference" / "lexlet" / "cells"


def make(folder: Path, entries: int) -> None:
    """A ledger with one submission of so many cells."""
    cells = [each for each in map(format.read_cell_file, sorted(REFERENCE.glob("*.parquet"))) if each.samples]
    (folder / "run" / "cells").mkdir(parents=True)
    for place in range(entries):
        each, seed = cells[place % len(cells)], place // len(cells)
        cell = replace(each.cell, seed=seed, identity={**each.cell.identity, "seed": seed})
        (folder / "run" / "cells" / f"{cell.id}.parquet").write_bytes(format.cell_parquet(cell, each.samples, None))
    ledger.write_ledger(
        folder, ledger.propose_submission(folder, folder / "run", "run", "a benchmark", None, "2026-11-23")
    )


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, nargs="+", default=[1000, 10000])
    options = parser.parse_args()
    print("| entries | seconds | processor seconds | ms an entry | page MB | site MB | peak MB |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for entries in options.entries:
        with tempfile.TemporaryDirectory() as temporary:
            make(Path(temporary), entries)
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            start = time.perf_counter()
            subprocess.run([sys.executable, "-m", "lexbench", "board", temporary], check=True, capture_output=True)
            seconds = time.perf_counter() - start
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            site = Path(temporary) / "board"
            page = (site / "index.html").stat().st_size
            whole = sum(file.stat().st_size for file in site.rglob("*") if file.is_file())
            row = [f"{entries:,}", f"{seconds:.1f}", f"{spent:.1f}", f"{1000 * seconds / entries:.1f}"]
            row += [f"{page / 1e6:.2f}", f"{whole / 1e6:.0f}", f"{after.ru_maxrss / 1024:.0f}"]
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
