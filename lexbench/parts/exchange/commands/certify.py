"""`lexbench certify`."""

import argparse
from pathlib import Path

from lexbench.commands.command import SAMPLE_FILES_HELP, Command, add_columns
from lexbench.core.errors import ConfigError


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", type=Path, metavar="A", help="file of samples: the baseline")
    parser.add_argument("b", type=Path, metavar="B", help="file of samples that is to be no worse")
    parser.add_argument(
        "--margin",
        nargs="+",
        default=[],
        metavar="METRIC=LOSS",
        help="loss to exclude: points of a score, nats per token of nll; accuracy=2 is for every score",
    )
    add_columns(parser)
    parser.add_argument("--github", action="store_true", help="print annotations for GitHub Actions, too")
    parser.add_argument("--json", action="store_true", help="print JSON: the certificate")


def call(options: argparse.Namespace, words: list[str]) -> int:
    """Print the verdict; 1 where more is lost, 2 where it is not proven or cannot be told."""
    from lexbench.parts.exchange.referee import command

    if odd := [path for path in (options.a, options.b) if path.is_dir() and not command.is_log(path)]:
        raise ConfigError(
            f"certify compares files of samples, got the folder {odd[0]}: of run folders give "
            "lexbench check RUN --baseline FILE --certify FILE"
        )
    said, code = command.certify_command(
        options.a, options.b, options.columns, options.margin, as_data=options.json, github=options.github
    )
    print(said)
    return code


COMMAND = Command(
    name="certify",
    heading="decide",
    help="prove that a file of samples is no worse than another by more than a margin",
    call=call,
    arguments=_arguments,
    epilog=f"""\
Exit code 0: at 95 % B loses less than the margin; 1: it lost more; 2: not proven, or it cannot be told.
{SAMPLE_FILES_HELP}
  lexbench certify before.jsonl after.jsonl --margin accuracy=2
""",
)
