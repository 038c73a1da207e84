"""`lexbench export`."""

import argparse
import json
import sys

from lexbench.commands import hydra_config
from lexbench.commands.command import (
    CONFIG_DIR_HELP,
    METHOD_SETTING,
    MODEL_SETTING,
    UNUSED_SETTINGS,
    Command,
    Setting,
    checked_length,
    chosen_method,
)
from lexbench.core.errors import ConfigError


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--to", required=True, choices=("transformers", "vllm", "llama.cpp"), help="software that serves the model"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def call(options: argparse.Namespace, words: list[str]) -> int:
    """Print the configuration."""
    from lexbench.checkpoints.checkpoint import read_known_model
    from lexbench.core.method_key import BASELINE_METHOD
    from lexbench.methods import export
    from lexbench.methods.composition import read_method

    config, choices = hydra_config.compose_config(COMMAND, words)
    model = read_known_model(config["model"])
    _, method, key = read_method(chosen_method(config, choices, COMMAND.name))
    length = checked_length(config)
    if length is None:
        raise ConfigError("export needs the tokens in use, prompt and answer: give length=32768")
    if length <= model.trained_length and key != BASELINE_METHOD:
        print(
            f"lexbench: length {length} is within the trained length {model.trained_length} of {model.name}: "
            "shorter texts need no method",
            file=sys.stderr,
        )
    deployed = (method, str(key), model, length, options.to)
    print(json.dumps(export.as_data(*deployed), indent=1) if options.json else export.export_text(*deployed))
    return 0


COMMAND = Command(
    name="export",
    heading="serve",
    help="print the configuration for serving a model with a method",
    call=call,
    arguments=_arguments,
    settings=(
        MODEL_SETTING,
        METHOD_SETTING,
        Setting("length=32768", "tokens in use, prompt and answer; required"),
        *UNUSED_SETTINGS,
    ),
    config="run",
    epilog=CONFIG_DIR_HELP,
)
