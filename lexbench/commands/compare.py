"""`lexbench compare`."""

import argparse
from pathlib import Path

from lexbench.commands.command import Command


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", type=Path, metavar="A", help="run folder: the baseline")
    parser.add_argument("b", type=Path, metavar="B", help="run folder to compare with the baseline")
    parser.add_argument("--a", nargs="+", dest="only_a", default=[], metavar="KEY=VALUE", help="only these cells of A")
    parser.add_argument("--b", nargs="+", dest="only_b", default=[], metavar="KEY=VALUE", help="only these cells of B")
    parser.add_argument("--json", action="store_true", help="print JSON")


def call(options: argparse.Namespace, words: list[str]) -> int:
    """Print the comparison."""
    from lexbench.report.check import comparison

    sides = {"select_a": options.only_a, "select_b": options.only_b}
    print(comparison.command(options.a, options.b, **sides, as_data=options.json))
    return 0


COMMAND = Command(
    name="compare",
    help="show paired differences between two runs, methods, models, versions or backends",
    call=call,
    arguments=_arguments,
    epilog="""\
Answers to the same question are paired, even if the two sides differ in everything else:
  lexbench compare runs/x runs/x --a method=none --b method=yarn
  lexbench compare runs/before runs/after
""",
)
