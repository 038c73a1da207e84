"""The settings of a command, KEY=VALUE in hydra's grammar. The only module of lexbench that imports hydra."""

import functools
import math
import os
import re
import shlex
import socket
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lexbench.commands.command import SWEEP_HELP, Command, Setting
from lexbench.commands.hydra_value import hydra_value
from lexbench.core import registry
from lexbench.core.errors import ConfigError
from lexbench.core.model import Model
from lexbench.core.parts import is_installed
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

        plain = OmegaConf.to_container(config, resolve=True)
        assert isinstance(plain, dict)
        try:
            choices = dict(HydraConfig.get().runtime.choices)
            return JobOutcome(job({str(key): value for key, value in plain.items()}, choices))
        # A launcher sends the outcome back pickled; from another process it must be unpickled here.
        except (ConfigError, Refused, OSError) as error:  # else hydra would end the sweep
            return JobOutcome(error=error if home == (socket.gethostname(), os.getpid()) else _portable(error))

    return entry


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
    return {str(key): value for key, value in plain.items()}, choices


def _translate_errors(call: Callable[[], Any]) -> Any:
    """The result of `call`; errors of hydra, omegaconf and launchers become ConfigError."""
    from hydra.errors import HydraException, MissingConfigException, OverrideParseException
    from omegaconf.errors import OmegaConfBaseException

    try:
        return call()
    # The first two are HydraExceptions, too: the order counts.
    except OverrideParseException as error:
        given = _as_given(error.override)
        key, _, value = given.partition("=")
        text = (
            ""
            if key in LIST_KEY_OF_GROUP or not value
            else f"; a text with marks goes into quotes, {_as_text(key, value)}"
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
    flags, given = _split(words, command.options())
    sweep = bool({*SWEEP_FLAGS, "hydra.mode=MULTIRUN"} & {*flags, *given})
    given = [each for word in given for each in _model_path(word, sweep)]
    given = [each for word in given for each in _corpus_path(word, sweep)]
    settings = [_quote_value(_checked_setting(command, word, sweep, given)) for word in given]
    if not sweep:
        _check_one_job(command, settings)
    _store_names()
    extra = [folder for folder in registry.config_dirs() if folder != command.home]
    if extra:
        _check_chosen(command, given)
    search = (
        [f"hydra.searchpath=[{','.join(_in_quotes(f'file://{folder.resolve()}') for folder in extra)}]"]
        if extra
        else []
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


def words_of_file(file: Path, words: list[str]) -> list[str]:
    """The words of a sweep file, then `words`, which replace the file's settings of the same name.

        lengths: [512, 1024]
        method.factor: 8
        sweep: {method: [pi, yarn]}

    is lengths=[512,1024] method.factor=8 -m method=pi,yarn. Raises ConfigError for another form.
    """
    try:
        registry.check_aliases(file)
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"sweep {file} cannot be read ({error.strerror}): give --sweep a yaml") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"sweep {file} is not valid yaml ({' '.join(str(error).split())}): mend it") from error
    swept = content.pop("sweep", {}) if isinstance(content, dict) else None
    if not isinstance(swept, dict) or not all(isinstance(values, list) and values for values in swept.values()):
        raise ConfigError(
            f"sweep {file} must hold settings, and lists of values under sweep: e.g. sweep: {{method: [none, yarn]}}"
        )
    settings = {str(key): hydra_value(value) for key, value in content.items()}
    settings |= {str(key): ",".join(map(hydra_value, values)) for key, values in swept.items()}
    given = {word.partition("=")[0] for word in words}
    return [*["-m"] * bool(swept), *(f"{key}={value}" for key, value in settings.items() if key not in given), *words]


def _split(words: list[str], options: Sequence[str]) -> tuple[list[str], list[str]]:
    """Flags with their values, and settings; `options` of the command are offered in place of an unknown flag."""
    flags, settings = [], []
    rest = iter(words)
    for word in rest:
        flag, _, value = word.partition("=")
        if flag in ("--config-dir", "-cd"):
            registry.add_config_dir(value or next(rest, ""), "--config-dir")
        elif word in ("--cfg", "-c", "--package", "-p", "--info", "-i"):
            flags += [word, next(rest, "job")]
        elif word.startswith("-"):
            if word.partition("=")[0] not in VALUELESS_FLAGS:
                raise ConfigError(
                    f"unknown flag {word}: {registry.did_you_mean(flag, [*options, *VALUELESS_FLAGS])}see --help"
                )
            flags.append(word)
        else:
            settings.append(word)
    return flags, settings


