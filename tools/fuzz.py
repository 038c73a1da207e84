"""Damaged files for everything that reads files from outside: python tools/fuzz.py --count 1000

With `--of settings` or `--of plug-ins`: settings of any parameter with values of any kind, and plug-ins with one fault
each (tests/faults/plugins.py), under the same rule.

Each reader gets valid files that lexbench wrote, damaged at random (tests/faults/mutations.py): it may read them all
the same or refuse them in one line; a traceback, a second line, a hang, or a change of other files is neither. Prints a
table in Markdown and, below it, one example of each other end; the exit code is 1 where there is one.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TQDM_DISABLE", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.faults.plugins import KINDS, ended
from tests.faults.readers import READERS, Outcome, tried
from tests.parts.faults.readers import READERS_OF_PARTS
from tools import sides


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="damaged files a reader; a twentieth of slow ones")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="readers whose names have one of these")
    parser.add_argument("--of", choices=("files", *KINDS), default="files")
    parser.add_argument("--lines", action="store_true", help="print refusals, each once, to see how they read")
    options = parser.parse_args()
    if options.of != "files":
        return cases(options.of, options.count, options.seed, options.lines)
    others: dict[tuple[str, str], tuple[int, Outcome]] = {}
    sides.header("Damaged files")
    print("| reader | damaged | read all the same | refused in one line | anything else |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for reader in (*READERS, *READERS_OF_PARTS):
        if options.only and not any(word in reader.name for word in options.only):
            continue
        counts, lines = [0, 0, 0], dict[str, None]()
        count = max(1, options.count // 20) if reader.slow else options.count
        with tempfile.TemporaryDirectory() as root:
            for number in range(count):
                found = tried(reader, Path(root), random.Random(f"{options.seed} {reader.name} {number}"))
                counts[{"read": 0, "refused": 1}.get(found.verdict, 2)] += 1
                lines[found.said.replace(root, "")] = None
                if found.verdict not in ("read", "refused"):
                    others.setdefault((reader.name, found.verdict), (number, found))
        print(f"| {reader.name} | {count} | {counts[0]} | {counts[1]} | {counts[2]} |", flush=True)
        for line in sorted(lines) if options.lines else ():
            print(f"    {line[:300]}")
    for (name, verdict), (number, found) in others.items():
        print(f"\n{name}, number {number}: {verdict}; damaged: {found.what}\n{found.said[-1500:]}")
    return 1 if others else 0


def cases(kind: str, count: int, seed: int, lines: bool) -> int:
    """Print the table of one kind of cases; SIGTERM ends it early, with the table of those so far."""
    sides.header(f"Odd {kind}")
    found: Counter[str] = Counter()
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))
    with tempfile.TemporaryDirectory() as root:
        for number in range(count):
            if stopped:
                break
            outcome = ended(kind, Path(root), number, random.Random(f"{seed} {kind} {number}"))
            name = outcome.verdict if outcome.verdict in ("read", "refused") else "anything else"
            found[name] += 1
            if lines or name == "anything else":
                print(
                    f"{number} {outcome.verdict}: {outcome.what}\n{outcome.said[-1500:]}", file=sys.stderr, flush=True
                )
    print(f"| {kind} | done all the same | refused in one line | anything else |\n| ---: | ---: | ---: | ---: |")
    print(f"| {found.total()} | {found['read']} | {found['refused']} | {found['anything else']} |")
    return 1 if found["anything else"] else 0


if __name__ == "__main__":
    sys.exit(main())
