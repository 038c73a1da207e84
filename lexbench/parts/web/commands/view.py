"""`lexbench view`."""

import argparse

from lexbench.commands.command import Command, add_run_folders


def _arguments(parser: argparse.ArgumentParser) -> None:
    add_run_folders(parser)
    parser.add_argument("--port", type=int, default=8000, help="port; 0 takes any free one (default: %(default)s)")


def call(options: argparse.Namespace, words: list[str]) -> int:
    """Serve until interrupted."""
    from lexbench.parts.web.view import serve

    serve(options.runs, options.port)
    return 0


COMMAND = Command(
    name="view",
    heading="decide",
    help="show results in a browser on this machine, with the progress of a run",
    call=call,
    own_progress=True,
    arguments=_arguments,
)
