"""The registry: files of code and yamls in `configs/`, each a name, and the objects that they describe.

A file of `methods/`, `tasks/` or `encodings/` is a name by itself if it holds one public class of its kind
(`lexbench.core.named_files`). Every yaml is a name, and wins over a file. It names a class by `_target_:
package.module.Class`, or by the file that defines it, `file: passkey.py` (beside the yaml, in our `tasks/`, or an
absolute path). Every other key is a parameter of the class.
"""

import ast
import copy
import difflib
import functools
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import yaml

from lexbench.core.errors import ConfigError
from lexbench.core.fence import plugin_guard
from lexbench.core.named_files import only_class
from lexbench.core.old_names import present_path
from lexbench.core.parts import all_parts
from lexbench.core.plug_in import source_of_module
from lexbench.core.record import Deferred

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
    if group not in CODE_FOLDER_OF_GROUP:
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
        cls = only_class(file, RECOGNISING_ATTRIBUTES[group] if group != "encoding" else None)
        if file.name not in families and cls and cls.lower() == file.stem.replace("_", ""):
            place = str(file.resolve()) if package is None else file.name
            found[file.stem] = {"_target_": f"{package}.{file.stem}.{cls}"} if package else {"file": place}
    return found


def _taken_by(group: str, stated: Path) -> Path | None:
    """The file of another owner whose name a yaml has."""
    for folder, package, configs in _code_folders(group) if group in CODE_FOLDER_OF_GROUP else ():
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


def _code_folders(group: str) -> Iterator[tuple[Path, str | None, Path]]:
    """Folders of a group's files, of the core, of parts and of the user; each with its package and its yamls' folder.

    The package is empty for our tasks, which are found by their file's name, and None for the user's folders.
    """
    name = CODE_FOLDER_OF_GROUP[group]
    if group == "task":
        yield asset_folder(name), "", asset_folder("configs")
    elif (PACKAGE_FOLDER / name).is_dir():
        yield PACKAGE_FOLDER / name, f"lexbench.{name}", asset_folder("configs")
    for part in all_parts():
        if (part.folder / name).is_dir():
            package = "" if group == "task" and part.is_ours else f"{part.package}.{name}"
            yield part.folder / name, package, part.folder / "configs"
    for folder in config_dirs()[len(_installed_dirs()) :]:
        if (folder / group).is_dir():
            yield folder / group, None, folder


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
    if not ("/" in given or given.startswith((".", "~")) or given.endswith(".gguf")):
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
    if not isinstance(content, dict):
        raise ConfigError(f"config {file} must hold keys and values, got {type(content).__name__}: e.g. factor: 8")
    return content


def build_object(config: Mapping[str, Any], noun: str, **inserted: Any) -> Any:
    """Build the object that a yaml describes. `inserted` sets fields that users do not write, if the class has them.

    Raises ConfigError for an unknown or missing parameter, and for a ConfigError of the class.
    """
    cls = checked_class(config, noun)
    known = class_parameters(cls)
    values = {**{key: value for key, value in inserted.items() if key in known}, **_stated_parameters(config)}
    lacking = [key for key, required in known.items() if required and key not in values]
    if lacking:
        raise ConfigError(f"{noun} needs {lacking[0]}: give {noun}.{lacking[0]}=...")
    with plugin_guard(f"{noun} {cls.__name__}"):
        try:
            return cls(**{key: _freeze(value) for key, value in values.items()})
        except ValueError as error:  # Python's own word for a wrong value, which a plug-in's constructor may use
            raise ConfigError(str(error)) from error


def checked_class(config: Mapping[str, Any], noun: str) -> type:
    """The class that a yaml describes; ConfigError for an unknown parameter or a plain value of a wrong type."""
    cls = class_of(config, noun)
    if noun in RECOGNISING_ATTRIBUTES and not hasattr(cls, RECOGNISING_ATTRIBUTES[noun]):
        raise ConfigError(
            f"{noun} class {cls.__name__} must have {RECOGNISING_ATTRIBUTES[noun]}: name another by _target_ or file"
        )
    stated, config, known = config, _stated_parameters(config), class_parameters(cls)
    own = (
        ()
        if noun not in RECOGNISING_ATTRIBUTES
        else ("name", "file", *(SHARED_METHOD_KEYS if noun == "method" else ()))
    )
    if taken := [key for key in known if key in own]:
        raise ConfigError(
            f"{noun} class {cls.__name__} has a parameter {taken[0]}, a key of every {noun}'s yaml: rename it"
        )
    for key in config:
        if key not in known:
            named = stated.get("name") or cls.__name__
            remedy = suggest_choices(key, known) if known else f"{named} has no parameters"
            raise ConfigError(f"unknown parameter {noun}.{key}: {remedy}")
        # The run puts the corpus object in its place; a user can only have written a value.
        if key == "corpus" and not hasattr(config[key], "documents"):
            raise ConfigError(
                f"{noun}.corpus is set by corpus=NAME for the whole run, got {config[key]!r}: leave it out"
            )
        if noun == "backend" and key == "model":
            remedy = f"its name on a server is backend.served={config[key]}" if "served" in known else "leave it out"
            raise ConfigError(f"backend.model is set by model=NAME for the whole run, got {config[key]!r}: {remedy}")
    hints = _hints(cls, noun)
    for key in config:
        _check(key if noun in OBJECT_COMMANDS else f"{noun}.{key}", config[key], hints.get(key, Any))
        if noun == "task" and isinstance(config[key], Mapping):  # tasks are kept by their values
            raise ConfigError(f"task.{key} must be a plain value or a list, got a mapping: make its entries parameters")
    return cls


