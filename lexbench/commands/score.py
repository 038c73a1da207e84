"""`lexbench score`."""

import argparse
import itertools
from pathlib import Path

from lexbench.commands.command import Command


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("benchmark", choices=("longbench",), help="benchmark of the predictions")
    parser.add_argument("folder", type=Path, metavar="DIR", help="predictions for LongBench or LongBench-E")
    parser.add_argument(
        "--e",
        action=argparse.BooleanOptionalAction,
        help="score as LongBench-E, by bucket of length (default: if the name of DIR or its parent ends in _e)",
    )
    parser.add_argument(
        "--buckets", type=_bounds, metavar="4000,8000", help="bounds of the buckets, as stored lengths in words"
    )
    parser.add_argument(
        "--similarity",
        choices=("difflib", "levenshtein"),
        default="difflib",
        help="similarity of code (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON: a score by data set, or by bucket")


def _bounds(text: str) -> tuple[int, ...]:
    """Bounds of buckets, ascending."""
    try:
        bounds = tuple(int(part) for part in text.split(","))
    except ValueError:
        bounds = ()
    if not bounds or bounds[0] < 1 or any(low >= high for low, high in itertools.pairwise(bounds)):
        raise argparse.ArgumentTypeError(f"bounds must be whole numbers that ascend, got {text!r}: e.g. 4000,8000")
    return bounds


def call(options: argparse.Namespace, words: list[str]) -> int:
    """Print the scores."""
    from lexbench.taskkit import longbench

    print(longbench.score_folder(options.folder, options.e, options.buckets, options.similarity, options.json))
    return 0


COMMAND = Command(
    name="score",
    help="compute the official scores of published predictions; needs no model",
    call=call,
    arguments=_arguments,
    epilog="""\
DIR holds DATASET.jsonl files as LongBench's pred.py writes them, with pred, answers, all_classes and
length in each line.
""",
)
