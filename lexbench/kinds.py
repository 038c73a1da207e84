"""Plain values that a file holds, checked against the annotations of the class that they are to fill."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

LARGEST = 1 << 53
"""Above every whole number that we write; below it they are exact in any file and library."""
AT_LEAST_ONE = ("length", "trained_length")


def fitting(cls: type, values: Any, noun: str) -> dict[str, Any]:
    """The values of a dataclass's fields, by name; ValueError for one that lacks, is unknown, or of another kind.

    Whole numbers are at least 0, lengths at least 1.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{noun} must hold names and values, got {_said(values)}")
    hints = _hints(cls)
    needed = {each.name for each in fields(cls) if each.default is MISSING and each.default_factory is MISSING}
    if odd := sorted(values.keys() - hints.keys()) + sorted(needed - values.keys()):
        raise ValueError(f"{noun} differs in {', '.join(map(_said, odd[:5]))}")
    for name, value in values.items():
        low = name in AT_LEAST_ONE and isinstance(value, int) and value < 1
        if low or not fits(value, hints[name]):
            raise ValueError(f"{noun} has a wrong {name}: {_said(value)}")
    return dict(values)


def fits(value: Any, hint: Any) -> bool:
    """Whether a plain value can be what the annotation says; of other annotations only the class is compared."""
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if hint is Any:
        return True
    if kind in (Union, UnionType):
        return any(fits(value, each) for each in inner)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST
    if kind is float:
        return isinstance(value, float) or (
            isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST
        )
    if not isinstance(value, kind):
        return False
    if isinstance(value, str):
        return value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value)
    if isinstance(value, Mapping):
        return not inner or all(fits(key, inner[0]) and fits(each, inner[1]) for key, each in value.items())
    if isinstance(value, Sequence):
        return not inner or all(fits(each, inner[0]) for each in value)
    return True


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _said(value: Any) -> str:
    """A value in one short line."""
    text = ascii(value) if isinstance(value, str | int | float | bool | None) else type(value).__name__
    return text if len(text) <= 60 else f"{text[:60]}..."
