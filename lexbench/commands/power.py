"""`lexbench power`."""

import argparse
from pathlib import Path

from lexbench.commands.command import SAMPLE_FILES_HELP, Command, add_columns, add_run_folders
from lexbench.core import parts
from lexbench.core.errors import ConfigError


def _arguments(parser: argparse.ArgumentParser) -> None:
    add_run_folders(parser)
    parser.add_argument(
        "--baseline", type=Path, metavar="FILE", help="baseline, written by check --update, or file of samples"
    )
    parser.add_argument(
        "--tolerance",
        "--margin",
        nargs="+",
        default=[],
        metavar="METRIC=LOSS",
        help="margins, as those of lexbench check",
    )
    parser.add_argument(
        "--loss", type=float, metavar="SHARE", help="true loss of the deployments, in margins (default: the pilot's)"
    )
    add_columns(parser)
    parser.add_argument("--json", action="store_true", help="of files of samples: print JSON")


def call(options: argparse.Namespace, words: list[str]) -> int:
    """Print how many questions each claim takes."""
    from lexbench.report.check import power

    samples = parts.load_provided("referee", "samples")
    if samples.is_log(options.runs[0]):
        if len(options.runs) > 1:
            raise ConfigError(f"power takes one file of samples, got {len(options.runs)}: plan each by itself")
        about = {"loss": options.loss, "as_data": options.json}
        print(samples.power_command(options.runs[0], options.baseline, options.columns, options.tolerance, **about))
        return 0
    if options.columns or options.json:
        raise ConfigError("--columns and --json are for files of samples, got run folders: leave them out")
    if options.baseline is None:
        raise ConfigError("power plans a check of a run with its baseline: give --baseline FILE")
    print(
        power.power_table(power.plan_claims(options.runs, options.baseline, options.tolerance, options.loss)).rstrip()
    )
    return 0


COMMAND = Command(
    name="power",
    heading="decide",
    help="plan the questions that a certificate takes, from a short run or a file of samples",
    call=call,
    arguments=_arguments,
    epilog=f"""\
{SAMPLE_FILES_HELP}
  lexbench power before.jsonl --margin accuracy=2
""",
)
