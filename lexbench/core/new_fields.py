"""Leave out fields that a class got later: what was measured without them keeps its identity and its seeds.

A field that is added to a method, a task, a corpus or a slot after cells of it were measured says so in its metadata:

    absent: bool = field(default=False, metadata={"new": True})

While it has its default, it enters neither the identity of a cell nor the seed of a question: both are those of a class
without this field.
"""

from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any


def stated_fields(instance: Any) -> Iterator["Field[Any]"]:
    """Fields of a dataclass that enter an identity or a seed: all but new ones at their default."""
    return (each for each in fields(instance) if not (each.metadata.get("new") and _is_default(instance, each)))


def _is_default(instance: Any, field: "Field[Any]") -> bool:
    default = field.default if field.default_factory is MISSING else field.default_factory()
    value = getattr(instance, field.name)
    return type(value) is type(default) and bool(value == default)


def stated_text(value: Any) -> str:
    """Text of a value that is no plain JSON, as an identity holds it: its `str`, without new fields at their default.

    A composed method, and one that is set for a length, hold methods inside.
    """
    usual = _has_usual_repr(value) and not any("__str__" in vars(kind) for kind in type(value).__mro__[:-1])
    return _repr(value) if usual else str(value)


def _repr(value: Any) -> str:
    """The `repr` of a value; of dataclasses, also in sequences, without new fields at their default."""
    if _has_usual_repr(value):
        shown = [f"{each.name}={_repr(getattr(value, each.name))}" for each in stated_fields(value) if each.repr]
        return f"{type(value).__qualname__}({', '.join(shown)})"
    if type(value) is tuple:
        return f"({', '.join(map(_repr, value))}{',' if len(value) == 1 else ''})"
    return f"[{', '.join(map(_repr, value))}]" if type(value) is list else repr(value)


def _has_usual_repr(value: Any) -> bool:
    """Whether a value is a dataclass whose `repr` lists its fields."""
    return is_dataclass(value) and not isinstance(value, type) and hasattr(type(value).__repr__, "__wrapped__")
