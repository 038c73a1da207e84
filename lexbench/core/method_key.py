"""The key of a method in every table: its parts with their parameters, as data; and its label, the only text of it.

    MethodKey.named("yarn", factor=8.0)                             yarn(factor=8.0)
    two parts, set for 1,024 tokens at all lengths                  yarn(factor=8.0)+log_n(at=1024)
    a second row of one key, as of a default that has changed       pi #2

A label is made where it is printed (`label_of`), and never read by code: rows are compared, ordered and chosen by keys.
Two keys never have one label: names and texts that could be taken for another part of a label are quoted. So a label
that a user copies from a table names one method (`parse_label`).
"""

import ast
import functools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lexbench.core.errors import ConfigError

DEFAULT_ROPE_START = "scaled"
"""Start of a method on a scaled model, where no other is asked for."""
OF_ALL = ("over", "layers", "at")
"""Parameters of every method, in the order in which a label has them."""


@dataclass(frozen=True, eq=False)
class MethodKey:
    """The data that tell one method from another: frozen, compared and ordered by all of its fields."""

    parts: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]
    """Name of each composed method, with the parameters that the user changed: plain JSON values, lists as tuples."""
    at: int | None = None
    """Length in tokens for which it is set at all lengths; None: the length of each text."""
    over: str = DEFAULT_ROPE_START
    """Start of the method on a model with scaled RoPE (`lexbench.methods.scaled`)."""
    layers: str | None = None
    twin: int = 1
    """Number among methods that share all of the above and yet differ, as in a default that has changed since."""

    def __post_init__(self) -> None:
        assert self.parts, "a method has a part"
        for name, parameters in self.parts:
            for parameter, value in parameters:
                if _has_nan(value):
                    raise ConfigError(f"method.{parameter} of {name} must be a number, got nan: leave it out")

    @classmethod
    def of_method(cls, name: str, **parameters: Any) -> "MethodKey":
        """The key of one method with these parameters."""
        return cls(((name, tuple((key, plain_parameter(value)) for key, value in parameters.items())),))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the composed methods."""
        return tuple(name for name, _ in self.parts)

    @property
    def bare(self) -> str:
        """Names of the composed methods, joined: what a user calls it, whatever its parameters."""
        return "+".join(self.names)

    @functools.cached_property
    def text(self) -> str:
        """All of its data as one text, by which keys are compared and ordered."""
        return _as_text(self)

    def as_data(self) -> dict[str, Any]:
        """The key as JSON, without fields at their default; `from_data` reads it."""
        found: dict[str, Any] = {"parts": [[name, [list(each) for each in given]] for name, given in self.parts]}
        usual = {"at": None, "over": DEFAULT_ROPE_START, "layers": None, "twin": 1}
        return found | {name: value for name in usual if (value := getattr(self, name)) != usual[name]}

    @classmethod
    def from_data(cls, data: Any) -> "MethodKey":
        """The key from JSON; raises KeyError, TypeError or ConfigError for what is none."""
        known = {"parts", "at", "over", "layers", "twin"}
        if not isinstance(data, Mapping) or not data.keys() <= known or not data["parts"]:
            raise ConfigError("a method's key must hold its parts")
        parts = [(name, tuple((key, plain_parameter(value)) for key, value in given)) for name, given in data["parts"]]
        if not all(isinstance(text, str) for name, given in parts for text in (name, *(key for key, _ in given))):
            raise ConfigError("a method's names must be texts")
        return cls(tuple(parts), **{name: value for name, value in data.items() if name != "parts"})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MethodKey) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __lt__(self, other: "MethodKey") -> bool:
        return self.text < other.text

    def __str__(self) -> str:
        return label_of(self)


BASELINE_METHOD = MethodKey.of_method("none")
"""The unmodified model."""


@dataclass(frozen=True)
class Purpose:
    """The reason for which a cell was measured."""

    deploys: MethodKey | None = None
    """Method that follows the length, of which the cell's is the form that a deployment has; None: of none."""
    stretch: float | None = None
    """Longest length of that deployment, as a multiple of the trained length."""
    price_only: bool = False
    """Whether it only tells that method's price inside the trained length."""

    def as_data(self) -> dict[str, Any]:
        """The purpose as JSON; `from_data` reads it."""
        deploys = None if self.deploys is None else self.deploys.as_data()
        return {"deploys": deploys, "stretch": self.stretch, "price_only": self.price_only}

    @classmethod
    def from_data(cls, data: Any) -> "Purpose":
        """The purpose from JSON; raises KeyError, TypeError or ConfigError for what is none."""
        deploys, stretch, price_only = (data[name] for name in ("deploys", "stretch", "price_only"))
        if not isinstance(stretch, int | float | None) or not isinstance(price_only, bool):
            raise ConfigError("a cell's purpose has a wrong stretch or price")
        return cls(None if deploys is None else MethodKey.from_data(deploys), stretch, price_only)


