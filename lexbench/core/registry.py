"""The registry: files of code and yamls in `configs/`, each a name; `lexbench.core.objects` builds what they describe.

A file of `methods/`, `tasks/` or `encodings/` is a name by itself if it holds one public class of its kind
(`lexbench.core.named_files`). Every yaml is a name, and wins over a file. A yaml's `file: passkey.py` lies beside it,
or in `tasks/` of ours or of our parts, or is an absolute path.
"""

import copy
import difflib
import functools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from lexbench.core.errors import ConfigError
from lexbench.core.named_files import only_class
from lexbench.core.parts import all_parts, is_checkpoint_file, plug_ins_of_parts

PACKAGE_FOLDER = Path(__file__).resolve().parents[1]
TEXT_ENDINGS = (".txt", ".md", ".py", ".jsonl")
"""Endings of the files that corpus=files reads."""
REGISTRY_GROUPS = ("model", "method", "encoding", "task", "corpus", "backend")


def asset_folder(name: str) -> Path:
    """A folder that is inside the package in a wheel, and beside the package in a checkout."""
    inside = PACKAGE_FOLDER / name
    return inside if inside.is_dir() else PACKAGE_FOLDER.parent / name


def config_dirs() -> list[Path]:
    """The registry of the core, those of parts, and the user's, each once.

    The user's are the folders in LEXBENCH_CONFIG_PATH, colon-separated.
    """
    extra = [Path(entry) for entry in os.environ.get("LEXBENCH_CONFIG_PATH", "").split(os.pathsep) if entry]
    if lost := [folder for folder in extra if not folder.is_dir()]:
        raise ConfigError(f"LEXBENCH_CONFIG_PATH {lost[0]} is no folder: give one with method/, task/, ... in it")
    found: dict[Path, Path] = {}
    found.update((folder, folder) for folder in _installed_dirs())
    for folder in extra:
        found.setdefault(folder.resolve(), folder)
    return list(found.values())


@functools.cache
def _installed_dirs() -> tuple[Path, ...]:
    """The registry of the core and those of parts."""
    of_parts = [folder for part in all_parts() if (folder := part.folder / "configs").is_dir()]
    return tuple(folder.resolve() for folder in (asset_folder("configs"), *of_parts))


def command_config_folder(name: str) -> Path:
    """The folder of the registry that holds NAME.yaml, the settings of a command."""
    return next(folder for folder in config_dirs() if (folder / f"{name}.yaml").is_file())


@contextmanager
def with_config_dirs(folders: str | Path | Sequence[str | Path] | None) -> Iterator[None]:
    """Add a user's folders of yamls to the registry inside a block; ConfigError for what is no folder."""
    before = os.environ.get("LEXBENCH_CONFIG_PATH")
    try:
        for folder in [folders] if isinstance(folders, str | Path) else folders or ():
            add_config_dir(folder, "config_dir")
        yield
    finally:
        os.environ.pop("LEXBENCH_CONFIG_PATH", None)
        os.environ.update({} if before is None else {"LEXBENCH_CONFIG_PATH": before})


def add_config_dir(given: str | Path, setting: str) -> None:
    """Add a user's folder of yamls to LEXBENCH_CONFIG_PATH, which other processes inherit."""
    folder = Path(given)
    if not folder.is_dir():
        raise ConfigError(f"{setting} {folder} is no folder: give one with method/, task/, ... in it")
    known = os.environ.get("LEXBENCH_CONFIG_PATH", "")
    os.environ["LEXBENCH_CONFIG_PATH"] = os.pathsep.join(filter(None, [known, str(folder.resolve())]))


MOST_VALUES = 10_000
"""Values that a yaml may hold, those of its aliases counted where they stand."""


def yaml_files(group: str) -> dict[str, list[Path]]:
    """The yamls of each name of a group; only names with one can be read."""
    found: dict[str, list[Path]] = {}
    for folder in config_dirs():
        for file in (folder / group).glob("*.yaml"):
            found.setdefault(file.stem, []).append(file)
    return found


