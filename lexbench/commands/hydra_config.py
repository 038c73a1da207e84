"""The settings of a command, KEY=VALUE in hydra's grammar. The only module of lexbench that imports hydra."""

import functools
import math
import os
import re
import socket
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from lexbench.commands.command import Command
from lexbench.commands.setting_words import (
    LIST_KEY_OF_GROUP,
    checked_setting,
    corpus_path_words,
    in_quotes,
    model_path_words,
    one_value_remedy,
    quote_value,
    setting_as_given,
    split_flags,
    typed_as_text,
)
from lexbench.core import registry
from lexbench.core.errors import ConfigError
from lexbench.core.record import Refused

# Hydra warns about our yamls of launchers, which have the names of plug-ins' own. A job's process imports this module
# before its config, so the filter is here.
warnings.filterwarnings("ignore", message=r"\s*'hydra/launcher/\w+' is validated against ConfigStore schema")


@dataclass(frozen=True)
class JobOutcome:
    """Return value of a job, or its error; other processes send it back."""

    returned: Any = None
    error: Exception | None = None


def run_jobs(
    command: Command,
    job: Callable[[dict[str, Any], dict[str, str]], Any],
    words: list[str],
    keep: Callable[[Any], None] = lambda returned: None,
    count: Callable[[int], None] = lambda jobs: None,
) -> None:
    """Call `job` with the composed config and the chosen names: once, or for every point of a sweep (-m).

    Jobs share one backend; a launcher (hydra/launcher=joblib) runs those of a sweep in other processes. `keep` is
    called here with what each job returned, in order; `count` is called with the number of jobs before the first one.
    An error ends only its own job; the first one is raised after all jobs.
    """
    from lexbench.runner.backend_pool import share_backends

    words = _overrides(command, words)
    flags = [word for word in words if word.startswith("-")]
    if set(flags) - {*SWEEP_FLAGS, *SINGLE_RUN_FLAGS}:  # nothing is run
        print_hydra_flags(command.config_name, words)
        return
    settings = [word for word in words if not word.startswith("-")]
    sweep = bool(set(flags) & set(SWEEP_FLAGS)) or "hydra.mode=MULTIRUN" in settings
    if not sweep and _uses_launcher(settings):
        raise ConfigError("a launcher starts the jobs of a sweep, this is one run: add -m")
    # What was measured is kept before the first error is raised.
    with share_backends():
        outcomes = _translate_errors(lambda: _outcomes(command.config_name, _entry(job), settings, sweep, count))
    for outcome in outcomes:
        if outcome.error is None:
            keep(outcome.returned)
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error


def _entry(job: Callable[[dict[str, Any], dict[str, str]], Any]) -> Callable[[Any], JobOutcome]:
    """`job` as hydra calls it, here or, as a copy, in another process."""
    home = (socket.gethostname(), os.getpid())

    def entry(config: Any) -> JobOutcome:
        from hydra.core.hydra_config import HydraConfig
        from omegaconf import OmegaConf

        try:
            registry.check_no_environment(OmegaConf.to_container(config), "a setting")
            plain = OmegaConf.to_container(config, resolve=True)
            assert isinstance(plain, dict)
            choices = dict(HydraConfig.get().runtime.choices)
            return JobOutcome(job({str(key): value for key, value in plain.items()}, choices))
        # A launcher sends the outcome back pickled; from another process it must be unpickled here.
        except (ConfigError, Refused, OSError) as error:  # else hydra would end the sweep
            return JobOutcome(error=error if home == (socket.gethostname(), os.getpid()) else _portable(error))

    return entry


def is_first_job() -> bool:
    """Whether the job that hydra runs now is the first of its sweep, or the only one."""
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    return not (OmegaConf.select(HydraConfig.get(), "job.num", throw_on_missing=False) or 0)


def _uses_launcher(settings: list[str]) -> bool:
    """Whether settings name or change a launcher, which starts jobs of a sweep, be it one, in other processes."""
    return any(re.match("hydra[/.]launcher", word) for word in settings)


def _portable(error: Exception) -> Exception:
    """An error that another process can unpickle: a builtin exception, or its message."""
    return error if type(error).__module__ == "builtins" else ConfigError(str(error))