OWN_POLICY = Purpose()
"""Measured for itself, as the method sets itself for each length."""


def label_of(key: MethodKey) -> str:
    """The text of a key for people: `yarn(factor=8.0)`, `yarn+log_n(at=1024)`."""
    return key.text


def sort_by_name(keys: Iterable[MethodKey]) -> list[MethodKey]:
    """Keys in the order of their names and parameters, the baseline first."""
    return sorted(keys, key=lambda key: (replace(key, twin=1) != BASELINE_METHOD, key))


def plain_parameter(value: Any) -> Any:
    """A parameter as plain JSON: what is none becomes its text, lists become tuples."""
    return _freeze(json.loads(json.dumps(value, default=str)))


def _freeze(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _freeze(inner) for key, inner in value.items()}
    return tuple(map(_freeze, value)) if isinstance(value, list) else value


def _has_nan(value: Any) -> bool:
    if isinstance(value, Mapping | tuple | list):
        return any(map(_has_nan, value.values() if isinstance(value, Mapping) else value))
    return isinstance(value, float) and math.isnan(value)


# the label


def _as_text(key: MethodKey) -> str:
    """The label of a key; no two keys have one."""
    *before, (name, given) = key.parts
    start = [f"over={key.over!r}"] if key.over != DEFAULT_ROPE_START else []
    start += [f"layers={key.layers!r}"] if key.layers is not None else []
    at = [f"at={key.at!r}"] if key.at is not None else []
    own = [f"{_parameter(each, OF_ALL)}={_value(value)}" for each, value in given]
    if before:  # of a composition, what all parts start from and `at` stand in brackets of their own
        first = [
            f"{_name(other)}{_join_parameters([f'{_parameter(each)}={_value(v)}' for each, v in of])}"
            for other, of in before
        ]
        whole = "+".join([*first, _name(name)]) + _join_parameters(own) + _join_parameters(start) + _join_parameters(at)
    else:
        stated = [*own, *start, *at]
        whole = _name(name, alone=not stated) + _join_parameters(stated)
    return whole if key.twin == 1 else f"{whole} #{key.twin}"


def _join_parameters(stated: Sequence[str]) -> str:
    return f"({', '.join(stated)})" if stated else ""


PLAIN_NAME = re.compile(r"[^\s()\[\]{}+#='\"\\,]+")
"""Names that a label has as they are."""


def _name(name: str, alone: bool = False) -> str:
    """A name, quoted where it could be taken for more than a name."""
    if PLAIN_NAME.fullmatch(name) and name.isprintable():
        return name
    # `rope(rope_type=yarn)` of another program is no label of ours: alone, it needs no quotes.
    readable = name == " ".join(name.split()) and name.isprintable() and "##[" not in name
    if alone and readable and name and _read(name) is None:
        return name
    return _quote(name)


def _parameter(name: str, taken: Sequence[str] = ()) -> str:
    plain = PLAIN_NAME.fullmatch(name) and name.isprintable() and name not in taken
    return name if plain else _quote(name)


def _value(value: Any) -> str:
    if isinstance(value, str):
        return _quote(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_quote(key)}: {_value(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_value, value))}{',' if len(value) == 1 else ''})"
    return repr(value)


def _quote(text: str) -> str:
    """The `repr` of a text, in which no space follows another and no command of a CI's log stands."""
    spaced = re.sub(r"(?<= ) ", r"\\x20", repr(text))
    return spaced.replace("##[", r"#\x23[")


