"""`lexbench power`."""

import argparse
from pathlib import Path

from lexbench.commands.command import Command, add_run_folders


def _arguments(parser: argparse.ArgumentParser) -> None:
    add_run_folders(parser)
    parser.add_argument(
        "--baseline", required=True, type=Path, metavar="FILE", help="baseline, written by check --update"
    )
    parser.add_argument(
        "--tolerance", nargs="+", default=[], metavar="METRIC=LOSS", help="margins, as those of lexbench check"
    )
    parser.add_argument(
        "--loss", type=float, metavar="SHARE", help="true loss of the deployments, in margins (default: the pilot's)"
    )


def call(options: argparse.Namespace, words: list[str]) -> int:
    """Print how many questions each claim takes."""
    from lexbench.report.check import power

    print(
        power.power_table(power.plan_claims(options.runs, options.baseline, options.tolerance, options.loss)).rstrip()
    )
    return 0


COMMAND = Command(
    name="power", help="plan the questions that a certificate takes, from a short run", call=call, arguments=_arguments
)