def _quote_value(word: str) -> str:
    """The word with quotes around values that are not ASCII, which hydra reads in quotes only."""
    key, equals, value = word.partition("=")
    if value.isascii() or set(value) & set("()'\"\\"):
        return word
    single = r"[^,:\[\]{}\s][^,:\[\]{}]*" if value[0] in "[{" else "[^,]+"
    return key + equals + re.sub(single, lambda each: each[0] if each[0].isascii() else f"'{each[0]}'", value)


def _checked_setting(command: Command, word: str, sweep: bool, given: Sequence[str]) -> str:
    """One KEY=VALUE of those given, checked and in hydra's form."""
    groups, keys = command.names(groups=True), command.names(groups=False)
    bare = word.lstrip("+~")
    if bare.startswith("hydra"):
        _check_launcher_installed(bare)
        return word
    if bare != word:
        name = re.split(r"[=.@]", bare)[0]
        if name not in groups + keys:
            raise ConfigError(f"unknown setting {name}: {registry.suggest_choices(name, groups + keys)}")
        if word.startswith("~") and re.split(r"[=@]", bare)[0] in groups + keys:
            raise ConfigError(f"{name} cannot be left out: give {name}=..., or drop {word}")
        return word
    key, equals, value = word.partition("=")
    if not equals:
        raise ConfigError(f"setting {word!r} must be key=value: e.g. method=yarn")
    if key not in keys and OTHER_LENGTH_SETTING.get(key) in keys:
        key = OTHER_LENGTH_SETTING[key]
    group, dot, _ = key.partition(".")
    if group not in groups + keys:
        raise ConfigError(f"unknown setting {key}: {_setting_hint(command, key, value, given)}".rstrip())
    if dot and group in keys:
        _check_part(command, key)
        return word
    if group in keys:
        [setting] = [each for each in command.settings if each.name == key]
        return f"{key}={_value(setting, value, sweep)}"
    # ++ adds what the yaml does not state; the class of the name checks it when it is built.
    return _choose_names(command, group, value, sweep) if not dot else f"++{word}"


def _value(setting: Setting, value: str, sweep: bool) -> str:
    """The value of a setting that is no name: a list where it stands for one, a folder or file in quotes."""
    if value == "null" or value[:1] in ("'", '"') or re.search(r"\\[][\\(){}:=, \t]", value):  # quoted already
        return value
    if setting.is_place and not (sweep and set(value) & set(",(")):
        return _in_quotes(str(Path(value).expanduser()) if re.match("~(/|$)", value) else value)
    if setting.is_list and value.startswith("{") and not sweep:
        return f"[{value}]"
    if set(value) & set("[]{}()'\"$"):
        return value
    if setting.is_list:
        return ",".join(f"[{each}]" for each in value.split(",")) if sweep else f"[{value}]"
    return f"[{value}]" if setting.takes_list and "," in value and not sweep else value


def _in_quotes(text: str) -> str:
    """A text as hydra reads it whatever it holds: a backslash is itself there, but in front of a quote."""
    escaped = re.sub(r'(\\*)("|$)', lambda found: found[1] * 2 + found[2].replace('"', '\\"'), text)
    return f'"{escaped}"'


