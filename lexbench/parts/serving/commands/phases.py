"""`lexbench phases`."""

import argparse
import json
from dataclasses import asdict

from lexbench.commands import hydra_config
from lexbench.commands.command import (
    BACKEND_SETTING,
    CONFIG_DIR_HELP,
    MODEL_SETTING,
    Command,
    Setting,
    checked_length,
    group_config,
)
from lexbench.core.errors import ConfigError

EXAMPLE_COMMAND = "lexbench phases http://127.0.0.1:8000/v1 model=NAME page=16 chunk=2048"


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", help="URL of a server, or a checkpoint as in model=")
    parser.add_argument("--json", action="store_true", help="print JSON")


def call(options: argparse.Namespace, words: list[str]) -> int:
    """Print the faults; 1 where there is one."""
    from lexbench.checkpoints.checkpoint import read_model
    from lexbench.parts.serving.phases.phases import find_phases

    serves = options.target.startswith(("http://", "https://"))
    asked = {word.partition("=")[0] for word in words}
    if "=" in options.target and not serves:
        raise ConfigError(f"the server or checkpoint comes first, got {options.target}: {EXAMPLE_COMMAND}")
    if serves != ("model" in asked):
        remedy = "give model=NAME, whose tokenizer it has" if serves else "leave model= out"
        raise ConfigError(f"phases {options.target} names {'no' if serves else 'its'} model: {remedy}")
    words = words if serves else [*words, f"model={options.target}"]
    words = [*words, "backend=openai"] if serves and "backend" not in asked else words
    config, choices = hydra_config.compose_config(COMMAND, words)
    backend, wanted = group_config(config, choices, "backend"), "openai" if serves else "hf"
    if backend["name"] != wanted:
        raise ConfigError(f"phases asks {options.target} by backend={wanted}, got {backend['name']}: leave it out")
    found = find_phases(
        read_model(config["model"]),
        {**backend, "url": options.target} if serves else backend,
        length=checked_length(config),
        n=config["n"],
        chunk=config["chunk"],
        page=config["page"],
        seed=config["seed"],
    )
    print(json.dumps(asdict(found), indent=1) if options.json else found.text)
    return 1 if found.faults else 0


COMMAND = Command(
    name="phases",
    heading="serve",
    help="find faults by the residue or edge of a prompt's length; exit code 1 if there is one",
    call=call,
    arguments=_arguments,
    settings=(
        *(MODEL_SETTING, BACKEND_SETTING),
        Setting("length=2048", "tokens of the longest prompt", default="one below the trained length"),
        Setting("n=64", "prompts of the first look, 64 of each text; where something stands out, 192 others are asked"),
        Setting("chunk=2048", "tokens that the engine reads at once: prompts go across an edge of such chunks"),
        Setting("page=16", "tokens of a page (block) of the engine's cache: alike"),
        Setting("seed=0", "seed of the texts"),
    ),
    interrupted="nothing is kept: ask again",
    epilog=f"{EXAMPLE_COMMAND}\nasks the same questions at 64 lengths, one token after another.\n\n{CONFIG_DIR_HELP}",
)
