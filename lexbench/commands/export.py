"""`lexbench export`."""

import argparse
import json
import sys

from lexbench.commands import hydra_config
from lexbench.commands.command import CONFIG_DIR, METHOD, MODEL, UNUSED, Command, Setting, length_of, method_of
from lexbench.core.errors import ConfigError


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--to", required=True, choices=("transformers", "vllm", "llama.cpp"), help="software that serves the model"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def call(options: argparse.Namespace, words: list[str]) -> int:
    """Print the configuration."""
    from lexbench.checkpoints.checkpoint import read_known_model
    from lexbench.core.method_key import BASELINE
    from lexbench.methods import export
    from lexbench.methods.composition import read_method

    config, choices = hydra_config.composed(COMMAND, words)
    model = read_known_model(config["model"])
    _, method, key = read_method(method_of(config, choices, COMMAND.name))
    length = length_of(config)
    if length is None:
        raise ConfigError("export needs the tokens in use, prompt and answer: give length=32768")
    if length <= model.trained_length and key != BASELINE:
        print(
            f"lexbench: length {length} is within the trained length {model.trained_length} of {model.name}: "
            "shorter texts need no method",
            file=sys.stderr,
        )
    deployed = (method, str(key), model, length, options.to)
    print(json.dumps(export.as_data(*deployed), indent=1) if options.json else export.export(*deployed))
    return 0


COMMAND = Command(
    name="export",
    help="print the configuration for serving a model with a method",
    call=call,
    arguments=_arguments,
    settings=(MODEL, METHOD, Setting("length=32768", "tokens in use, prompt and answer; required"), *UNUSED),
    config="run",
    epilog=CONFIG_DIR,
)
