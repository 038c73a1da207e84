"""Settings of the command line, key=value in hydra's grammar; the only module that knows hydra."""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lexbench import assets
from lexbench.record import Refused


def jobs(name: str, job: Callable[[dict[str, Any], dict[str, str]], None], words: list[str]) -> None:
    """Call `job` with the composed config and the chosen names: once, or for every point of a sweep (-m)."""
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import DictConfig, OmegaConf

    @hydra.main(version_base="1.3", config_path=str(assets.asset("configs")), config_name=name)  # type: ignore[untyped-decorator]
    def entry(config: DictConfig) -> None:
        plain = OmegaConf.to_container(config, resolve=True)
        assert isinstance(plain, dict)
        hydra_config = HydraConfig.get()
        try:
            job({str(key): value for key, value in plain.items()}, dict(hydra_config.runtime.choices))
        except (ValueError, Refused, OSError) as error:
            if not hydra_config.launcher._target_.endswith("BasicLauncher"):
                raise  # another process: hydra brings it here
            failures.append(error)  # kept from hydra, which would print it in its own way; other jobs of a sweep go on

    failures: list[Exception] = []
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come to us, not to hydra's printer
    before, sys.argv = sys.argv, ["lexbench", *words]
    try:
        _translated(entry)
    finally:
        sys.argv = before
    if failures:
        raise failures[0]


def composed(command: str, words: list[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The composed config of a run and the chosen names, without running anything."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import OmegaConf

    def settled() -> Any:
        GlobalHydra.instance().clear()
        with initialize_config_dir(version_base="1.3", config_dir=str(assets.asset("configs"))):
            return compose("run", overrides=arguments(command, words), return_hydra_config=True)

    config = _translated(settled)
    choices = dict(config.hydra.runtime.choices)
    plain = OmegaConf.to_container(OmegaConf.masked_copy(config, [key for key in config if key != "hydra"]))
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}, choices


def _translated(call: Callable[[], Any]) -> Any:
    """What `call` gives; hydra's and omegaconf's errors as ValueError."""
    from hydra.errors import HydraException, OverrideParseException
    from omegaconf.errors import OmegaConfBaseException

    try:
        return call()
    except OverrideParseException as error:
        raise ValueError(f"setting {error.override!r} cannot be read: write key=value, lists as [1,2]") from error
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(str(error).split("\n\n")[0]) from error


def arguments(command: str, words: list[str]) -> list[str]:
    """The command's words as hydra takes them: flags first, names checked, parameters of a part added freely.

    Whether a part has such a parameter is checked when it is built, with its own choices.
    """
    flags, settings = split(words)
    settings = [_setting(command, word) for word in settings]
    extra = assets.config_dirs()[1:]
    search = [f"hydra.searchpath=[{','.join(f'file://{folder.resolve()}' for folder in extra)}]"] if extra else []
    return [*flags, *search, *settings]


def split(words: list[str]) -> tuple[list[str], list[str]]:
    """Flags (with their values) and settings; a --config-dir joins LEXBENCH_CONFIG_PATH, which workers inherit."""
    flags, settings = [], []
    rest = iter(words)
    for word in rest:
        flag, _, value = word.partition("=")
        if flag in ("--config-dir", "-cd"):
            folder = Path(value or next(rest, ""))
            if not folder.is_dir():
                raise ValueError(f"--config-dir {folder} is no folder: give one with method/, task/, ... in it")
            known = os.environ.get("LEXBENCH_CONFIG_PATH", "")
            os.environ["LEXBENCH_CONFIG_PATH"] = os.pathsep.join(filter(None, [known, str(folder.resolve())]))
        elif word in ("--cfg", "-c", "--package", "-p", "--info", "-i"):
            flags += [word, next(rest, "job")]
        elif word.startswith("-"):
            if word.partition("=")[0] not in FLAGS:
                raise ValueError(f"unknown flag {word}: see --help")
            flags.append(word)
        else:
            settings.append(word)
    return flags, settings


def _setting(command: str, word: str) -> str:
    """One key=value, checked and in hydra's form."""
    groups, keys = SETTINGS[command]
    bare = word.lstrip("+~")
    if bare.startswith("hydra"):
        return word
    if bare != word:
        name = re.split(r"[=.@]", bare)[0]
        if name not in groups + keys:
            raise ValueError(f"unknown setting {name}: choose from {', '.join(groups + keys)}")
        return word
    key, equals, value = word.partition("=")
    if not equals:
        raise ValueError(f"setting {word!r} must be key=value: e.g. method=yarn")
    group, dot, _ = key.partition(".")
    if group not in groups + keys:
        raise ValueError(f"unknown setting {key}: choose from {', '.join(groups + keys)}")
    if dot and group in groups:
        return f"++{word}"
    if group in groups and value.startswith("["):
        if group not in LISTED:
            raise ValueError(f"{group} takes one name, got {value}: sweep over several with -m {group}=a,b")
        return f"++{group}.{LISTED[group]}={value}"
    if group in LISTED and "[" in value:
        raise ValueError(f"{word} mixes names and lists: sweep over lists by -m {group}.{LISTED[group]}=[...],[...]")
    if group in groups and not value.startswith("glob("):
        for choice in value.split(","):
            assets.read(group, choice)
    return word


FLAGS = ("--help", "-h", "--hydra-help", "--multirun", "-m", "--run", "-r", "--resolve", "--version")
"""Hydra's own that pass through, beside those with a value."""
LISTED = {"task": "suite", "method": "compose"}
"""Groups that take a list of names, and what such a list is in a yaml: several tasks, methods at once."""
PARTS = [group for group in assets.GROUPS if group != "encoding"]
"""Groups that make up a run; an encoding is part of a model."""
ONE_LENGTH = (PARTS, ["length"])
SETTINGS = {
    "run": (PARTS, ["lengths", "multiples", "n", "seed", "results", "dry_run"]),
    "show": ONE_LENGTH,
    "verify": (PARTS, ["length", "n", "seed"]),
    "export": ONE_LENGTH,
    "train": (["recipe", "encoding", "method"], ["out", "start", "corpora", "held_out"]),
    "suite": (
        ["suite"],
        ["results", "encodings", "finetuned", "seeds", "tasks", "methods", "multiples", "n", "workers"],
    ),
    "keys": (["model", "method", "corpus", "backend"], ["out", "longest", "short", "window", "gain", "loss", "n"]),
    "tune": (
        ["model", "corpus", "backend"],
        [
            *("length", "budget", "out", "price", "worth", "methods", "n", "first", "eta", "seed", "nll", "needles"),
            *("common", "space"),
        ],
    ),
    "search": (
        ["model", "corpus", "backend"],
        [
            *("length", "out", "n", "rule", "critical_pair", "ceiling", "step", "start_tokens", "seed"),
            *("population", "iterations", "parents", "mutations", "crossovers", "probability"),
        ],
    ),
}
