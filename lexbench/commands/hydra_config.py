"""Settings of the command line, key=value in hydra's grammar; of lexbench the only module that knows hydra."""

import importlib.util
import os
import re
import socket
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lexbench.core import registry
from lexbench.core.record import Refused

# Of hydra, for a yaml named as a plug-in's own config; here, because a job's process loads this before its config.
warnings.filterwarnings("ignore", message=r"\s*'hydra/launcher/\w+' is validated against ConfigStore schema")


@dataclass(frozen=True)
class Outcome:
    """What a job returned, or why it did not; travels back from other processes."""

    returned: Any = None
    error: Exception | None = None


def jobs(
    name: str,
    job: Callable[[dict[str, Any], dict[str, str]], Any],
    words: list[str],
    keep: Callable[[Any], None] = lambda returned: None,
) -> None:
    """Call `job` with the composed config and the chosen names: once, or for every point of a sweep (-m).

    A launcher (hydra/launcher=joblib) runs the jobs of a sweep elsewhere: what they change there stays there, and
    `keep` gets here what each has returned, in their order. An error ends its own job; the first rises when all ended.
    """
    flags = [word for word in words if word.startswith("-")]
    if set(flags) - {*SWEEP, *ONCE}:  # nothing is run
        _shown(name, words)
        return
    settings = [word for word in words if not word.startswith("-")]
    sweep = bool(set(flags) & set(SWEEP)) or "hydra.mode=MULTIRUN" in settings
    if not sweep and any(re.match("hydra[/.]launcher", word) for word in settings):
        raise ValueError("a launcher starts the jobs of a sweep, this is one run: add -m")
    outcomes = _translated(lambda: _outcomes(name, _entry(job), settings, sweep))
    for outcome in outcomes:
        if outcome.error is None:
            keep(outcome.returned)
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error


def _entry(job: Callable[[dict[str, Any], dict[str, str]], Any]) -> Callable[[Any], Outcome]:
    """`job` as hydra calls it, here or in another process, which gets a copy of it."""
    home = (socket.gethostname(), os.getpid())

    def entry(config: Any) -> Outcome:
        from hydra.core.hydra_config import HydraConfig
        from omegaconf import OmegaConf

        plain = OmegaConf.to_container(config, resolve=True)
        assert isinstance(plain, dict)
        try:
            choices = dict(HydraConfig.get().runtime.choices)
            return Outcome(job({str(key): value for key, value in plain.items()}, choices))
        except (ValueError, Refused, OSError) as error:  # kept from hydra, which would end the sweep
            return Outcome(error=error if home == (socket.gethostname(), os.getpid()) else _portable(error))

    return entry


def _portable(error: Exception) -> Exception:
    """An error that another process can read: one of Python's own, or its words."""
    return error if type(error).__module__ == "builtins" else ValueError(str(error))


def _outcomes(name: str, entry: Callable[[Any], Outcome], settings: list[str], sweep: bool) -> list[Outcome]:
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    GlobalHydra.instance().clear()
    with initialize_config_dir(str(registry.asset("configs")), job_name="lexbench", version_base="1.3"):
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        if not sweep:
            return [hydra.run(name, entry, [*settings, "hydra.mode=RUN"]).return_value]
        batches = hydra.multirun(name, entry, [*settings, "hydra.mode=MULTIRUN"])
        return [job.return_value for batch in batches for job in batch]


def _shown(name: str, words: list[str]) -> None:
    """What hydra's other flags print: --cfg, --info, shell completion."""
    import hydra

    main = hydra.main(version_base="1.3", config_path=str(registry.asset("configs")), config_name=name)
    before, sys.argv = sys.argv, ["lexbench", *words]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come to us, not to hydra's printer
    try:
        _translated(main(lambda config: None))
    finally:
        sys.argv = before


