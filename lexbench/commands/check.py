"""`lexbench check`."""

import argparse
from pathlib import Path

from lexbench.commands.command import Command, add_run_folders
from lexbench.core.console import has_colour


def _arguments(parser: argparse.ArgumentParser) -> None:
    add_run_folders(parser)
    parser.add_argument("--baseline", required=True, type=Path, metavar="FILE", help="baseline, written by --update")
    parser.add_argument("--update", action="store_true", help="write the baseline instead of checking")
    parser.add_argument("--blind", action="store_true", help="with --update: write one that would find little, too")
    parser.add_argument(
        "--allow-changed", action="store_true", help="accept that a method's attention is another one (exit code 4)"
    )
    parser.add_argument(
        "--tolerance",
        nargs="+",
        default=[],
        metavar="METRIC=LOSS",
        help="allowed loss: nats per token, or points of a score, e.g. nll=0.02 accuracy=2; nll@32768=0.05 at a length",
    )
    parser.add_argument(
        "--certify",
        type=Path,
        metavar="FILE",
        help="prove that less than the tolerance is lost, and write the certificate; exit code 2 if it is not proven",
    )
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write JUnit XML to this file")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write a summary to this file")
    parser.add_argument("--github", action="store_true", help="print annotations for GitHub Actions, too")
    parser.add_argument("--json", action="store_true", help="print JSON")


def call(options: argparse.Namespace, words: list[str]) -> int:
    """Print what is worse, or write the baseline."""
    from lexbench.report.check import formats

    said, code = formats.check_command(
        options.runs,
        options.baseline,
        tolerance=options.tolerance,
        update=options.update,
        allow_blind=options.blind,
        allow_changed=options.allow_changed,
        junit_file=options.junit,
        markdown_file=options.markdown,
        github=options.github,
        as_data=options.json,
        certificate_file=options.certify,
        colour=has_colour(),
    )
    print(said)
    return code


COMMAND = Command(
    name="check",
    help="test whether a run is worse than a baseline, for CI; exit code 1 if it is, 4 if a method is another one",
    call=call,
    arguments=_arguments,
)