def _choose_names(command: Command, group: str, value: str, sweep: bool) -> str:
    """The word for the chosen name of a group, or for several.

    A list of names fills the key that lists have: method=[none,yarn] is method.several=[none,yarn].
    """
    if group in LIST_KEY_OF_GROUP and value == "[]":
        raise ConfigError(
            f"{group} must name at least one {group}, got []: e.g. {group}=[{EXAMPLE_LIST_OF_GROUP[group]}]"
        )
    if value.startswith("["):
        if group not in LIST_KEY_OF_GROUP:
            raise ConfigError(f"{group} takes one name, got {value}: {_one_value_remedy(command, group, 'a,b')}")
        return f"++{group}.{LIST_KEY_OF_GROUP[group]}={value}"
    if group in LIST_KEY_OF_GROUP and "[" in value:
        raise ConfigError(f"{group}={value} mixes names and lists: write lists only, {group}=[...],[...] with -m")
    if value.startswith("glob("):
        return f"{group}={value}"
    if set(value) & set("{("):
        listed = f", or {group}=[{{name: NAME, KEY: VALUE}}]" if group in LIST_KEY_OF_GROUP else ""
        apart = f"{group}=NAME {group}.KEY=VALUE{listed}"
        raise ConfigError(f"{group} must be a name, got {value}: give its values apart, {apart}")
    names = [name.strip("'\"") for name in value.split(",")]
    combined = [
        name
        for name in names
        if "compose" in registry.read_named_config(group, name) and name not in registry.registered_names(group)
    ]
    if len(names) > 1 and not sweep:
        if group not in LIST_KEY_OF_GROUP:
            raise ConfigError(f"{group} takes one name, got {value}: {_one_value_remedy(command, group, value)}")
        return f"++{group}.{LIST_KEY_OF_GROUP[group]}=[{','.join(names)}]"
    if combined:  # they have no yaml that hydra could read
        return f"++method.several={','.join(f'[{name}]' for name in names)}"
    return f"{group}={value}"


def _one_value_remedy(command: Command, key: str, value: str) -> str:
    """The remedy for several values where one is taken."""
    return f"-m {key}={value} runs a job for each" if SWEEP_HELP in command.epilog else "give one"


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
            text = f"; for one text write {_as_text(key, value)}" if "." in key else ""
            raise ConfigError(f"{key} takes one value, got {value}: {_one_value_remedy(command, key, value)}{text}")


def _as_text(key: str, value: str) -> str:
    """A setting as it is typed in a shell for hydra to read its value as one text."""
    return shlex.quote(f"{key}={_in_quotes(value)}")


def _setting_hint(command: Command, key: str, value: str, given: Sequence[str]) -> str:
    """The end of a message on an unknown setting: an option, or a parameter, of this name, else the nearest setting."""
    if f"--{key}" in command.options():
        return f"did you mean --{key} {value}?"
    groups = command.names(groups=True)
    defaults = command.defaults()
    chosen = {name: str(defaults.get(name)) for name in groups}
    chosen |= {name: word.partition("=")[2] for word in given if (name := word.partition("=")[0]) in groups}
    # The backend comes last: its class loads torch. A method's parameter is told although no method is chosen.
    usual = {name: names for name, names in chosen.items() if name != "backend"}
    for names in (
        usual,
        {"method": ",".join(registry.registered_names("method"))},
        {"backend": chosen.get("backend", "")},
    ):
        found = [each for each in names if each in groups and _has_parameter(each, names[each], key)]
        if found:
            return f"did you mean {' or '.join(f'{each}.{key}={value}' for each in found)}?"
    return registry.suggest_choices(key.partition(".")[0], groups + command.names(groups=False))


def _has_parameter(group: str, names: str, key: str) -> bool:
    """Whether one of these names of a group has a parameter."""
    for name in re.split(r"[,+\[\]]", names):
        with suppress(ValueError, Refused):  # no name, or a suite
            stated = {**registry.read_named_config(group, name), "name": name}
            own = Model if group == "model" else registry.class_of(stated, group)
            if key in registry.class_parameters(own) or (group == "method" and key in ("at", "over", "layers")):
                return True
    return False


def _as_given(override: str) -> str:
    """A setting as it was given: without the ++ and the key of a list that `_checked_setting` adds."""
    key, equals, value = override.removeprefix("++").partition("=")
    group, _, part = key.partition(".")
    return (
        f"{group}={value}"
        if LIST_KEY_OF_GROUP.get(group) == part and value.startswith("[")
        else f"{key}{equals}{value}"
    )


