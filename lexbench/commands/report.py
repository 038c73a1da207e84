"""`lexbench report`."""

import argparse
import sys
from pathlib import Path

from lexbench.commands.command import Command, add_run_folders
from lexbench.core import parts


def _arguments(parser: argparse.ArgumentParser) -> None:
    add_run_folders(parser)
    parser.add_argument("--out", type=Path, help="folder of the report (default: RUN/report)")
    parser.add_argument(
        "--highlight",
        nargs="+",
        default=[],
        metavar="METHOD",
        help="always show these methods, in front; as methods of your own, outside the registry, always are",
    )
    parser.add_argument(
        "--figures",
        type=int,
        metavar="N",
        help="draw the figures of the first N tables (default: 40, or 5 in a report of more than 5,000 cells)",
    )
    parser.add_argument(
        "--tables",
        type=int,
        metavar="N",
        help="show N tables, of each task the first (default: all, or 100 in a report of more than 5,000 cells)",
    )
    parser.add_argument("--png", action="store_true", help="draw figures as PNG, too, beside SVG")
    parser.add_argument("--html", action="store_true", help="write one self-contained HTML page, too")


def call(options: argparse.Namespace, words: list[str]) -> int:
    """Write the report and print its file; before it, for people, its first sentence and its first figure."""
    from lexbench.report.report import first_of, write_report

    page = write_report(
        options.runs, options.out, options.highlight, options.png, figures=options.figures, tables=options.tables
    )
    for line in first_of(page):
        print(line, file=sys.stderr)
    print(page)
    if options.html:
        write_page = parts.load_provided("report", "html")
        out = options.out and options.out / "report.html"
        print(write_page(options.runs, out, options.highlight, options.tables))
    return 0


COMMAND = Command(
    name="report",
    heading="everybody",
    help="write tables and plots of run folders; needs no model",
    call=call,
    arguments=_arguments,
)