def _outcomes(
    name: str, entry: Callable[[Any], JobOutcome], settings: list[str], sweep: bool, count: Callable[[int], None]
) -> list[JobOutcome]:
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.override_parser.overrides_parser import OverridesParser

    GlobalHydra.instance().clear()
    with initialize_config_dir(str(registry.command_config_folder(name)), job_name="lexbench", version_base="1.3"):
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        if not sweep:
            return [hydra.run(name, entry, [*settings, "hydra.mode=RUN"]).return_value]
        parsed = OverridesParser.create(config_loader=hydra.config_loader).parse_overrides(settings)
        swept = [each for each in parsed if each.is_sweep_override()]
        if not swept and not _uses_launcher(settings):
            print("lexbench: -m has nothing to sweep, so one job runs: give it KEY=A,B", file=sys.stderr)
        count(math.prod(sum(1 for _ in each.sweep_string_iterator()) for each in swept))
        if not _uses_launcher(settings):
            _compose_once(hydra.config_loader)
        batches = hydra.multirun(name, entry, [*settings, "hydra.mode=MULTIRUN"])
        return [job.return_value for batch in batches for job in batch]


def _compose_once(loader: Any) -> None:
    """Run the jobs of a sweep with the configs that hydra has checked; by itself, it composes each of them again."""
    compose, checked = loader.load_sweep_config, dict[tuple[str, ...], Any]()

    def composed_once(master_config: Any, sweep_overrides: list[str]) -> Any:
        words = tuple(sweep_overrides)
        if words in checked:
            return checked.pop(words)
        config = compose(master_config, sweep_overrides)
        if len(checked) < MAX_CACHED_CONFIGS:
            checked[words] = config
        return config

    loader.load_sweep_config = composed_once


def print_hydra_flags(name: str, words: list[str]) -> None:
    """Print what hydra's other flags print: --cfg, --info, shell completion."""
    import hydra

    main = hydra.main(version_base="1.3", config_path=str(registry.command_config_folder(name)), config_name=name)
    _store_names()
    _search_registry()
    before, sys.argv = sys.argv, ["lexbench", *words]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come to us, not to hydra's printer
    try:
        _translate_errors(main(lambda config: None))
    finally:
        sys.argv = before


