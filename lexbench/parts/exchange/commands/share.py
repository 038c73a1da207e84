"""`lexbench share`."""

import argparse
import sys
from pathlib import Path

from lexbench.commands.command import Command, add_run_folders
from lexbench.core.errors import ConfigError


def _arguments(parser: argparse.ArgumentParser) -> None:
    add_run_folders(parser)
    parser.add_argument("--card", metavar="FILE", help="put the results into this model card; - prints them")
    parser.add_argument(
        "--dataset", metavar="ORG/NAME", help="the samples on the hub: --card also writes .eval_results/lexbench.yaml"
    )
    parser.add_argument(
        "--samples",
        type=Path,
        metavar="DIR",
        help="write the samples to this folder, as a dataset for datasets.load_dataset",
    )
    parser.add_argument(
        "--to", choices=["every_eval_ever", "inspect", "lm_eval"], help="write the results as files of another program"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for the files of --to")
    parser.add_argument("--by", metavar="NAME", help="who measured; every_eval_ever asks for it")
    parser.add_argument("--developer", metavar="NAME", help="who made the model, where its name is not ORG/NAME")
    parser.add_argument("--task", nargs="+", default=[], metavar="NAME", help="only these tasks")
    parser.add_argument("--method", nargs="+", default=[], metavar="NAME", help="only these methods")


def call(options: argparse.Namespace, words: list[str]) -> int:
    """Write the card and the samples; notes on what is left out go to stderr."""
    from lexbench.parts.exchange.share import share_card, share_files, share_samples

    if options.card is None and options.samples is None and options.to is None:
        raise ConfigError("share has nothing to write: give --card FILE, --samples DIR, or --to FORMAT --out DIR")
    if (options.to is None) != (options.out is None):
        raise ConfigError("--to and --out go together: give --to FORMAT --out DIR")
    if options.dataset is not None and options.card in (None, "-"):
        raise ConfigError("--dataset goes with a card in a file: give --card FILE")
    chosen = (options.task, options.method)
    made: list[tuple[str | Path, list[str]]] = []
    if options.card is not None:
        made.append(share_card(options.runs, options.card, *chosen, options.dataset))
    if options.samples is not None:
        made.append(share_samples(options.runs, options.samples, *chosen))
    if options.to is not None:
        made.append(share_files(options.runs, options.to, options.out, *chosen, options.by, options.developer))
    for written, _ in made:
        print(written)
    for note in (note for _, notes in made for note in notes):
        print(f"lexbench: {note}", file=sys.stderr)
    return 0


COMMAND = Command(
    name="share",
    heading="exchange",
    help="write results for others: a model card, a dataset of samples, files of another program",
    call=call,
    arguments=_arguments,
    epilog="""\
Nothing is uploaded. A card of more than 100 values shows only none, unless --method says which. Cells of
backend=chance, which answers at random, are on no card.
  lexbench share runs/x --card README.md --method yarn --samples shared
  lexbench share runs/x --to inspect --out logs
""",
)
