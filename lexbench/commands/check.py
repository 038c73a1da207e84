"""`lexbench check`."""

import argparse
from pathlib import Path
from typing import Any

from lexbench.commands.command import SAMPLE_FILES_HELP, Command, add_columns, add_run_folders
from lexbench.core import parts
from lexbench.core.console import has_colour
from lexbench.core.errors import ConfigError


def _arguments(parser: argparse.ArgumentParser) -> None:
    add_run_folders(parser)
    parser.add_argument(
        "--baseline", required=True, type=Path, metavar="FILE", help="baseline, written by --update, or file of samples"
    )
    parser.add_argument("--update", action="store_true", help="write the baseline instead of checking")
    parser.add_argument("--blind", action="store_true", help="with --update: write one that would find little, too")
    parser.add_argument(
        "--allow-changed", action="store_true", help="accept that a method's attention is another one (exit code 4)"
    )
    parser.add_argument(
        "--tolerance",
        "--margin",
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
    add_columns(parser)
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write JUnit XML to this file")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write a summary to this file")
    parser.add_argument("--github", action="store_true", help="print annotations for GitHub Actions, too")
    parser.add_argument("--json", action="store_true", help="print JSON")


def call(options: argparse.Namespace, words: list[str]) -> int:
    """Print what is worse, or write the baseline."""
    from lexbench.report.check import formats

    samples = parts.load_provided("referee", "samples")
    if samples.is_log(options.runs[0]):
        return _check_samples(samples, options)
    if options.columns:
        raise ConfigError("--columns names columns of files of samples, got run folders: leave it out")
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


def _check_samples(samples: Any, options: argparse.Namespace) -> int:
    """Print what is worse of a file of samples."""
    if len(options.runs) > 1:
        raise ConfigError(f"check takes one file of samples, got {len(options.runs)}: check each by itself")
    unused = ("update", "blind", "allow_changed", "certify", "junit", "markdown")
    if given := next((name for name in unused if getattr(options, name)), None):
        remedy = "give lexbench certify A B" if given == "certify" else "leave it out"
        raise ConfigError(f"--{given.replace('_', '-')} is for run folders, got a file of samples: {remedy}")
    said, code = samples.check_command(
        options.runs[0],
        options.baseline,
        options.columns,
        options.tolerance,
        as_data=options.json,
        github=options.github,
    )
    print(said)
    return int(code)


COMMAND = Command(
    name="check",
    heading="everybody",
    help="test whether a run is worse than a baseline, for CI; exit code 1 if it is, 4 if a method is another one",
    call=call,
    arguments=_arguments,
    epilog=f"""\
{SAMPLE_FILES_HELP}
  lexbench check after.jsonl --baseline before.jsonl --margin accuracy=2
""",
)
