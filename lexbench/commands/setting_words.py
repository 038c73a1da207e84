"""The words of a command line, KEY=VALUE: checked against a command's settings, and as hydra's grammar has them."""

import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from lexbench.commands.command import SWEEP_HELP, Command, Setting
from lexbench.commands.hydra_value import hydra_value
from lexbench.core import objects, registry
from lexbench.core.errors import ConfigError
from lexbench.core.extras import install_remedy, is_installed
from lexbench.core.model import Model
from lexbench.core.record import Refused

VALUELESS_FLAGS = ("--help", "-h", "--hydra-help", "--multirun", "-m", "--run", "-r", "--resolve", "--version")
"""Flags of hydra that take no value."""
LIST_KEY_OF_GROUP = {"task": "suite", "method": "several"}
"""Groups that take a list of names, and the key of such a list in a config."""
EXAMPLE_LIST_OF_GROUP = {"task": "last_segment,passkey", "method": "none,yarn"}
"""Examples of such lists."""
OTHER_LENGTH_SETTING = {"length": "lengths", "lengths": "length"}
"""Setting as which `length` or `lengths` is read by a command that takes only the other one."""
OPEN_SETTINGS = ("space", "common")
"""Settings that take parts which their yaml does not state."""
MODULE_OF_LAUNCHER = {
    "joblib": "hydra_plugins.hydra_joblib_launcher",
    "submitit_local": "hydra_plugins.hydra_submitit_launcher",
    "submitit_slurm": "hydra_plugins.hydra_submitit_launcher",
}
"""The module that each yaml of configs/hydra/launcher needs. The extra that installs it is the name's first word."""


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


def split_flags(words: list[str], command: Command) -> tuple[list[str], list[str]]:
    """Flags with their values, and settings of a command; ConfigError for an unknown flag, with what may be meant."""
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
                    f"unknown flag {word}: {_flag_hint(command, flag, value or next(rest, ''))}see --help"
                )
            flags.append(word)
        else:
            settings.append(word)
    return flags, settings


def _flag_hint(command: Command, flag: str, value: str) -> str:
    """What an unknown flag with this value, or the word behind it, may mean: a setting, or the nearest flag."""
    name, _, part = flag.lstrip("-").replace("-", "_").partition(".")
    if name in command.names(groups=True) + command.names(groups=False):
        shown = "VALUE" if not value or value.startswith("-") or "=" in value else value
        return f"settings have no dashes, did you mean {name}{f'.{part}' * bool(part)}={shown}? "
    return registry.did_you_mean(flag, [*command.options(), *VALUELESS_FLAGS])


def checked_setting(command: Command, word: str, sweep: bool, given: Sequence[str]) -> str:
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
        return in_quotes(str(Path(value).expanduser()) if re.match("~(/|$)", value) else value)
    if setting.is_list and value.startswith("{") and not sweep:
        return f"[{value}]"
    if set(value) & set("[]{}()'\"$"):
        return value
    if setting.is_list:
        return ",".join(f"[{each}]" for each in value.split(",")) if sweep else f"[{value}]"
    return f"[{value}]" if setting.takes_list and "," in value and not sweep else value


def in_quotes(text: str) -> str:
    """A text as hydra reads it whatever it holds: a backslash is itself there, but in front of a quote."""
    escaped = re.sub(r'(\\*)("|$)', lambda found: found[1] * 2 + found[2].replace('"', '\\"'), text)
    return f'"{escaped}"'


def quote_value(word: str) -> str:
    """The word with quotes around values that are not ASCII, which hydra reads in quotes only."""
    key, equals, value = word.partition("=")
    if value.isascii() or set(value) & set("()'\"\\"):
        return word
    single = r"[^,:\[\]{}\s][^,:\[\]{}]*" if value[0] in "[{" else "[^,]+"
    return key + equals + re.sub(single, lambda each: each[0] if each[0].isascii() else f"'{each[0]}'", value)


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
            raise ConfigError(f"{group} takes one name, got {value}: {one_value_remedy(command, group, 'a,b')}")
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
            raise ConfigError(f"{group} takes one name, got {value}: {one_value_remedy(command, group, value)}")
        return f"++{group}.{LIST_KEY_OF_GROUP[group]}=[{','.join(names)}]"
    if combined:  # they have no yaml that hydra could read
        return f"++method.several={','.join(f'[{name}]' for name in names)}"
    return f"{group}={value}"


def one_value_remedy(command: Command, key: str, value: str) -> str:
    """The remedy for several values where one is taken."""
    return f"-m {key}={value} runs a job for each" if SWEEP_HELP in command.epilog else "give one"


def typed_as_text(key: str, value: str) -> str:
    """A setting as it is typed in a shell for hydra to read its value as one text."""
    return shlex.quote(f"{key}={in_quotes(value)}")


def setting_as_given(override: str) -> str:
    """A setting as it was given: without the ++ and the key of a list that `checked_setting` adds."""
    key, equals, value = override.removeprefix("++").partition("=")
    group, _, part = key.partition(".")
    return (
        f"{group}={value}"
        if LIST_KEY_OF_GROUP.get(group) == part and value.startswith("[")
        else f"{key}{equals}{value}"
    )


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
            own = Model if group == "model" else objects.class_of(stated, group)
            if key in objects.class_parameters(own) or (group == "method" and key in ("at", "over", "layers")):
                return True
    return False


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


def model_path_words(word: str, sweep: bool) -> list[str]:
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


def corpus_path_words(word: str, sweep: bool) -> list[str]:
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
    return given if given[0] in "'\"" else in_quotes(given)


def _check_launcher_installed(word: str) -> None:
    """ConfigError for hydra/launcher=NAME if the package of that launcher is missing."""
    key, _, name = word.partition("=")
    if key == "hydra/launcher" and name in MODULE_OF_LAUNCHER and not is_installed(MODULE_OF_LAUNCHER[name]):
        extra = name.partition("_")[0]
        raise ConfigError(f"launcher {name} needs a package that is not installed: {install_remedy(extra)}")
