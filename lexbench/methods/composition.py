"""Build methods from configs, one or several combined: `method=yarn+log_n`."""

import functools
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from types import FunctionType
from typing import Any, Protocol

from lexbench.core import objects, registry
from lexbench.core.attention import Attention
from lexbench.core.errors import ConfigError
from lexbench.core.fence import attention_from
from lexbench.core.method_key import BASELINE_METHOD, DEFAULT_ROPE_START, MethodKey
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.core.values import is_whole
from lexbench.methods.scaled import Fixed, OnScaled, attention_of

STARTING_DEFAULTS = {"over": DEFAULT_ROPE_START, "layers": None}
"""Parameters of every method, and their defaults."""


def changing_methods() -> list[str]:
    """Registered methods that change positions or what is seen: not `none`, nor those of parts, which act on caches."""
    core = __name__.rpartition(".")[0]
    found = (name for name in registry.registered_names("method") if name not in BASELINE_METHOD.names)
    return [name for name in found if registry.read_named_config("method", name)["_target_"].startswith(f"{core}.")]


class Method(Protocol):
    """A frozen dataclass whose fields are its parameters.

    A modifier also has `over(attention, model, length) -> Attention`, which changes the attention of the methods before
    it. In a composition it is called instead of `attention`. A method that its paper fits to each text anew has
    `per_text = True`: a deployment pays on short texts what it pays here. A method of lexbench states its `family`, one
    of `report.looks.METHOD_FAMILIES`, which gives it a marker and a panel in figures.
    """

    def attention(self, model: Model, length: int) -> Attention:
        """Return the Attention at `length` tokens; pure; Refused if the model does not allow the method."""


@dataclass(frozen=True)
class Composed:
    """Several methods combined: each sets different slots, or changes the slots of the methods before it."""

    names: tuple[str, ...]
    parts: tuple[Method, ...]

    def attention(self, model: Model, length: int) -> Attention:
        """The slots of all methods; ConfigError if two set the same slot, Refused if a method refuses."""
        whole = Attention()
        for number, (name, part) in enumerate(zip(self.names, self.parts, strict=True)):
            # A modifier sees what stands before it, and gives back the whole.
            if hasattr(part, "over"):
                whole = attention_from(part, model, length, "over", whole)
                continue
            attention = attention_from(part, model, length)
            try:
                whole = whole.merge_with(attention)
            except ValueError as clash:
                before = "+".join(self.names[:number])
                raise ConfigError(
                    f"{before} and {name} do not compose: {clash}; take methods of different slots, "
                    "modifiers (resonance) last"
                ) from None
        return whole


def named_method(name: Any, **parameters: Any) -> Method:
    """A method by name, or several combined: `named_method("yarn", factor=8)`, `named_method("yarn+log_n")`.

    Methods with parameters are combined by `named_method({"compose": [{"name": "yarn", "factor": 8}, "log_n"]})`.
    """
    return read_method({**method_config(name), **parameters})[1]


def method_config(given: Any) -> dict[str, Any]:
    """The config of one method: by its name, by names that are combined, by name and parameters, or by an object.

    `yarn`, `yarn+log_n`, `{name: yarn, factor: 8}`, `{compose: [{name: yarn, factor: 8}, log_n]}`, `MyScaling(2.0)`, a
    function `(model, length) -> Attention`, None for the unmodified model. Raises ConfigError for what is no method,
    and for a list, which stands for several methods.
    """
    is_named = given is None or isinstance(given, str | Mapping | Sequence)
    return method_entries([given if is_named else object_config(given)])[0]


def object_config(given: Any) -> dict[str, Any]:
    """The config of a method that is an object or a function: its class, and its fields as parameters.

    Raises ConfigError for what is no method, and for the name of a method of the registry.
    """
    if isinstance(given, type) and hasattr(given, "attention"):
        raise ConfigError(f"method {given.__name__} is a class: give an object of it, {given.__name__}(...)")
    if hasattr(given, "attention"):
        kind: Any = type(given)
        if not is_dataclass(given) or not kind.__dataclass_params__.frozen:
            raise ConfigError(f"method class {kind.__name__} must be frozen: write @dataclass(frozen=True)")
        parameters = {each.name: getattr(given, each.name) for each in fields(given) if each.init}
    elif isinstance(given, FunctionType):
        kind, parameters = _class_of_function(given), {}
    else:
        raise ConfigError(
            f"a method must be a name, or a name with parameters, or an object with attention(model, length), "
            f"got {given!r}: e.g. {{name: yarn, factor: 8}}"
        )
    if kind.__name__ in registry.registered_names("method"):
        raise ConfigError(f"method {kind.__name__} is a name of the registry: rename your class or function")
    return {"name": kind.__name__, "_target_": kind, **parameters}


@functools.cache
def _class_of_function(function: FunctionType) -> type:
    """The class of a method without parameters whose `attention` is a function of a model and a length."""
    if not function.__name__.isidentifier():
        raise ConfigError("a method that is a lambda has no name for tables: write def NAME(model, length): ...")
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        taken = f"{function.__name__}{inspect.signature(function)}"
        raise ConfigError(f"a method that is a function must take (model, length), got {taken}: correct it") from None

    def attention(self: object, model: Model, length: int) -> Attention:
        found: Attention = function(model, length)
        return found

    about = {"attention": attention, "__module__": function.__module__, "__doc__": function.__doc__}
    return dataclass(frozen=True)(type(function.__name__, (), about))


