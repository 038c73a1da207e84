"""Objects that yamls of the registry describe: their class, its parameters and checks, and their label in tables.

A yaml names a class by `_target_: package.module.Class`, or by the file that defines it, `file: passkey.py`. Every
other key is a parameter of the class.
"""

import ast
import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from lexbench.core.errors import ConfigError
from lexbench.core.guard import plugin_guard
from lexbench.core.plug_in import source_of_module
from lexbench.core.record import Deferred
from lexbench.core.registry import (
    read_named_config,
    recognising_attribute,
    registered_names,
    source_of,
    suggest_choices,
)

SHARED_METHOD_KEYS = ("at", "compose", "layers", "over", "several")
"""Keys that mean the same in the yaml of every method (`lexbench.methods.composition`), and so reach no class."""
PLAIN_TYPE_WORDS: Mapping[type, tuple[str, str]] = {
    bool: ("true or false", "true"),
    int: ("a whole number", "4"),
    float: ("a number", "4"),
    str: ("a text", "text"),
    type(None): ("null", "null"),
}
"""Plain types in words, each with a value as it would be typed."""


def build_object(config: Mapping[str, Any], noun: str, *, bare: bool = False, **inserted: Any) -> Any:
    """Build the object that a yaml describes. `inserted` sets fields that users do not write, if the class has them.

    `bare`: its settings are typed without the noun, as a command's: worth=4, not tune.worth=4.
    Raises ConfigError for an unknown or missing parameter, and for a ConfigError of the class.
    """
    cls = checked_class(config, noun, bare)
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


def checked_class(config: Mapping[str, Any], noun: str, bare: bool = False) -> type:
    """The class that a yaml describes; ConfigError for an unknown parameter or a plain value of a wrong type."""
    cls = class_of(config, noun)
    attribute = recognising_attribute(noun)
    if attribute is not None and not hasattr(cls, attribute):
        raise ConfigError(f"{noun} class {cls.__name__} must have {attribute}: name another by _target_ or file")
    stated, config, known = config, _stated_parameters(config), class_parameters(cls)
    own = () if attribute is None else ("name", "file", *(SHARED_METHOD_KEYS if noun == "method" else ()))
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
        _check(key if bare else f"{noun}.{key}", config[key], hints.get(key, Any))
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
    named = f"{noun} {config['name']}" if "name" in config else noun
    return target if isinstance(target, type) else _import(str(target), named)


def _class_in(config: Mapping[str, Any], noun: str) -> type:
    """The only class of a noun in a file."""
    attribute = recognising_attribute(noun)
    if attribute is None:
        raise ConfigError(f"{noun} cannot be defined by a file: give _target_: package.module.Class")
    file = source_of(config, noun)
    module = _module(file, noun, file.stat().st_mtime_ns if file.is_file() else 0)
    own = [value for value in vars(module).values() if getattr(value, "__module__", None) == module.__name__]
    found = [value for value in own if isinstance(value, type) and hasattr(value, attribute)]
    if len(found) != 1:
        raise ConfigError(f"{noun} file {config['file']} must define one class with {attribute}(...), got {len(found)}")
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


def _import(target: str, named: str) -> type:
    """The class of a path; `named` is what asks for it, in messages."""
    module, _, name = target.rpartition(".")
    if not module:
        raise ConfigError(f"_target_ {target} cannot be imported (it names no module): write package.module.Class")
    try:
        with plugin_guard(named):
            found = getattr(importlib.import_module(module), name)
    except Deferred as error:
        raise ConfigError(f"_target_ {target} cannot be imported ({error}): write package.module.Class") from None
    if not isinstance(found, type):
        raise ConfigError(f"_target_ {target} must be a class: write package.module.Class")
    return found


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
    source, cls = _source_and_class(group, name, config)
    if source is None:
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
        if cls or recognising_attribute(group) in {getattr(part, "name", None) for part in node.body}
    ]
    documented = [text for node in does or classes if (text := ast.get_docstring(node))]
    own = ", ".join(f"{key}={value}" for key, value in config.items() if key not in ("file", "_target_"))
    shown = f" [{own}]" if own and group in ("task", "corpus") else ""
    return (documented[0].splitlines()[0] if documented else "") + shown


def source_file(group: str, name: str) -> Path | None:
    """The file of the class that a yaml names; None for one that names others, or no class."""
    return _source_and_class(group, name, read_named_config(group, name))[0]


def _source_and_class(group: str, name: str, config: Mapping[str, Any]) -> tuple[Path | None, str | None]:
    """The file of a yaml's class, and the name of the class where the yaml states it."""
    if "file" in config:
        return source_of({**config, "name": name}, group), None
    if "_target_" in config:
        module, _, cls = str(config["_target_"]).rpartition(".")
        return source_of_module(module), cls
    return None, None