def composed(command: str, words: list[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The composed config of a run and the chosen names, without running anything."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import OmegaConf

    def settled() -> Any:
        GlobalHydra.instance().clear()
        with initialize_config_dir(version_base="1.3", config_dir=str(registry.asset("configs"))):
            return compose("run", overrides=arguments(command, words), return_hydra_config=True)

    config = _translated(settled)
    choices = dict(config.hydra.runtime.choices)
    plain = OmegaConf.to_container(OmegaConf.masked_copy(config, [key for key in config if key != "hydra"]))
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}, choices


def _translated(call: Callable[[], Any]) -> Any:
    """What `call` gives; hydra's, omegaconf's and launchers' errors as ValueError."""
    from hydra.errors import HydraException, MissingConfigException, OverrideParseException
    from omegaconf.errors import OmegaConfBaseException

    try:
        return call()
    except OverrideParseException as error:
        raise ValueError(f"setting {error.override!r} cannot be read: write key=value, lists as [1,2]") from error
    except MissingConfigException as error:
        choices = f": choose from {', '.join(error.options)}" if error.options else ""
        raise ValueError(str(error).split("\n\n")[0] + choices) from error
    except yaml.YAMLError as error:
        raise ValueError(f"a config is not valid yaml ({' '.join(str(error).split())}): mend it") from error
    except RecursionError as error:
        raise ValueError("settings are nested too deeply to be read: write them flat") from error
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(str(error).split("\n\n")[0]) from error
    except Exception as error:
        package = _raised_in(error)
        if package not in ("joblib", "submitit", "ray"):
            raise
        said = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise ValueError(
            f"launcher of {package}: {said}: what was measured is kept, the same command goes on"
        ) from error


def _raised_in(error: Exception) -> str:
    """The package whose code raised an error."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def arguments(command: str, words: list[str]) -> list[str]:
    """The command's words as hydra takes them: flags first, names checked, parameters of a part added freely.

    Whether a part has such a parameter is checked when it is built, with its own choices.
    """
    flags, settings = split(words)
    settings = [_setting(command, word) for word in settings]
    extra = registry.config_dirs()[1:]
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
        _installed(bare)
        return word
    if bare != word:
        name = re.split(r"[=.@]", bare)[0]
        if name not in groups + keys:
            raise ValueError(f"unknown setting {name}: choose from {', '.join(groups + keys)}")
        if word.startswith("~") and re.split(r"[=@]", bare)[0] in groups + keys:
            raise ValueError(f"{name} cannot be left out: give {name}=..., or drop {word}")
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
            registry.read(group, choice)
    return word


def _installed(word: str) -> None:
    """ValueError for hydra/launcher=NAME where the package of one of our launchers is missing."""
    key, _, name = word.partition("=")
    if key == "hydra/launcher" and name in LAUNCHERS and not _found(LAUNCHERS[name]):
        extra = name.partition("_")[0]
        raise ValueError(f'launcher {name} needs a package that is not installed: pip install "lexbench[{extra}]"')


def _found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of its parent
        return False


LAUNCHERS = {
    "joblib": "hydra_plugins.hydra_joblib_launcher",
    "ray": "ray",
    "submitit_local": "hydra_plugins.hydra_submitit_launcher",
    "submitit_slurm": "hydra_plugins.hydra_submitit_launcher",
}
"""By yaml of configs/hydra/launcher, the module that it needs; the extra is the name's first word."""
SWEEP = ("-m", "--multirun")
ONCE = ("-r", "--run")
FLAGS = ("--help", "-h", "--hydra-help", "--multirun", "-m", "--run", "-r", "--resolve", "--version")
"""Hydra's own that pass through, beside those with a value."""
LISTED = {"task": "suite", "method": "compose"}
"""Groups that take a list of names, and what such a list is in a yaml: several tasks, methods at once."""
PARTS = [group for group in registry.GROUPS if group != "encoding"]
"""Groups that make up a run; an encoding is part of a model."""
ONE_LENGTH = (PARTS, ["length"])
SETTINGS = {
    "run": (
        PARTS,
        ["lengths", "multiples", "n", "seed", "results", "reuse", "stop_after_collapse", "executor", "ray", "dry_run"],
    ),
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
