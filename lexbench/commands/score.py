"""`lexbench score`."""

import argparse
import itertools
from pathlib import Path

from lexbench.commands.command import Command
from lexbench.core import parts
from lexbench.core.errors import ConfigError


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "benchmark", choices=("longbench", *parts.names_provided("score")), help="benchmark of the predictions"
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder with predictions")
    parser.add_argument(
        "--scorer",
        choices=("official", "repaired"),
        default="official",
        help="babilong, infinitebench: the official rules with their faults, or without (default: %(default)s)",
    )
    longbench = parser.add_argument_group("longbench")
    longbench.add_argument(
        "--e",
        action=argparse.BooleanOptionalAction,
        help="score as LongBench-E, by bucket of length (default: if the name of DIR or its parent ends in _e)",
    )
    longbench.add_argument(
        "--buckets", type=_parse_bounds, metavar="4000,8000", help="bounds of the buckets, as stored lengths in words"
    )
    longbench.add_argument(
        "--similarity", choices=("difflib", "levenshtein"), help="similarity of code (default: difflib)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON: a score by data set, or by bucket")


def _parse_bounds(text: str) -> tuple[int, ...]:
    """Bounds of buckets, ascending."""
    try:
        bounds = tuple(int(part) for part in text.split(","))
    except ValueError:
        bounds = ()
    if not bounds or bounds[0] < 1 or any(low >= high for low, high in itertools.pairwise(bounds)):
        raise argparse.ArgumentTypeError(f"bounds must be whole numbers that ascend, got {text!r}: e.g. 4000,8000")
    return bounds


def call(options: argparse.Namespace, words: list[str]) -> int:
    """Print the scores of the predictions in a folder, by the benchmark's scorer; returns 0."""
    if options.benchmark == "longbench":
        from lexbench.taskkit import longbench

        if options.scorer != "official":
            raise ConfigError("longbench has only the official scorer, got --scorer repaired: leave it out")
        similarity = options.similarity or "difflib"
        print(longbench.score_folder(options.folder, options.e, options.buckets, similarity, options.json))
        return 0
    given = [name for name in ("e", "buckets", "similarity") if getattr(options, name) is not None]
    if given:
        raise ConfigError(f"--{given[0]} is for longbench, got {options.benchmark}: leave it out")
    score_folder = parts.load_provided("score", options.benchmark)
    print(score_folder(options.benchmark, options.folder, options.scorer, options.json))
    return 0


COMMAND = Command(
    name="score",
    heading="exchange",
    help="compute the official scores of published predictions; needs no model",
    call=call,
    arguments=_arguments,
    epilog="""\
DIR holds the files that the benchmark's own code writes.
longbench      DATASET.jsonl with pred, answers, all_classes and length in each line
babilong       TASK_LENGTH_PROMPT.csv with the columns target, output and question; also the average of qa1-qa5
infinitebench  preds_SET.jsonl with prediction and ground_truth in each line
""",
)
