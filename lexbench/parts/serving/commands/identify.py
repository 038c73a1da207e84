"""`lexbench identify`."""

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

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
from lexbench.core import registry
from lexbench.core.errors import ConfigError

if TYPE_CHECKING:
    from lexbench.parts.serving.identify.identify import Identification

EXAMPLE_COMMAND = "lexbench identify PACK model=NAME backend=openai backend.url=http://127.0.0.1:8000/v1"

EXAMPLE_COMPARISON = "lexbench identify http://127.0.0.1:8000/v1 --against http://127.0.0.1:8001/v1 model=NAME"


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "pack", metavar="PACK", help="reference pack of the checkpoint; with --against the URL of a server"
    )
    parser.add_argument(
        "--against", metavar="OTHER", help="compare without a pack: URL of another server, or a checkpoint as in model="
    )
    parser.add_argument(
        "--expect", metavar="SETUP", help="exit code 1 if the server has another setup than this, e.g. 'YaRN 4'"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def call(options: argparse.Namespace, words: list[str]) -> int:
    """Print what the server turns by; 1 where that cannot be named, is not what was expected, or is served wrongly."""
    from lexbench.backends import Backend
    from lexbench.checkpoints.checkpoint import read_model
    from lexbench.methods.composition import read_method
    from lexbench.methods.scaled import attention_of
    from lexbench.parts.serving.identify import decide, identify, pack
    from lexbench.parts.serving.identify.same_model import check_model
    from lexbench.runner.backend_pool import backend_for_job

    if options.against is not None:
        return _compare(options, words)
    file = Path(options.pack)
    if "=" in file.name and not file.exists():
        raise ConfigError(f"the pack comes first, got {file}: {EXAMPLE_COMMAND}")
    config, choices = hydra_config.compose_config(COMMAND, words)
    reference = pack.read_pack(file)
    expected = None if options.expect is None else identify.find_setup_label(reference, options.expect)
    model = read_model(config["model"])
    check_model(model, reference.about, file)
    _, method, label = read_method(chosen_method(config, choices, COMMAND.name))

    @contextmanager
    def backend_for(length: int) -> Iterator[Backend]:
        settings = group_config(config, choices, "backend")
        # A server is met once for all lengths.
        longest = reference.longest if settings["name"] == "openai" else length
        with backend_for_job(model, settings, longest) as backend:
            # To attend is to try a server at this length as a run does: here it is asked more than that.
            if str(label) != "none" or backend.name != "openai":
                backend.attend(attention_of(method, model, length))
            yield backend

    found = decide.identify_served(reference, backend_for)
    return _print_identification(found, expected, options.json)


def _print_identification(found: "Identification", expected: str | None, as_json: bool) -> int:
    """Print it; 1 where the server cannot be named, is not what was expected, or is served wrongly."""
    from lexbench.parts.serving.identify.identify import identification_text

    print(json.dumps(asdict(found), indent=1) if as_json else identification_text(found))
    right = found.named and not found.odd and not found.cut and expected in (None, found.verdict)
    return 0 if right else 1


def _compare(options: argparse.Namespace, words: list[str]) -> int:
    """Compare a server with another one or with a checkpoint, and print the verdict; 1 unless they are the same."""
    from lexbench.checkpoints.checkpoint import read_model
    from lexbench.parts.serving.identify.against import compare_servers, compare_with_checkpoint

    if not _is_url(options.pack):
        raise ConfigError(f"--against compares a server, got {options.pack}: {EXAMPLE_COMPARISON}")
    if options.expect is not None:
        raise ConfigError("--expect needs a pack, --against has none: give one of them")
    both_serve = _is_url(options.against)
    asked = {word.partition("=")[0] for word in words}
    if both_serve != ("model" in asked):
        remedy = "give model=NAME, whose tokenizer both have" if both_serve else "leave model= out"
        raise ConfigError(f"--against {options.against} names {'no' if both_serve else 'its'} model: {remedy}")
    words = words if both_serve else [*words, f"model={options.against}"]
    words = words if "backend" in asked else [*words, "backend=openai"]
    config, choices = hydra_config.compose_config(COMMAND, words)
    backend = group_config(config, choices, "backend")
    if backend["name"] != "openai":
        raise ConfigError(f"--against asks servers by backend=openai, got backend={backend['name']}: leave it out")
    model, server = read_model(config["model"]), {**backend, "url": options.pack}
    if not both_serve:
        own = {**registry.read_named_config("backend", "hf"), "name": "hf"}
        return _print_identification(compare_with_checkpoint(model, own, server), None, options.json)
    found = compare_servers(model, server, {**backend, "url": options.against})
    lines = [found.verdict, f"told by {found.route}", *(f"but {each}" for each in found.faults)]
    print(json.dumps(asdict(found), indent=1) if options.json else "\n".join(lines))
    return 0 if found.proven else 1


def _is_url(given: str) -> bool:
    """Whether it is the URL of a server."""
    return given.startswith(("http://", "https://"))


COMMAND = Command(
    name="identify",
    heading="serve",
    help="name what a served model turns by, from its log-probabilities; exit code 1 if it cannot be named",
    call=call,
    arguments=_arguments,
    settings=(MODEL_SETTING, METHOD_SETTING, BACKEND_SETTING),
    config="run",
    interrupted="nothing is kept: ask again",
    epilog=f"{EXAMPLE_COMMAND}\nasks a server. PACK is made by lexbench fingerprint.\n{EXAMPLE_COMPARISON}\n"
    f"compares it with another one, or with a checkpoint (--against NAME), without a pack.\n\n{CONFIG_DIR_HELP}",
)
