"""`lexbench show`."""

import argparse
import json
from pathlib import Path

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


def _arguments(parser: argparse.ArgumentParser) -> None:
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON")
    form.add_argument("--plot", type=Path, metavar="FILE", help="draw a picture: .png, .svg or .pdf")


def call(options: argparse.Namespace, words: list[str]) -> int:
    """Print the attention, or draw it."""
    from lexbench.checkpoints.checkpoint import read_known_model
    from lexbench.checkpoints.structure import attention_properties
    from lexbench.methods.composition import read_method
    from lexbench.methods.scaled import attention_of
    from lexbench.report.show import table

    config, choices = hydra_config.compose_config(COMMAND, words)
    model = read_known_model(config["model"])
    _, method, key = read_method(chosen_method(config, choices, COMMAND.name))
    length = checked_length(config) or model.trained_length
    attention = attention_of(method, model, length)
    if options.plot:
        from lexbench.report.show import plots

        plots.plot_attention(model, key, attention, length, options.plot)
        print(options.plot)
    else:
        shown = (model, str(key), attention, length)
        own = attention_properties(config["model"])
        data = {**table.attention_data(*shown), "own": own}
        print(json.dumps(data, indent=1) if options.json else table.attention_table(*shown, own))
    return 0


COMMAND = Command(
    name="show",
    heading="measure",
    help="show how a method changes a model's attention at one length",
    call=call,
    arguments=_arguments,
    settings=(
        MODEL_SETTING,
        METHOD_SETTING,
        Setting("length=32768", "tokens in use", default="the trained length"),
        *UNUSED_SETTINGS,
    ),
    config="run",
    epilog=CONFIG_DIR_HELP,
)