def _hints(cls: type, noun: str) -> dict[str, Any]:
    """The annotations of a class's parameters; ConfigError for one whose names are not there at run time."""
    try:
        return get_type_hints(cls if is_dataclass(cls) else cls.__init__)  # type: ignore[misc]
    except NameError as error:
        raise ConfigError(
            f"{noun} class {cls.__name__} has an annotation that cannot be read ({error}): "
            "import that name outside of TYPE_CHECKING"
        ) from None


def _stated_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters in a yaml: all but its own name and what names its class."""
    return {key: value for key, value in config.items() if key not in ("_target_", "file", "name")}


def _freeze(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


SHARED_METHOD_KEYS = ("at", "compose", "layers", "over", "several")
"""Keys that mean the same in the yaml of every method (`lexbench.methods.composition`), and so reach no class."""
OBJECT_COMMANDS = ("tune", "search")
"""Commands whose settings are typed without the command's name: worth=4, not tune.worth=4."""
PLAIN_TYPE_WORDS: Mapping[type, tuple[str, str]] = {
    bool: ("true or false", "true"),
    int: ("a whole number", "4"),
    float: ("a number", "4"),
    str: ("a text", "text"),
    type(None): ("null", "null"),
}
"""Plain types in words, each with a value as it would be typed."""


def _check(name: str, value: Any, hint: Any) -> None:
    """ConfigError for a plain value of a wrong type; the class itself checks other annotations."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    plain = [kind for kind in kinds if kind in PLAIN_TYPE_WORDS]
    fits = any(isinstance(value, kind) or (kind is float and isinstance(value, int)) for kind in plain)
    misplaced = isinstance(value, bool) and bool not in plain
    wrong = len(plain) == len(kinds) and (not fits or misplaced)
    for nested, accepts in ((dict, Mapping), (list, Iterable)):
        wrong |= (
            bool(plain) and isinstance(value, nested) and not any(_accepts_collection(kind, accepts) for kind in kinds)
        )
    if wrong:
        wanted = " or ".join(PLAIN_TYPE_WORDS[kind][0] for kind in plain)
        typed = PLAIN_TYPE_WORDS[int if int in plain else plain[0]][1]  # a number says more than the word "text"
        raise ConfigError(f"{name} must be {wanted}, got {value!r}: e.g. {name}={typed}")


def _accepts_collection(hint: Any, kind: type) -> bool:
    """Whether an annotation is a kind of mapping or sequence that is no text, or anything."""
    cls = get_origin(hint) or hint
    return cls is Any or (isinstance(cls, type) and cls is not str and issubclass(cls, kind))


def class_of(config: Mapping[str, Any], noun: str) -> type:
    """The class of a yaml."""
    if "file" in config:
        return _class_in(config, noun)
    if "suite" in config:
        raise ConfigError(f"{noun} {config.get('name', '')} is a suite of several: name one of them, or run it whole")
    if "_target_" not in config:
        named = f"{noun} {config['name']}" if "name" in config else f"{noun} config"
        raise ConfigError(f"{named} must name a class: give _target_: package.module.Class in its yaml")
    target = config["_target_"]
    return target if isinstance(target, type) else _import(present_path(str(target)))


def class_parameters(cls: type) -> dict[str, bool]:
    """Parameters of a class: name to whether it is required."""
    if is_dataclass(cls):
        return {f.name: f.default is MISSING and f.default_factory is MISSING for f in fields(cls) if f.init}
    stated = inspect.signature(cls).parameters.values()
    # A class without a constructor of its own has torch's: *args and **kwargs are no parameters.
    named = [each for each in stated if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    return {each.name: each.default is each.empty for each in named}


def instance_label(instance: Any, name: str, noun: str) -> str:
    """`name(parameter=value, ...)` with every parameter that the user changed, except the corpus.

    Of a corpus's files and folders only the last part is shown: labels are published, the user's folders are private.
    """
    changed = changed_parameters(instance, name, noun)
    shown = [f"{key}={_public(value, noun)!r}" for key, value in changed.items()]
    return f"{name}({', '.join(shown)})" if shown else name


def changed_parameters(instance: Any, name: str, noun: str) -> dict[str, Any]:
    """Every parameter that the user changed, except the corpus; ValueError for a class that is no frozen dataclass."""
    if not is_dataclass(instance):
        raise ConfigError(f"{noun} class {type(instance).__name__} must be a dataclass: its fields are its parameters")
    kind: Any = type(instance)
    if not kind.__dataclass_params__.frozen:  # what one length leaves in it would reach the next
        raise ConfigError(f"{noun} class {kind.__name__} must be frozen: write @dataclass(frozen=True)")
    stated = read_named_config(noun, name) if name in registered_names(noun) else {}
    usual = {f.name: _freeze(stated.get(f.name, f.default)) for f in fields(instance) if f.name != "corpus"}
    return {key: value for key, default in usual.items() if (value := getattr(instance, key)) != default}


def _public(value: Any, noun: str) -> Any:
    private = noun == "corpus" and isinstance(value, str) and value.startswith(("/", "~", "."))
    return Path(value).name if private else value


def docstring_summary(group: str, name: str) -> str:
    """First line of the docstring of a yaml's class, read from the source without importing it."""
    config = read_named_config(group, name)
    for kind in ("suite", "compose"):
        if kind in config:
            listed = config[kind] if isinstance(config[kind], list) else [config[kind]]
            named = [str(part.get("name") if isinstance(part, Mapping) else part) for part in listed]
            return f"{kind}: " + ", ".join(dict.fromkeys(named))
    if "file" in config:
        source, cls = source_of({**config, "name": name}, group), None
    elif "_target_" in config:
        module, _, cls = present_path(str(config["_target_"])).rpartition(".")
        source = source_of_module(module)
    else:
        return str(config.get("path") or "")
    if source.suffix != ".py" or not source.is_file():
        return f"(cannot be read: {source})"
    try:
        tree = ast.parse(source.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError):
        return f"(cannot be read: {source})"
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and cls in (None, node.name)]
    does = [
        node
        for node in classes
        if cls or RECOGNISING_ATTRIBUTES.get(group) in {getattr(part, "name", None) for part in node.body}
    ]
    documented = [text for node in does or classes if (text := ast.get_docstring(node))]
    own = ", ".join(f"{key}={value}" for key, value in config.items() if key not in ("file", "_target_"))
    shown = f" [{own}]" if own and group in ("task", "corpus") else ""
    return (documented[0].splitlines()[0] if documented else "") + shown