def read_method(config: Mapping[str, Any]) -> tuple[str, Method, MethodKey]:
    """Name, method and key from a method's config; its `compose` lists names, or names with parameters.

    `over` and `layers` are parameters of every method: what it starts from on a scaled model (`core.scaled`); and `at`:
    the length for which it is set, at all lengths.
    """
    if config.get("at") is not None:
        known, inner, key = read_method({name: value for name, value in config.items() if name != "at"})
        return known, Fixed(inner, config["at"]), replace(key, at=config["at"])
    config, start = _split_starting(config)
    if start:
        known, inner, key = read_method(config)
        return known, OnScaled(inner, **start), replace(key, **start)
    if "compose" not in config:
        name = str(config["name"])
        method: Method = objects.build_object(config, "method")
        return name, method, MethodKey.of_method(name, **objects.changed_parameters(method, name, "method"))
    if extra := sorted(set(config) - {"compose", "name", "_target_"}):
        raise ConfigError(
            f"a composed method has no parameters of its own, got method.{extra[0]}: "
            f"write method.compose=[{{name:yarn,{extra[0]}:...}},log_n]"
        )
    found = [read_method(entry) for entry in method_entries(config["compose"])]
    names, parts, keys = zip(*found, strict=True)
    return "+".join(names), Composed(names, parts), MethodKey(tuple(part for key in keys for part in _parts(key)))


def _parts(key: MethodKey) -> Iterator[tuple[str, tuple[tuple[str, Any], ...]]]:
    """The parts of a composed method's part; the length for which it alone is set is one of its parameters."""
    for name, parameters in key.parts:
        yield name, parameters if key.at is None else (*parameters, ("at", key.at))


