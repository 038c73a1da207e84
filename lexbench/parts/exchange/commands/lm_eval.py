"""`lexbench lm_eval`."""

import argparse

from lexbench.commands.command import Command


def call(options: argparse.Namespace, words: list[str]) -> int:
    """Run the harness."""
    from lexbench.parts.exchange import lm_eval

    return lm_eval.main(words)


COMMAND = Command(
    name="lm_eval",
    help="run lm-evaluation-harness with --model lexbench; --help lists its arguments",
    call=call,
    foreign=True,
)
