"""`lexbench identify`."""

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from lexbench.commands import hydra_config
from lexbench.commands.command import (
    BACKEND_SETTING,
    CONFIG_DIR_HELP,
    METHOD_SETTING,
    MODEL_SETTING,
    Command,
    chosen_method,
    group_config,
)
from lexbench.core.errors import ConfigError

EXAMPLE_COMMAND = "lexbench identify PACK model=NAME backend=openai backend.url=http://127.0.0.1:8000/v1"


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pack", type=Path, metavar="PACK", help="reference pack of the checkpoint")
    parser.add_argument(
        "--expect", metavar="SETUP", help="exit code 1 if the server has another setup than this, e.g. 'YaRN 4'"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def call(options: argparse.Namespace, words: list[str]) -> int:
    """Print what the server turns by; 1 where that cannot be named, is not what was expected, or is served wrongly."""
    from lexbench.backends import Backend
    from lexbench.checkpoints.checkpoint import folder_of, read_model
    from lexbench.checkpoints.tokenizer import load_tokenizer
    from lexbench.methods.composition import read_method
    from lexbench.methods.scaled import attention_of
    from lexbench.parts.serving.identify import decide, identify, pack
    from lexbench.runner.backend_pool import backend_for_job

    if "=" in options.pack.name and not options.pack.exists():
        raise ConfigError(f"the pack comes first, got {options.pack}: {EXAMPLE_COMMAND}")
    config, choices = hydra_config.compose_config(COMMAND, words)
    reference = pack.read_pack(options.pack)
    expected = None if options.expect is None else identify.find_setup_label(reference, options.expect)
    model = read_model(config["model"])
    if load_tokenizer(folder_of(model, weights=False), model.bos).vocabulary != reference.about["vocabulary"]:
        raise ConfigError(f"{options.pack} is of {reference.about['model']}, another tokenizer: give its model=NAME")
    _, method, label = read_method(chosen_method(config, choices, COMMAND.name))

    @contextmanager
    def backend_for(length: int) -> Iterator[Backend]:
        with backend_for_job(model, group_config(config, choices, "backend"), length) as backend:
            if label != "none" or backend.name == "vllm":
                backend.attend(attention_of(method, model, length))
            yield backend

    found = decide.identify_served(reference, backend_for)
    print(json.dumps(asdict(found), indent=1) if options.json else identify.identification_text(found))
    right = found.named and not found.odd and not found.cut and expected in (None, found.verdict)
    return 0 if right else 1


COMMAND = Command(
    name="identify",
    help="name what a served model turns by, from its log-probabilities; exit code 1 if it cannot be named",
    call=call,
    arguments=_arguments,
    settings=(MODEL_SETTING, METHOD_SETTING, BACKEND_SETTING),
    config="run",
    interrupted="nothing is kept: ask again",
    epilog=f"{EXAMPLE_COMMAND}\nasks a server. PACK is made by lexbench fingerprint.\n\n{CONFIG_DIR_HELP}",
)
