"""`lexbench lm_eval`."""

import argparse

from lexbench.commands.command import Command


def call(options: argparse.Namespace, words: list[str]) -> int:
    """Run the harness."""
    from lexbench.integrations import lm_eval

    return lm_eval.main(words)


COMMAND = Command(
    name="lm_eval",
    help="run lm-evaluation-harness with its own arguments, which --help lists, and --model lexbench",
    call=call,
    foreign=True,
)
