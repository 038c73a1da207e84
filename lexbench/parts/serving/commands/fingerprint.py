"""`lexbench fingerprint`."""

import argparse
from pathlib import Path

from lexbench.commands import hydra_config
from lexbench.commands.command import BACKEND, CONFIG_DIR, MODEL, USUAL_CORPUS, Command, Setting, length_of, part


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="write the reference pack to this file")


def call(options: argparse.Namespace, words: list[str]) -> int:
    """Write the pack, and say what it holds."""
    from lexbench.checkpoints.checkpoint import read_model
    from lexbench.parts.serving.identify.make import make

    config, choices = hydra_config.composed(COMMAND, words)
    made = make(
        model=read_model(config["model"]),
        corpus=part(config, choices, "corpus"),
        backend=part(config, choices, "backend"),
        length=length_of(config),
        n=config["n"],
        seed=config["seed"],
        out=options.out,
    )
    for each, what in ((made, "setups"), (made.longer, "that rounding hides there")):
        if each is not None:
            print(f"{len(each.labels)} {what}, on {len(each.tokens)} texts of {each.length} tokens")
    print(f"{options.out.stat().st_size} bytes")
    print(options.out)
    return 0


COMMAND = Command(
    name="fingerprint",
    help="make a reference pack of a checkpoint, for lexbench identify",
    call=call,
    own_progress=True,
    arguments=_arguments,
    settings=(
        *(MODEL, USUAL_CORPUS, BACKEND),
        Setting("length=512", "tokens of a text", default="512, at most twice the trained length"),
        Setting("n=16", "texts", default="16"),
        Setting("seed=0", "seed of the texts"),
    ),
    config="run",
    interrupted="no pack is written: a pack is made in one go",
    epilog=CONFIG_DIR,
)