def _split_starting(config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The config without `over` and `layers`, and these where they are not the default.

    In a composition the methods that state them must agree, and the others follow.
    """
    entries = method_entries(config["compose"]) if "compose" in config else []
    start: dict[str, Any] = {}
    for key, usual in STARTING_DEFAULTS.items():
        given = [each[key] for each in (config, *entries) if each.get(key) is not None]
        if any(value != given[0] for value in given):
            raise ConfigError(f"method.{key} must be one for all composed methods, got {', '.join(map(str, given))}")
        if given and given[0] != usual:
            start[key] = given[0]
    kept = {key: value for key, value in config.items() if key not in STARTING_DEFAULTS}
    if entries and (start or any(key in entry for entry in entries for key in STARTING_DEFAULTS)):
        kept["compose"] = [
            {key: value for key, value in entry.items() if key not in STARTING_DEFAULTS} for entry in entries
        ]
    return kept, start


def with_factor(config: Mapping[str, Any], factor: float) -> dict[str, Any] | None:
    """A method's config with this factor in place of the one that follows the length; None where none does."""
    if "compose" not in config:
        method = read_method({key: value for key, value in config.items() if key not in STARTING_DEFAULTS})[1]
        return {**config, "factor": factor} if getattr(method, "factor", factor) is None else None
    entries = method_entries(config["compose"])
    fixed = [with_factor(entry, factor) for entry in entries]
    if not any(fixed):
        return None
    return {**config, "compose": [new or old for new, old in zip(fixed, entries, strict=True)]}


def deployed_config(config: Mapping[str, Any], model: Model, inside: int, longest: int) -> dict[str, Any] | None:
    """A method's config as a deployment for the longest length has it; None where nothing changes at `inside` tokens.

    A factor that follows the length becomes that of the longest length; any other method is set as at that length,
    unless it is one that fits each text anew (`per_text`).
    """
    if config.get("at") is not None:
        return None
    if stretched := with_factor(config, longest / model.trained_length):
        return stretched
    method = read_method(config)[1]
    if _per_text(method):
        return None
    try:
        here, there = (attention_of(method, model, length).as_data() for length in (inside, longest))
    except Refused:
        return None
    return None if here == there else {**config, "at": longest}


def deployment_of(config: Mapping[str, Any], model: Model) -> tuple[MethodKey, float] | None:
    """The method whose deployed form a config is, and the longest length of that deployment over the trained one.

    A config that is set for a length deploys the same without it; one with a factor that follows the length while none
    is given deploys the same without the factor. None for any other, and for one that states several factors.
    """
    if config.get("at") is not None:
        free = {key: value for key, value in config.items() if key != "at"}
        return read_method(free)[2], config["at"] / model.trained_length
    entries = method_entries(config["compose"]) if "compose" in config else [dict(config)]
    follows = [_follows_without_factor(entry) for entry in entries]
    factors = {entry["factor"] for entry, each in zip(entries, follows, strict=True) if each}
    if len(factors) != 1:
        return None
    parts = [{**entry, "factor": None} if each else entry for entry, each in zip(entries, follows, strict=True)]
    base = {**config, "compose": parts} if "compose" in config else parts[0]
    return read_method(base)[2], float(factors.pop())


def _follows_without_factor(config: Mapping[str, Any]) -> bool:
    """Whether a method with this factor follows the length if none is given: then no factor is its default."""
    if config.get("factor") is None:
        return False
    kept = {key: value for key, value in config.items() if key not in (*STARTING_DEFAULTS, "at")}
    try:
        _, method, key = read_method({**kept, "factor": None})
    except ValueError:  # it cannot do without
        return False
    return getattr(method, "factor", 0) is None and "factor" not in dict(key.parts[0][1])


def other_attention(against: str, own: Attention, model: Model, length: int) -> Attention:
    """Attention of the other side of a `MeasureDivergence`: of the named method, or `own` with an uncompressed cache.

    Refused where the method does not allow the model.
    """
    return attention_of(named_method(against), model, length) if against else own.without_cache()


PROBED_LENGTH_MULTIPLES = (0.5, 1, 2, 8, 64)
"""Multiples of the trained length at which settings of every method are looked at."""


def drop_idle_settings(config: Mapping[str, Any], model: Model) -> dict[str, Any]:
    """A method's config without those of `at`, `over` and `layers` that change nothing on this model.

    `at` goes where the method does not follow the length; `over` and `layers`, which are in identities of stored cells,
    only where the method leaves the model as it is: `-m method=none,yarn method.layers=all` measures the baseline. All
    stay where the method refuses the model.
    """
    kept, at = dict(config), config.get("at")
    given = [key for key in ("at", *STARTING_DEFAULTS) if config.get(key) is not None]
    if not given or not (at is None or is_whole(at, 1)):
        return kept
    lengths = {max(2, round(multiple * model.trained_length)) for multiple in PROBED_LENGTH_MULTIPLES}
    lengths |= set() if at is None else {int(at)}
    for key in given:
        free = {name: value for name, value in kept.items() if name != key}
        try:
            with_it, without = (_attentions(each, model, sorted(lengths)) for each in (kept, free))
        except Refused:
            return kept
        if with_it == without and (key == "at" or all(each == Attention().as_data() for each in without)):
            kept = free
    return kept


def _attentions(config: Mapping[str, Any], model: Model, lengths: Sequence[int]) -> list[Any]:
    """The Attention of a method at each length, as data; Refused if the model does not allow the method."""
    method = read_method(config)[1]
    return [attention_of(method, model, length).as_data() for length in lengths]


def _per_text(method: Any) -> bool:
    inner = [*getattr(method, "parts", ()), *([method.method] if isinstance(method, OnScaled) else [])]
    return getattr(method, "per_text", False) or any(map(_per_text, inner))


def method_configs(setting: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Configs of the methods of a setting `method`, each with its name: one, or all that `several` lists.

    Each of these has the parameters that stand beside the list; ConfigError where it does not take one.
    """
    if "several" not in setting:
        return [dict(setting)]
    common = {key: value for key, value in setting.items() if key not in ("several", "name", "_target_")}
    entries = method_entries(setting["several"], "method", "[none,{name:yarn,factor:8}]")
    for entry in entries if common else ():
        if "compose" in entry:  # it says itself where parameters go
            continue
        takes = {*objects.class_parameters(objects.class_of(entry, "method")), *objects.SHARED_METHOD_KEYS}
        if odd := [key for key in common if key not in takes]:
            raise ConfigError(
                f"method.{odd[0]} is set for each method of a list, {entry['name']} has no such parameter: "
                f"write {{name:NAME,{odd[0]}:...}} in the list"
            )
    given = [each if isinstance(each, Mapping) else {"name": each} for each in setting["several"]]
    return method_entries([{**common, **each} for each in given])


def method_entries(
    listed: Any, setting: str = "compose", example: str = "[yarn,{name:rerope,window:64}]"
) -> list[dict[str, Any]]:
    """Configs of entries: of each the method's yaml, overridden by the entry's parameters, with the name.

    An entry that combines methods with parameters, `{compose: [...]}`, needs no name. Of another entry than these,
    ConfigError names the `setting`, with an `example`.
    """
    if isinstance(listed, Sequence) and not isinstance(listed, str):
        listed = [_with_name(entry) for entry in listed]
    return registry.expand_entries("method", listed, setting, example)


def _with_name(entry: Any) -> Any:
    """A user's entry as its name or its config; one that combines methods has the names of these.

    ConfigError for a list, and for what is no method.
    """
    if entry is None:
        return BASELINE_METHOD.bare
    if isinstance(entry, Sequence) and not isinstance(entry, str) and entry:
        names = "+".join(str(each["name"] if isinstance(each, Mapping) and "name" in each else each) for each in entry)
        raise ConfigError(
            f"a list stands for several methods, where one is needed, got {list(entry)!r}: combine them by {names}, "
            "or with parameters by {compose: [...]}"
        )
    if isinstance(entry, Mapping) and "compose" in entry and entry.get("name") is None:
        return {**entry, "name": "+".join(each["name"] for each in method_entries(entry["compose"]))}
    return object_config(entry) if hasattr(entry, "attention") or isinstance(entry, FunctionType) else entry
