"""`lexbench import`."""

import argparse
from pathlib import Path

from lexbench.commands.command import Command


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("harness", choices=("lm_eval",), help="the harness that wrote the results")
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULTS", help="results_*.json, or a folder of them")
    parser.add_argument("--into", required=True, type=Path, metavar="DIR", help="run folder to write to")
    parser.add_argument(
        "--trained-length",
        type=int,
        metavar="N",
        help="tokens of the texts that the model was trained at, if the results do not say it",
    )
    parser.add_argument(
        "--length", type=int, metavar="N", help="length in tokens, if neither the task nor the model says it"
    )
    parser.add_argument(
        "--tokenizer", metavar="DIR", help="folder or name on the hub of the tokenizer that counts the prompts' tokens"
    )


def call(options: argparse.Namespace, words: list[str]) -> int:
    """Print what is imported and what is not; 2 if a file or a task could not be imported."""
    from lexbench.parts.exchange.lm_eval.results.command import import_lm_eval

    facts = {"trained_length": options.trained_length, "length": options.length, "tokenizer": options.tokenizer}
    found = import_lm_eval(options.results, options.into, **facts)
    print(found.text())
    return 2 if found.problems else 0


COMMAND = Command(
    name="import",
    heading="exchange",
    help="turn results of another harness into cells of a run folder",
    call=call,
    arguments=_arguments,
    epilog="""\
Reads what lm_eval writes to --output_path with --log_samples. The cells keep the harness's protocol.
  lexbench import lm_eval out/model --into runs/imported --trained-length 4096 --length 4096
""",
)
