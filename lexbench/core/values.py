"""Check plain values from a file against the annotations of a dataclass."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import cache, reduce
from numbers import Integral
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from lexbench.core.errors import ConfigError

MAX_EXACT_INTEGER = 1 << 53
"""Bound of whole numbers in our files: below it they are exact in every file format and library."""
Rule = Callable[[Any], bool]
AT_LEAST_ONE = ("length", "trained_length")


def checked_field_values(cls: type, values: Any, noun: str) -> dict[str, Any]:
    """The values of a dataclass's fields by name; ConfigError for a missing or unknown name, or a wrong type.

    Whole numbers must be at least 0, lengths at least 1.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{noun} must hold names and values, got {_one_line(values)}")
    rules, needed = _rules(cls)
    if values.keys() != rules.keys() and (odd := sorted(values.keys() - rules.keys()) + sorted(needed - values.keys())):
        raise ConfigError(f"{noun} differs in {', '.join(map(_one_line, odd[:5]))}")
    for name, value in values.items():
        if not rules[name](value):
            raise ConfigError(f"{noun} has a wrong {name}: {_one_line(value)}")
    return dict(values)


def is_whole(value: Any, least: int = 0) -> bool:
    """Whether a value is a whole number, numpy's too, of at least `least`; true and false are none."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def has_type(value: Any, hint: Any) -> bool:
    """Whether a plain value has the annotated type; of types without a rule here only the class is compared."""
    return _rule(hint)(value)


@cache
def _rule(hint: Any) -> Rule:
    """The test of an annotation, cached because there may be very many values."""
    if get_origin(hint) is Callable:
        return callable
    kind, inner = get_origin(hint) or hint, tuple(map(_rule, get_args(hint)))
    if hint is Any or hint is ...:
        return lambda value: True
    if kind in (Union, UnionType):
        return reduce(_either, inner)
    if kind is int:
        return _whole
    if kind is float:
        # JSON writes 1.0 as 1 in some programs.
        return lambda value: isinstance(value, float) or (_integer(value) and abs(value) < MAX_EXACT_INTEGER)
    if kind is str:
        return _text
    if issubclass(kind, Mapping):
        if get_args(hint)[1:] == (Any,):  # JSON: every cell has some, and only their keys are asked
            return lambda value: isinstance(value, kind) and all(map(inner[0], value))
        return lambda value: (
            isinstance(value, kind)
            and (not inner or all(inner[0](key) and inner[1](each) for key, each in value.items()))
        )
    if kind is tuple and ... not in get_args(hint):
        return lambda value: (
            isinstance(value, tuple) and len(value) == len(inner) and all(map(lambda rule, x: rule(x), inner, value))
        )
    if issubclass(kind, Sequence):
        return lambda value: isinstance(value, kind) and (not inner or all(map(inner[0], value)))
    return lambda value: isinstance(value, kind)


def _either(one: Rule, other: Rule) -> Rule:
    return lambda value: one(value) or other(value)


def _integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _whole(value: Any) -> bool:
    return _integer(value) and 0 <= value < MAX_EXACT_INTEGER


def _text(value: Any) -> bool:
    """Whether a value is a text that can be encoded as UTF-8."""
    return isinstance(value, str) and (value.isascii() or not any("\ud800" <= each <= "\udfff" for each in value))


def _positive(value: Any) -> bool:
    return _whole(value) and bool(value >= 1)


@cache
def _rules(cls: type) -> tuple[dict[str, Rule], set[str]]:
    """The test of each field of a dataclass, and the fields without a default."""
    hints = get_type_hints(cls)
    rules = {name: _positive if name in AT_LEAST_ONE and hint is int else _rule(hint) for name, hint in hints.items()}
    return rules, {each.name for each in fields(cls) if each.default is MISSING and each.default_factory is MISSING}


def _one_line(value: Any) -> str:
    """A value as one short line."""
    text = ascii(value) if isinstance(value, str | int | float | bool | None) else type(value).__name__
    return text if len(text) <= 60 else f"{text[:60]}..."
