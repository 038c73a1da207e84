"""`lexbench leaderboard`."""

import argparse
from pathlib import Path

from lexbench.commands.command import Command, add_run_folders
from lexbench.core.errors import ConfigError


def _arguments(parser: argparse.ArgumentParser) -> None:
    add_run_folders(parser)
    parser.add_argument(
        "--rows", choices=("method", "model"), default="method", help="what is ranked (default: %(default)s)"
    )
    parser.add_argument(
        "--columns",
        choices=("length", "summary"),
        default="length",
        help="a column for each length, or summaries such as the effective length (default: %(default)s)",
    )
    parser.add_argument(
        "--rule",
        choices=("monotone", "any", "fixed"),
        default="monotone",
        help="how the effective length is found; fixed is RULER's rule (default: %(default)s)",
    )
    parser.add_argument(
        "--margin",
        type=float,
        help="allowed loss inside the effective length, in nats per token or points of a score; the threshold of fixed",
    )
    parser.add_argument("--task", nargs="+", default=[], metavar="NAME", help="only these tasks")
    parser.add_argument(
        "--format",
        choices=("markdown", "csv", "latex", "json", "html"),
        default="markdown",
        help="format of the table (default: %(default)s)",
    )
    parser.add_argument(
        "--published",
        nargs="+",
        default=[],
        metavar="TABLE",
        help="add tables from papers below, each with its own protocol",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write to this file (default: print)")


def call(options: argparse.Namespace, words: list[str]) -> int:
    """Print the leaderboard, or write it."""
    from lexbench.core.files import refuse_record_file, write_text
    from lexbench.report.leaderboard.leaderboard import leaderboard_text

    if options.out and options.out.is_dir():
        raise ConfigError(f"--out {options.out} is a folder: give a file, e.g. --out {options.out / 'leaderboard.md'}")
    if options.out:
        refuse_record_file("--out", options.out)
    choices = (options.rows, options.columns, options.task, options.format, options.published)
    text = leaderboard_text(options.runs, *choices, options.rule, options.margin)
    if options.out:
        write_text(options.out, text)
    print(options.out or text)
    return 0


COMMAND = Command(
    name="leaderboard",
    heading="decide",
    help="rank methods or models, and show which tie with the best statistically",
    call=call,
    arguments=_arguments,
)
