"""`lexbench doctor`."""

import argparse

from lexbench.commands.command import Command, add_run_folders


def _arguments(parser: argparse.ArgumentParser) -> None:
    add_run_folders(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def call(options: argparse.Namespace, words: list[str]) -> int:
    """Print what is wrong with the cells of run folders."""
    from lexbench.report import doctor

    said, code = doctor.doctor_command(options.runs, as_data=options.json)
    print(said)
    return code


COMMAND = Command(
    name="doctor",
    heading="decide",
    help="check that every finished cell holds what was asked, undamaged and possible; exit code 1 if one does not",
    call=call,
    arguments=_arguments,
)