# back from a label


def parse_label(label: str) -> MethodKey:
    """The key of a label that a user copied from a table, or that a file holds without its key."""
    found = _read(label)
    return found if found is not None and found.text == label else MethodKey(((label, ()),))


QUOTED_STRING_PATTERN = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
LABEL_TOKEN_PATTERN = re.compile(rf"({QUOTED_STRING_PATTERN})|([()+,=\[\]{{}}])|([^()+,=\[\]{{}}'\"]+)", re.DOTALL)


def _read(label: str) -> MethodKey | None:
    """The key that a label states; None where it is no label."""
    if numbered := re.fullmatch(r"(.*) #([2-9]|[1-9]\d+)", label, re.DOTALL):
        bare = _read(numbered[1]) or MethodKey(((numbered[1], ()),))
        return replace(bare, twin=int(numbered[2])) if bare.twin == 1 else None
    try:
        parts = [_read_part(part) for part in _split(label, "+")]
        if any(len(groups) > 1 for _, groups in parts[:-1]):
            return None
        name, groups = parts.pop()
        stated = [each for group in groups for each in group]
        shared: dict[str, Any] = {each: value for each, value in stated if _is_of_all(each)}
        own = tuple((str(each), value) for each, value in stated if not _is_of_all(each))
        before = [(other, tuple((str(each), v) for group in given for each, v in group)) for other, given in parts]
        return MethodKey((*before, (name, own)), **shared)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


class _Plain(str):
    """A parameter's name that stood without quotes."""


def _is_of_all(parameter: str) -> bool:
    return isinstance(parameter, _Plain) and parameter in OF_ALL


def _read_part(text: str) -> tuple[str, list[list[tuple[str, Any]]]]:
    """Name and groups of parameters of one part of a label; ConfigError for what is none."""
    begin = re.match(rf"{QUOTED_STRING_PATTERN}|[^()]*", text, re.DOTALL)
    assert begin is not None
    name = ast.literal_eval(begin[0]) if begin[0][:1] in ("'", '"') else begin[0]
    if begin[0] == name and not PLAIN_NAME.fullmatch(name):
        raise ConfigError("no name")
    groups = []
    rest = text[begin.end() :]
    while rest:
        end = _closing_place(rest)
        groups.append([_read_parameter(each) for each in _split(rest[1:end], ",")])
        rest = rest[end + 1 :]
    return name, groups


def _closing_place(text: str) -> int:
    """Place of the bracket that closes the first one; ConfigError without one."""
    depth = 0
    for piece in LABEL_TOKEN_PATTERN.finditer(text):
        depth += (piece[2] == "(") - (piece[2] == ")")
        if depth == 0:
            if piece[2] != ")":
                break
            return piece.start()
    raise ConfigError("no brackets")


def _read_parameter(text: str) -> tuple[str, Any]:
    name, value = (each.strip() for each in _split(text, "=", 1))
    key = ast.literal_eval(name) if name[:1] in ("'", '"') else _Plain(name)
    tree = ast.parse(value, mode="eval")
    return key, plain_parameter(ast.literal_eval(_Infinite().visit(tree)))


class _Infinite(ast.NodeTransformer):
    """`inf` as a number: Python has no literal of it."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.copy_location(ast.Constant(math.inf), node) if node.id == "inf" else node


def _split(text: str, at: str, most: int = -1) -> list[str]:
    """Split at a sign outside of brackets and quotes; ConfigError where these do not close."""
    found: list[str] = []
    begin, depth, place = 0, 0, 0
    for piece in LABEL_TOKEN_PATTERN.finditer(text):
        if piece.start() != place:
            raise ConfigError("an open quote")
        place = piece.end()
        depth += (piece[2] in ("(", "[", "{")) - (piece[2] in (")", "]", "}"))
        if depth == 0 and piece[2] == at and (most < 0 or len(found) < most):
            found.append(text[begin : piece.start()])
            begin = piece.end()
    if place != len(text) or depth:
        raise ConfigError("open brackets")
    return [*found, text[begin:]]
