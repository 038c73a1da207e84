"""`lexbench fingerprint`."""

import argparse
from pathlib import Path

from lexbench.commands import hydra_config
from lexbench.commands.command import (
    BACKEND_SETTING,
    CONFIG_DIR_HELP,
    DEFAULT_CORPUS_SETTING,
    MODEL_SETTING,
    Command,
    Setting,
    checked_length,
    group_config,
)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="write the reference pack to this file")


def call(options: argparse.Namespace, words: list[str]) -> int:
    """Write the pack, and say what it holds."""
    from lexbench.checkpoints.checkpoint import read_model
    from lexbench.core.text import count_with_noun
    from lexbench.parts.serving.identify.make import make_pack

    config, choices = hydra_config.compose_config(COMMAND, words)
    made = make_pack(
        model=read_model(config["model"]),
        corpus=group_config(config, choices, "corpus"),
        backend=group_config(config, choices, "backend"),
        length=checked_length(config),
        n=config["n"],
        seed=config["seed"],
        out=options.out,
    )
    for each, what in ((made, "setups"), (made.far, "setups"), (made.longer, "that rounding hides there")):
        if each is not None:
            print(f"{len(each.labels)} {what}, on {count_with_noun(len(each.tokens), 'text')} of {each.length} tokens")
    print(f"{options.out.stat().st_size} bytes")
    print(options.out)
    return 0


COMMAND = Command(
    name="fingerprint",
    heading="serve",
    help="make a reference pack of a checkpoint, for lexbench identify",
    call=call,
    own_progress=True,
    arguments=_arguments,
    settings=(
        *(MODEL_SETTING, DEFAULT_CORPUS_SETTING, BACKEND_SETTING),
        Setting("length=512", "tokens of a text", default="512, at most twice the trained length"),
        Setting("n=16", "texts", default="16"),
        Setting("seed=0", "seed of the texts"),
    ),
    config="run",
    interrupted="readings so far are kept in FILE.part: repeat the command to resume",
    epilog=CONFIG_DIR_HELP,
)
