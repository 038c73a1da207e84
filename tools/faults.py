"""Counts of faults tried and what became of the runs: python tools/faults.py --kills 300 --tries 60

Prints a Markdown table. Every run is a real `lexbench run` on backend chance, in a process of its own; afterwards the
same command runs undisturbed, and its folder must say, byte for byte, what that of a run says that nothing happened to:
records, and every sample and all else in the cells' files.
"""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools import sides
from tools.campaign import campaign

parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[2])
parser.add_argument("--kills", type=int, default=300, help="SIGKILLs")
parser.add_argument("--tries", type=int, default=60, help="of every other fault")
parser.add_argument("--seed", type=int, default=0)


def main() -> int:
    """Print the table; 1 where anything was lost."""
    options = parser.parse_args()
    sides.header("Faults")
    with tempfile.TemporaryDirectory() as folder:
        found = campaign(Path(folder), options.seed, options.kills, options.tries)
    print("| fault | tries | said in one line | folders completed | lost or changed |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for each in found:
        print(f"| {each.fault} | {each.tries} | {each.said} | {each.completed} | {each.lost} |")
    return int(any(each.lost for each in found))


if __name__ == "__main__":
    sys.exit(main())