def _import(target: str) -> type:
    module, _, name = target.rpartition(".")
    try:
        with plugin_guard(f"_target_ {target}"):
            found = getattr(importlib.import_module(module), name)
    except (Deferred, ValueError) as error:
        raise ConfigError(f"_target_ {target} cannot be imported ({error}): write package.module.Class") from None
    if not isinstance(found, type):
        raise ConfigError(f"_target_ {target} must be a class: write package.module.Class")
    return found


def source_of(config: Mapping[str, Any], noun: str) -> Path:
    """The place of a yaml's `file:`: beside the yaml, or in our tasks; absolute paths stay.

    Without the yaml's name, beside any yaml of its group.
    """
    file, own = Path(str(config["file"])), yaml_files(noun).get(str(config.get("name")))
    ours = [folder for folder, package, _ in _code_folders("task") if package == ""]
    if not own and config.get("name") == file.stem and noun == "task":  # a name without a yaml is our own file
        beside = []
    else:
        beside = [own[0].parent] if own else [folder / noun for folder in reversed(config_dirs())]
    return next((folder / file for folder in [*beside, *ours] if (folder / file).is_file()), ours[0] / file)


RECOGNISING_ATTRIBUTES = {
    "task": "questions",
    "method": "attention",
    "encoding": "qk",
    "corpus": "documents",
    "backend": "attend",
}
"""Attribute by which the class of a noun is recognised in a user's file, by noun."""


def _class_in(config: Mapping[str, Any], noun: str) -> type:
    """The only class of a noun in a file."""
    if noun not in RECOGNISING_ATTRIBUTES:
        raise ConfigError(f"{noun} cannot be defined by a file: give _target_: package.module.Class")
    file = source_of(config, noun)
    module = _module(file, noun, file.stat().st_mtime_ns if file.is_file() else 0)
    own = [value for value in vars(module).values() if getattr(value, "__module__", None) == module.__name__]
    found = [value for value in own if isinstance(value, type) and hasattr(value, RECOGNISING_ATTRIBUTES[noun])]
    if len(found) != 1:
        raise ConfigError(
            f"{noun} file {config['file']} must define one class with {RECOGNISING_ATTRIBUTES[noun]}(...), got "
            f"{len(found)}"
        )
    return found[0]


@functools.cache
def _module(file: Path, noun: str, changed: int) -> ModuleType:
    """The module of a file as it was last changed (ns): a notebook runs the code that the file holds now."""
    # By path: two files of one name are two modules.
    spec = importlib.util.spec_from_file_location(f"lexbench_{noun}_{abs(hash(file))}_{file.stem}", file)
    if spec is None or spec.loader is None or not file.is_file():
        raise ConfigError(
            f"{noun} file {file.name} is not in any {noun}/ of the registry: give its --config-dir, or an absolute path"
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # needed by dataclasses
    with plugin_guard(f"{noun} file {file.name}"):
        spec.loader.exec_module(module)
    return module


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
