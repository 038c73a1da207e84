"""`lexbench compare`."""

import argparse
from pathlib import Path

from lexbench.commands.command import SAMPLE_FILES_HELP, Command, add_columns
from lexbench.core import parts
from lexbench.core.errors import ConfigError


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", type=Path, metavar="A", help="run folder, or file of samples: the baseline")
    parser.add_argument("b", type=Path, metavar="B", help="what to compare with the baseline")
    parser.add_argument("--a", nargs="+", dest="only_a", default=[], metavar="KEY=VALUE", help="only these cells of A")
    parser.add_argument("--b", nargs="+", dest="only_b", default=[], metavar="KEY=VALUE", help="only these cells of B")
    add_columns(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def call(options: argparse.Namespace, words: list[str]) -> int:
    """Print the comparison."""
    from lexbench.report.check import comparison

    samples = parts.load_provided("referee", "samples")
    logs = [samples.is_log(path) for path in (options.a, options.b)]
    if logs[0] != logs[1]:
        raise ConfigError(f"{options.a} and {options.b} must be two run folders, or two files of samples: give a pair")
    if not logs[0]:
        if options.columns:
            raise ConfigError("--columns names columns of files of samples, got run folders: leave it out")
        sides = {"select_a": options.only_a, "select_b": options.only_b}
        print(comparison.compare_command(options.a, options.b, **sides, as_data=options.json))
        return 0
    if options.only_a or options.only_b:
        raise ConfigError("--a and --b choose cells of run folders, got files of samples: leave them out")
    said, code = samples.compare_command(options.a, options.b, options.columns, as_data=options.json)
    print(said)
    return int(code)


COMMAND = Command(
    name="compare",
    heading="everybody",
    help="show paired differences between two runs, methods, models, or files of samples",
    call=call,
    arguments=_arguments,
    epilog=f"""\
Answers to the same question are paired, even if the two sides differ in everything else:
  lexbench compare runs/x runs/x --a method=none --b method=yarn
  lexbench compare runs/before runs/after
{SAMPLE_FILES_HELP}
  lexbench compare a.jsonl b.jsonl --columns id=question score=correct cluster=document
Of files, exit code 2 says that something cannot be told, as where one lacks samples that may be the wrong ones.
Runs keep the likelihood of each target, not the whole distribution at it. KL divergence from another method, the share
of targets with the same likeliest token, and the rise of the NLL, by length, need both methods in one run:
  lexbench run method=yarn task=divergence task.against=none
""",
)