def compose_config(command: Command, words: list[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The composed config and the chosen names, without running anything."""
    if set(SWEEP_FLAGS) & set(words):
        raise ConfigError(f"-m runs several jobs, and lexbench {command.name} makes one answer: leave it out")
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import OmegaConf

    def settled() -> Any:
        GlobalHydra.instance().clear()
        with initialize_config_dir(version_base="1.3", config_dir=str(command.home)):
            return compose(command.config_name, overrides=_overrides(command, words), return_hydra_config=True)

    config = _translate_errors(settled)
    choices = dict(config.hydra.runtime.choices)
    plain = OmegaConf.to_container(OmegaConf.masked_copy(config, [key for key in config if key != "hydra"]))
    assert isinstance(plain, dict)
    registry.check_no_environment(plain, "a setting")
    return {str(key): value for key, value in plain.items()}, choices


def _translate_errors(call: Callable[[], Any]) -> Any:
    """The result of `call`; errors of hydra, omegaconf and launchers become ConfigError."""
    from hydra.errors import HydraException, MissingConfigException, OverrideParseException
    from omegaconf.errors import OmegaConfBaseException

    try:
        return call()
    # The first two are HydraExceptions, too: the order counts.
    except OverrideParseException as error:
        given = setting_as_given(error.override)
        key, _, value = given.partition("=")
        text = (
            ""
            if key in LIST_KEY_OF_GROUP or not value
            else f"; a text with marks goes into quotes, {typed_as_text(key, value)}"
        )
        raise ConfigError(f"setting {given!r} cannot be read: write key=value, lists as [1,2]{text}") from error
    except MissingConfigException as error:
        choices = f": choose from {', '.join(error.options)}" if error.options else ""
        raise ConfigError(str(error).split("\n\n")[0] + choices) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"a config is not valid yaml ({' '.join(str(error).split())}): mend it") from error
    except RecursionError as error:
        raise ConfigError("settings are nested too deeply to be read: write them flat") from error
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(str(error).split("\n\n")[0]) from error
    except Exception as error:
        package = _raised_in(error)
        if package in ("hydra", "omegaconf") and isinstance(error, ValueError):  # of a yaml's form
            raise ConfigError(" ".join(str(error).split())[:300]) from error
        if package not in ("joblib", "submitit"):
            raise
        said = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise ConfigError(f"launcher of {package}: {said}: results are kept, repeat the command to resume") from error


def _raised_in(error: Exception) -> str:
    """The package whose code raised an error."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _overrides(command: Command, words: list[str]) -> list[str]:
    """The words as hydra takes them: flags first, names of settings and of the registry checked.

    Parameters (method.factor) are checked when the object is built, because only its class knows them.
    """
    flags, given = split_flags(words, command)
    sweep = bool({*SWEEP_FLAGS, "hydra.mode=MULTIRUN"} & {*flags, *given})
    given = [each for word in given for each in model_path_words(word, sweep)]
    given = [each for word in given for each in corpus_path_words(word, sweep)]
    settings = [quote_value(checked_setting(command, word, sweep, given)) for word in given]
    if not sweep:
        _check_one_job(command, settings)
    _store_names()
    extra = [folder for folder in registry.config_dirs() if folder != command.home]
    if extra:
        _check_chosen(command, given)
    search = (
        [f"hydra.searchpath=[{','.join(in_quotes(f'file://{folder.resolve()}') for folder in extra)}]"] if extra else []
    )
    return [*flags, *search, *settings]


@functools.cache
def _search_registry() -> None:
    """Let hydra's completion see all folders of the registry; its words cannot name them."""
    from hydra.core.config_search_path import ConfigSearchPath
    from hydra.core.plugins import Plugins
    from hydra.plugins.search_path_plugin import SearchPathPlugin

    class RegistrySearchPath(SearchPathPlugin):  # type: ignore[misc]
        def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
            for folder in registry.config_dirs():
                search_path.append("lexbench", f"file://{folder.resolve()}")

    Plugins.instance().register(RegistrySearchPath)


def _store_names() -> None:
    """Tell hydra the names that are files of code; each group holds yamls beside them."""
    from hydra.core.config_store import ConfigStore

    store = ConfigStore.instance()
    for group in registry.CODE_FOLDER_OF_GROUP:
        known = registry.code_files(group)
        for name in [file.removesuffix(".yaml") for file in store.repo.get(group, {}) if file.endswith(".yaml")]:
            if name not in known:  # it has got a yaml since
                del store.repo[group][f"{name}.yaml"]
        for name, config in known.items():
            store.store(group=group, name=name, node=dict(config))


def _check_chosen(command: Command, given: Sequence[str]) -> None:
    """ConfigError for a broken yaml among the chosen ones: hydra reads these itself, without our guards.

    Others are left alone. Those of a group are chosen together where a pattern takes several names, or a yaml others.
    """
    if any(word.startswith("hydra/") for word in given):
        for file in (file for folder in registry.config_dirs() for file in (folder / "hydra").rglob("*.yaml")):
            registry.check_aliases(file)
    defaults = command.defaults()
    for group in command.names(groups=True):
        chosen = [word.partition("=")[2] for word in given if word.startswith(f"{group}=")] or [
            str(defaults.get(group))
        ]
        known = registry.yaml_files(group)
        names = [name for each in chosen for name in each.split(",") if name in known]
        several = any("glob(" in each for each in chosen)
        if several or any("defaults" in registry.read_named_config(group, name) for name in names):
            names = list(known)
        for name in names:
            registry.read_named_config(group, name)


def _check_one_job(command: Command, settings: Sequence[str]) -> None:
    """ConfigError for a setting of several values where -m is not given."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    for word in settings:
        try:
            several = not word.startswith("hydra") and parser.parse_override(word).is_sweep_override()
        except HydraException:  # said where it is read
            continue
        if several:
            key, _, value = word.removeprefix("++").partition("=")
            text = f"; for one text write {typed_as_text(key, value)}" if "." in key else ""
            raise ConfigError(f"{key} takes one value, got {value}: {one_value_remedy(command, key, value)}{text}")


MAX_CACHED_CONFIGS = 256
"""Configs of a sweep's jobs that are kept, each of about half a MB."""
SWEEP_FLAGS = ("-m", "--multirun")
SINGLE_RUN_FLAGS = ("-r", "--run")
