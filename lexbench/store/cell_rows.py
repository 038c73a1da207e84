"""A cell as JSON, in its file, in a baseline and in the first line of an unfinished file; older rows are read as well.

Rows of versions before the key of a method and the purpose of a cell were stored hold the method's label alone. Its key
is read from the label once, here (`parse_label`). What such cells were measured for follows from those that were
measured beside them (`with_purposes`).
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from lexbench.core.errors import ConfigError
from lexbench.core.groups import group_by_key
from lexbench.core.method_key import OWN_POLICY, MethodKey, Purpose, parse_label
from lexbench.core.record import Cell
from lexbench.core.values import checked_field_values
from lexbench.metrics import declare_stored

METHOD_KEY_COLUMN = "method_key"
"""Key of a row that holds the method's key as data; `method` is its label, for people."""
OWN_METRICS_COLUMN = "own_metrics"
"""Key of a row that only a cell with metrics of its task's own has."""
NEWER_ROW_KEYS = {METHOD_KEY_COLUMN, "purpose", OWN_METRICS_COLUMN}
"""Keys that rows of earlier versions lack."""
KNOWN_ROW_KEYS = {field.name for field in fields(Cell)} | NEWER_ROW_KEYS
"""Keys of a row."""


def cell_row(cell: Cell) -> dict[str, Any]:
    """A cell as JSON values."""
    row = {field.name: getattr(cell, field.name) for field in fields(Cell)}
    purpose = None if cell.purpose is None else cell.purpose.as_data()
    if not row[OWN_METRICS_COLUMN]:
        del row[OWN_METRICS_COLUMN]
    return {**row, "method": str(cell.method), METHOD_KEY_COLUMN: cell.method.as_data(), "purpose": purpose}


def read_cell(row: Mapping[str, Any], noun: str) -> Cell:
    """A cell from its row; ConfigError, KeyError or TypeError for a wrong one."""
    if not isinstance(row, Mapping) or not isinstance(row.get("method"), str):
        raise ConfigError(f"{noun} has no method")
    known = {key: value for key, value in row.items() if key not in NEWER_ROW_KEYS}
    identity = row.get("identity")
    method = read_key(
        row["method"], row.get(METHOD_KEY_COLUMN), identity.get("method") if isinstance(identity, Mapping) else None
    )
    purpose = None if row.get("purpose") is None else Purpose.from_data(row["purpose"])
    more = {"method": method, "purpose": purpose, OWN_METRICS_COLUMN: row.get(OWN_METRICS_COLUMN, ())}
    found = Cell(**checked_field_values(Cell, {**known, **more}, noun))
    declare_stored(found.own_metrics)
    return found


def read_key(label: str, data: Any, stated: Any) -> MethodKey:
    """The key of a method; raises KeyError, TypeError or ConfigError for what is none.

    Args:
        label: of the method.
        data: the key as data; None in files of earlier versions, where it is read from the label.
        stated: the method as the identity of a cell holds it.
    """
    if data is not None:
        return MethodKey.from_data(data)
    known = stated if isinstance(stated, Mapping) else {}
    key, name = parse_label(label), known.get("name")
    if key.bare == label != name:
        return _foreign_method_key(label, name)
    if key.at is None or len(key.parts) == 1 or "at" in known or "names" not in known:
        return key
    *before, (last, given) = key.parts  # the last one alone is set for a length
    return replace(key, parts=(*before, (last, (*given, ("at", key.at)))), at=None)


def _foreign_method_key(label: str, name: Any) -> MethodKey:
    """The key of a label that is none of ours: `yarn for 2048` of a tune, `rope(rope_type=yarn)` of an import."""
    if fixed := re.fullmatch(r"(.+) (?:at|for) (\d+)", label):
        return replace(read_key(fixed[1], None, {"name": name}), at=int(fixed[2]))
    if isinstance(name, str) and label.startswith(f"{name}("):
        pairs = [each.partition("=") for each in label[len(name) + 1 :].removesuffix(")").split(", ")]
        return MethodKey.of_method(name, **{key: value for key, _, value in pairs})
    return parse_label(label)


def with_purposes(cells: Iterable[Cell]) -> list[Cell]:
    """Cells that were measured beside one another, each with its purpose, in their order.

    Those of earlier versions do not say it. There a cell deploys another method if its key is that method's with a
    factor or a length beside it, if that method follows the length, and if the setting is that of a length beyond the
    trained one and up to the longest that was measured; it tells the price alone if it was measured inside the trained
    length only.
    """
    known = list(cells)
    if all(cell.purpose is not None for cell in known):
        return known
    by_key = group_by_key(known, lambda cell: cell.method)
    found = {key: _purpose(key, by_key) for key in by_key}
    return [replace(cell, purpose=found[cell.method]) if cell.purpose is None else cell for cell in known]


def _purpose(key: MethodKey, by_key: Mapping[MethodKey, Sequence[Cell]]) -> Purpose:
    """The purpose of the cells of one method."""
    free, stretch = _without_setting(key, by_key[key][0].trained_length)
    base, own = by_key.get(free, ()), by_key[key]
    if stretch is None or not base:
        return OWN_POLICY
    trained = own[0].trained_length
    if not (
        1 < stretch <= max(cell.length for cell in base) / trained and _follows_length(base, by_factor=key.at is None)
    ):
        return OWN_POLICY
    return Purpose(free, stretch, price_only=max(cell.length for cell in own) <= trained)


def _without_setting(key: MethodKey, trained: int) -> tuple[MethodKey, float | None]:
    """A method's key without its only factor or length, and the stretch of it; None without one, or with several."""
    factors = {value for _, given in key.parts for name, value in given if name == "factor"}
    if key.at is not None:
        return (key, None) if factors else (replace(key, at=None), key.at / trained)
    if len(factors) != 1:
        return key, None
    [factor] = factors
    if isinstance(factor, bool) or not isinstance(factor, int | float):
        return key, None
    parts = tuple((name, tuple(each for each in given if each[0] != "factor")) for name, given in key.parts)
    return replace(key, parts=parts), float(factor)


def _follows_length(cells: Sequence[Cell], by_factor: bool) -> bool:
    """Whether a method follows the length, as far as its cells say: by its factor, or by its attention."""
    if by_factor:
        stated = list(_stated_factors(cells[0].identity.get("method")))
        return not stated or None in stated
    attentions = {json.dumps(cell.identity.get("attention"), sort_keys=True) for cell in cells} - {"null"}
    return len(attentions) != 1 or len(cells) == 1


FACTOR_PATTERN = re.compile(r"(?<!\w)factor=([^,)]+)")
"""A factor among the parameters of a composed method, which an identity holds as text."""


def _stated_factors(stated: Any) -> Iterator[Any]:
    """Factors that the identity of a method states, also of its parts; None: it follows the length."""
    if isinstance(stated, Mapping):
        yield from (stated[key] for key in stated if key == "factor")
        for value in stated.values():
            yield from _stated_factors(value)
    elif isinstance(stated, list):
        for value in stated:
            yield from _stated_factors(value)
    elif isinstance(stated, str):
        yield from (None if text == "None" else text for text in FACTOR_PATTERN.findall(stated))
