"""`lexbench share`."""

import argparse
import sys
from pathlib import Path

from lexbench.commands.command import Command, run_folders


def _arguments(parser: argparse.ArgumentParser) -> None:
    run_folders(parser)
    parser.add_argument("--card", metavar="FILE", help="put the results into this model card; - prints them")
    parser.add_argument(
        "--samples",
        type=Path,
        metavar="DIR",
        help="write the samples to this folder, as a dataset for datasets.load_dataset",
    )
    parser.add_argument("--task", nargs="+", default=[], metavar="NAME", help="only these tasks")
    parser.add_argument("--method", nargs="+", default=[], metavar="NAME", help="only these methods")


def call(options: argparse.Namespace, words: list[str]) -> int:
    """Write the card and the samples; notes on what is left out go to stderr."""
    from lexbench.integrations.hub.share import share_card, share_samples

    if options.card is None and options.samples is None:
        raise ValueError("share has nothing to write: give --card FILE, --samples DIR, or both")
    chosen = (options.task, options.method)
    made: list[tuple[str | Path, list[str]]] = []
    if options.card is not None:
        made.append(share_card(options.runs, options.card, *chosen))
    if options.samples is not None:
        made.append(share_samples(options.runs, options.samples, *chosen))
    for written, _ in made:
        print(written)
    for note in (note for _, notes in made for note in notes):
        print(f"lexbench: {note}", file=sys.stderr)
    return 0


COMMAND = Command(
    name="share",
    help="write results into a model card, and samples as a dataset",
    call=call,
    arguments=_arguments,
    epilog="""\
Nothing is uploaded. Without --method, the card of a run with several methods shows only none.
  lexbench share runs/x --card README.md --method yarn --samples shared
""",
)