def registered_names(group: str) -> list[str]:
    """All names of a group, sorted."""
    return sorted({*yaml_files(group), *code_files(group)})


def code_files(group: str) -> dict[str, dict[str, str]]:
    """Names of a group that are files without a yaml: what a yaml would say, the class or the file."""
    if code_folder_of(group) is None:
        return {}
    stated = yaml_files(group)
    found: dict[str, dict[str, str]] = {}
    for folder, package, configs in _code_folders(group):
        state = _state(group, folder, package, configs)
        for name, config in _files_in(group, folder, package, configs, state).items():
            if name not in stated:
                found.setdefault(name, config)
    return found


@functools.lru_cache(maxsize=256)
def _files_in(
    group: str, folder: Path, package: str | None, configs: Path, state: tuple[int, ...]
) -> dict[str, dict[str, str]]:
    """Names of one folder's files; `state` tells one state of the folder from another."""
    families = _files_of(configs / group)
    found = {}
    for file in sorted(folder.glob("*.py")):
        cls = only_class(file, recognising_attribute(group) if group != "encoding" else None)
        if file.name not in families and cls and cls.lower() == file.stem.replace("_", ""):
            place = str(file.resolve()) if package is None else file.name
            found[file.stem] = {"_target_": f"{package}.{file.stem}.{cls}"} if package else {"file": place}
    return found


def _taken_by(group: str, stated: Path) -> Path | None:
    """The file of another owner whose name a yaml has."""
    for folder, package, configs in _code_folders(group) if code_folder_of(group) else ():
        if stated.parent in (configs / group, folder):
            continue
        if stated.stem in _files_in(group, folder, package, configs, _state(group, folder, package, configs)):
            return folder / f"{stated.stem}.py"
    return None


def _state(group: str, folder: Path, package: str | None, configs: Path) -> tuple[int, ...]:
    """Times that tell one state of a folder's files from another.

    Files of the user may change while this process runs, as in a notebook; of ours it is asked which there are.
    """
    files = folder.glob("*") if package is None else (folder, configs / group)
    return tuple(file.stat().st_mtime_ns for file in files if file.exists())


def _files_of(folder: Path) -> set[str]:
    """Files that the yamls of a folder name; such a file has several names, each a yaml."""
    found = set[str]()
    for place in folder.glob("*.yaml"):
        with suppress(ConfigError, OSError):  # a broken yaml stops only what names it
            found.add(str(_read_mapping(place).get("file")))
    return found


CODE_FOLDER_OF_GROUP = {"method": "methods", "task": "tasks", "encoding": "encodings"}
"""Folder of the files of each group, in the core and in every part."""


def code_folder_of(group: str) -> str | None:
    """Folder of the files of a group, or of a kind of plug-ins that a part takes; None where files are no names."""
    return CODE_FOLDER_OF_GROUP.get(group) or plug_ins_of_parts().get(group, (None,))[0]


def _code_folders(group: str) -> Iterator[tuple[Path, str | None, Path]]:
    """Folders of a group's files, of the core, of parts and of the user; each with its package and its yamls' folder.

    The package is empty for our tasks, which are found by their file's name, and None for the user's folders.
    """
    yield from _installed_code_folders(group)
    for folder in config_dirs()[len(_installed_dirs()) :]:
        if (folder / group).is_dir():
            yield folder / group, None, folder


@functools.cache
def _installed_code_folders(group: str) -> tuple[tuple[Path, str, Path], ...]:
    """Folders of a group's files of the core and of parts, as `_code_folders` gives them."""
    name, is_task = code_folder_of(group), group == "task"
    assert name is not None, f"files of {group} are names"
    core = asset_folder(name) if is_task else PACKAGE_FOLDER / name
    found = [(core, "" if is_task else f"lexbench.{name}", asset_folder("configs"))]
    for part in all_parts():
        package = "" if is_task and part.is_ours else f"{part.package}.{name}"
        found.append((part.folder / name, package, part.folder / "configs"))
    return tuple(each for each in found if each[0].is_dir())


