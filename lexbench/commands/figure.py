"""`lexbench figure`."""

import argparse
from pathlib import Path

from lexbench.commands.command import Command, add_run_folders
from lexbench.core import registry
from lexbench.core.errors import ConfigError

FIGURE_SUFFIXES = (".pdf", ".svg", ".png", ".tex")


def _arguments(parser: argparse.ArgumentParser) -> None:
    add_run_folders(parser)
    parser.add_argument(
        "--out",
        type=Path,
        nargs="+",
        default=[Path("figure.pdf")],
        metavar="FILE",
        help=".pdf, .svg or .png, or .tex for the table; one or several (default: figure.pdf)",
    )
    parser.add_argument(
        "--for",
        dest="size",
        default="neurips",
        metavar="SIZE",
        help="width: neurips, iclr, icml, icml-column, acl, acl-column, ieee, ieee-column, page or slide "
        "(default: %(default)s)",
    )
    parser.add_argument("--method", nargs="+", default=[], metavar="NAME", help="only these methods")
    parser.add_argument("--task", nargs="+", default=[], metavar="NAME", help="only these tasks")
    parser.add_argument(
        "--length", nargs="+", type=int, default=[], metavar="N", help="only these columns of the table"
    )
    parser.add_argument("--interval", default="below", metavar="WHERE", help="of the table: below, beside or none")
    parser.add_argument("--digits", type=int, metavar="N", help="decimals of the table (default: as in reports)")
    parser.add_argument("--highlight", nargs="+", default=[], metavar="METHOD", help="draw these methods in front")


def call(options: argparse.Namespace, words: list[str]) -> int:
    """Write the figure and print its files."""
    from lexbench.report.plots.paper import WIDTH_INCHES_OF_SIZE, write_figure

    if options.size not in WIDTH_INCHES_OF_SIZE:
        near = registry.did_you_mean(options.size, WIDTH_INCHES_OF_SIZE)
        raise ConfigError(
            f"--for must be one of {', '.join(WIDTH_INCHES_OF_SIZE)}, got {options.size}: "
            f"{near.strip() or 'e.g. --for page'}"
        )
    if odd := [file for file in options.out if file.suffix.lower() not in FIGURE_SUFFIXES]:
        raise ConfigError(
            f"--out must end in {', '.join(FIGURE_SUFFIXES[:-1])} or {FIGURE_SUFFIXES[-1]}, got {odd[0].name}: rename "
            "it"
        )
    if options.digits is not None and options.digits < 0:
        raise ConfigError(f"--digits must be a whole number of at least 0, got {options.digits}: e.g. --digits 2")
    chosen = (options.method, options.task, options.size, options.highlight)
    write_figure(options.runs, options.out, *chosen, options.length, options.interval, options.digits)
    print(*options.out, sep="\n")
    return 0


COMMAND = Command(
    name="figure",
    heading="decide",
    help="draw one figure for a paper, and write its LaTeX table, in the width of its column",
    call=call,
    arguments=_arguments,
)