def _check_part(command: Command, key: str) -> None:
    """ConfigError for ray.worker or space.yarn.beta_fst.low: a part that the command's yaml does not state."""
    found: Any = command.defaults()
    before: list[str] = []
    for part in key.split("."):
        if not isinstance(found, dict):
            raise ConfigError(f"setting {'.'.join(before)} has no parts, got {key}: give {'.'.join(before)}=VALUE")
        if part not in found:
            above = ".".join(before)
            near = f"did you mean {above}.{close}? " if (close := registry.closest_choice(part, found)) else ""
            adds = f"; +{key}=VALUE adds it" if before[0] in OPEN_SETTINGS else ""
            raise ConfigError(f"unknown setting {above}.{part}: {near}choose from {', '.join(found)}{adds}")
        before.append(part)
        found = found[part]


def _model_path(word: str, sweep: bool) -> list[str]:
    """The words for model=ORG/NAME and model=./FOLDER: those of the yaml with this path, else a local model's."""
    key, _, value = word.partition("=")
    if key != "model" or value.startswith("glob("):
        return [word]
    whole = not sweep and Path(value).exists()  # a comma in the name of a folder
    found = [registry.resolve_model_name(choice) for choice in ([value] if whole else value.split(","))]
    paths = [path for _, path in found if path is not None]
    if paths and len(paths) < len(found):
        raise ConfigError(f"{word} mixes names and paths: sweep over names, or over paths")
    return [
        f"model={','.join(dict.fromkeys(name for name, _ in found))}",
        *([f"model.path={','.join(map(_path, paths))}"] * bool(paths)),
    ]


def _corpus_path(word: str, sweep: bool) -> list[str]:
    """The words for corpus=FILE and corpus=./FOLDER: those of corpus=files with this path."""
    key, _, value = word.partition("=")
    if key != "corpus" or not value or value[0] in "[{'\"" or "(" in value:
        return [word]
    found = [registry.corpus_named(choice) for choice in (value.split(",") if sweep else [value])]
    paths = [path for _, path in found if path is not None]
    if paths and len(paths) < len(found):
        raise ConfigError(f"{word} mixes names and paths: sweep over names, or over paths")
    return ["corpus=files", f"corpus.path={','.join(map(_path, paths))}"] if paths else [word]


def _path(given: str) -> str:
    """A path in quotes, unless it has some."""
    return given if given[0] in "'\"" else _in_quotes(given)


def _check_launcher_installed(word: str) -> None:
    """ConfigError for hydra/launcher=NAME if the package of that launcher is missing."""
    key, _, name = word.partition("=")
    if key == "hydra/launcher" and name in MODULE_OF_LAUNCHER and not is_installed(MODULE_OF_LAUNCHER[name]):
        extra = name.partition("_")[0]
        raise ConfigError(f'launcher {name} needs a package that is not installed: pip install "lexbench[{extra}]"')


MODULE_OF_LAUNCHER = {
    "joblib": "hydra_plugins.hydra_joblib_launcher",
    "submitit_local": "hydra_plugins.hydra_submitit_launcher",
    "submitit_slurm": "hydra_plugins.hydra_submitit_launcher",
}
"""The module that each yaml of configs/hydra/launcher needs. The extra that installs it is the name's first word."""
MAX_CACHED_CONFIGS = 256
"""Configs of a sweep's jobs that are kept, each of about half a MB."""
SWEEP_FLAGS = ("-m", "--multirun")
SINGLE_RUN_FLAGS = ("-r", "--run")
VALUELESS_FLAGS = ("--help", "-h", "--hydra-help", "--multirun", "-m", "--run", "-r", "--resolve", "--version")
"""Flags of hydra that take no value."""
LIST_KEY_OF_GROUP = {"task": "suite", "method": "several"}
"""Groups that take a list of names, and the key of such a list in a config."""
OTHER_LENGTH_SETTING = {"length": "lengths", "lengths": "length"}
"""Setting as which `length` or `lengths` is read by a command that takes only the other one."""
EXAMPLE_LIST_OF_GROUP = {"task": "last_segment,passkey", "method": "none,yarn"}
"""Examples of such lists."""
OPEN_SETTINGS = ("space", "common")
"""Settings that take parts which their yaml does not state."""