def read_named_config(group: str, name: str) -> dict[str, Any]:
    """Read one yaml of the registry.

    Raises ConfigError with the choices for an unknown name, and where two yamls have one name: hydra would take
    the first.

    Of methods, names joined by `+` stand for the methods combined, as `compose` in a yaml.
    """
    found = yaml_files(group).get(name, [])
    if len(found) > 1:
        raise ConfigError(f"{group} {name} has two yamls, {found[0]} and {found[1]}: rename one")
    if found and (taken := _taken_by(group, found[0])):
        raise ConfigError(f"{group} {name} has two yamls or files, {taken} and {found[0]}: rename one")
    if found and found[0].is_file():
        return _read_mapping(found[0])
    if not found and (config := code_files(group).get(name)):
        return dict(config)
    if group == "method" and "+" in name:
        parts = name.split("+")
        for part in parts:
            read_named_config(group, part)
        return {"compose": parts}
    also = {
        "model": ", or give model=ORG/NAME of the hub or model=./FOLDER",
        "corpus": ", or give corpus=./FOLDER or corpus=FILE.txt",
    }.get(group, "")
    own = "; --config-dir DIR or LEXBENCH_CONFIG_PATH=DIR adds yours"
    raise ConfigError(f"unknown {group} {name!r}: {suggest_choices(name, registered_names(group))}{also}{own}")


def expand_entries(group: str, given: Any, setting: str, example: str) -> list[dict[str, Any]]:
    """Configs of a setting's list of names, or of names with parameters that override the yaml's; each with `name`.

    Raises ConfigError for what is no list of these.
    """
    nouns = {"corpus": "corpora"}.get(group, f"{group}s")
    if not isinstance(given, Sequence) or isinstance(given, str) or not given:
        raise ConfigError(f"{setting} must be a list of {nouns}, got {given!r}: e.g. {example}")
    entries = [{"name": entry} if isinstance(entry, str) else entry for entry in given]
    for entry in entries:
        if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
            raise ConfigError(f"{setting} must list {nouns} by name, got {entry!r}: e.g. {example}")
    # No yaml names an object of the user's, nor what is combined here.
    own = [
        isinstance(entry.get("_target_"), type) or ("compose" in entry and "+" in entry["name"]) for entry in entries
    ]
    return [
        {**({} if mine else read_named_config(group, entry["name"])), **entry}
        for mine, entry in zip(own, entries, strict=True)
    ]


def resolve_model_name(given: str) -> tuple[str, str | None]:
    """(name of a model's yaml, its path or None) of a name, a hub name, a folder or a GGUF file.

    A path that a yaml has is that yaml's model; the facts of any other stand in its config.json: `local`.
    """
    if not ("/" in given or given.startswith((".", "~")) or is_checkpoint_file(given)):
        return given, None
    for name in registered_names("model"):
        with suppress(ValueError):  # a broken yaml of the user stops only what names it
            if read_named_config("model", name).get("path") == given:
                return name, None
    return "local", given


def corpus_named(given: str) -> tuple[str, str | None]:
    """(name of a corpus's yaml, its path or None) of a name, or of a file or folder of texts: `files`.

    A text that looks like a path, or ends as a file of texts does, is one.
    """
    is_place = "/" in given or given.startswith((".", "~")) or Path(given).suffix in TEXT_ENDINGS
    return ("files", given) if is_place else (given, None)


def check_aliases(file: Path) -> None:
    """ConfigError for a yaml whose aliases stand for more than 10,000 values: copies of it would fill the memory."""
    try:
        text = file.read_text(encoding="utf-8")
        root = yaml.compose(text, yaml.SafeLoader) if "*" in text and "&" in text else None
        counts: dict[int, int] = {}
        if root is not None and _count_values(root, counts) > MOST_VALUES:
            raise ConfigError(f"config {file} stands for more than {MOST_VALUES:,} values by its aliases: write fewer")
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, OSError):
        return  # said where it is read


def _count_values(node: Any, counts: dict[int, int]) -> int:
    """Values below a node of yaml, those of aliases at each place where they stand."""
    if id(node) not in counts:
        counts[id(node)] = MOST_VALUES + 1  # below itself: without end
        below = [each for pair in node.value for each in pair] if isinstance(node, yaml.MappingNode) else node.value
        inside = below if isinstance(node, yaml.CollectionNode) else ()
        counts[id(node)] = 1 + sum(_count_values(each, counts) for each in inside)
    return counts[id(node)]


@functools.lru_cache(maxsize=256)
def _parse_yaml(text: str) -> Any:
    """The contents of a yaml. The same few are read again and again, and yaml's parser takes milliseconds."""
    return yaml.safe_load(text)


def _read_mapping(file: Path) -> dict[str, Any]:
    check_aliases(file)
    try:
        content = copy.deepcopy(_parse_yaml(file.read_text(encoding="utf-8"))) or {}
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # also: no text, a wrong date, nested too deeply
        raise ConfigError(f"config {file} must be valid yaml ({' '.join(str(error).split())}): correct it") from None
    check_no_environment(content, f"config {file}")
    if not isinstance(content, dict):
        raise ConfigError(f"config {file} must hold keys and values, got {type(content).__name__}: e.g. factor: 8")
    return content


ENVIRONMENT_PATTERN = re.compile(r"\$\{[^}]*\boc\.env\b[^}]*\}?")
"""What hydra would replace by a variable of the environment."""


def check_no_environment(value: Any, noun: str) -> None:
    """ConfigError for a setting that a variable of the environment gives: jobs, records and cells would hold it.

    Args:
        value: plain data of settings, or a word of them.
        noun: what holds it, for the message.
    """
    if isinstance(value, str) and (found := ENVIRONMENT_PATTERN.search(value)):
        raise ConfigError(
            f"{noun} asks for {found[0]}, but a record would hold the variable's value: write it as it is, or give "
            "a secret by the variable's name (backend.key_variable)"
        )
    if isinstance(value, Mapping):
        check_no_environment(list(value.items()), noun)
    elif isinstance(value, list | tuple):
        for each in value:
            check_no_environment(each, noun)


def source_of(config: Mapping[str, Any], noun: str) -> Path:
    """The place of a yaml's `file:`: beside the yaml, or in our tasks; absolute paths stay.

    Without the yaml's name, beside any yaml of its group.
    """
    file, own = Path(str(config["file"])), yaml_files(noun).get(str(config.get("name")))
    installed = _installed_code_folders(noun) if noun == "task" else ()
    ours = [folder for folder, package, _ in installed if not package]
    if not own and config.get("name") == file.stem and noun == "task":  # a name without a yaml is our own file
        beside = []
    else:
        beside = [own[0].parent] if own else [folder / noun for folder in reversed(config_dirs())]
    missing = (ours or beside)[0]
    return next((folder / file for folder in [*beside, *ours] if (folder / file).is_file()), missing / file)


RECOGNISING_ATTRIBUTES = {
    "task": "questions",
    "method": "attention",
    "encoding": "qk",
    "corpus": "documents",
    "backend": "attend",
}
"""Attribute by which the class of a noun is recognised in a user's file, by noun."""


def recognising_attribute(noun: str) -> str | None:
    """Attribute by which the class of a noun is recognised; None where no file defines one."""
    return RECOGNISING_ATTRIBUTES.get(noun) or plug_ins_of_parts().get(noun, (None, None))[1]


def suggest_choices(name: str, choices: Iterable[str]) -> str:
    """`did you mean NEAREST? choose from A, B`, the end of a message."""
    choices = list(choices)
    return (
        f"{did_you_mean(name, choices)}choose from {', '.join(choices)}" if choices else "there is none to choose from"
    )


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """`did you mean NEAREST? `, or nothing where no choice is similar."""
    close = closest_choice(name, choices)
    return f"did you mean {close}? " if close else ""


def closest_choice(name: str, choices: Iterable[str]) -> str | None:
    """The choice that is most similar, if any is; `N` is as good as `n`."""
    by_lower_case = {choice.lower(): choice for choice in choices}
    close = difflib.get_close_matches(name.lower(), by_lower_case, n=1)
    return by_lower_case[close[0]] if close else None
