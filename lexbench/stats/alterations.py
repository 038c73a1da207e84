"""Find what a run measures otherwise than its baseline under equal settings: the attention of its methods.

A loss is judged by chance, an attention is not: numbers that differ by more than float32's rounding are another method
under the same name, whatever its scores say.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lexbench.core.groups import group_by_key
from lexbench.core.method_key import MethodKey
from lexbench.stats.cell_outcomes import CellOutcomes

ATTENTION_ROUNDING_SHARE = 1e-6
"""Relative difference of two numbers of an attention that is rounding: kernels hold angles in float32."""


@dataclass(frozen=True)
class Slot:
    """A number or word of an attention that is another one now; None where a side has none."""

    path: tuple[str | int, ...]
    """Place in `Attention.as_data`: ("inv_freq", 12), ("remap", "window")."""
    before: Any
    after: Any


@dataclass(frozen=True)
class Alteration:
    """Another attention of one method at some lengths."""

    model: str
    method: MethodKey
    lengths: tuple[int, ...]
    slots: tuple[Slot, ...]
    """What differs at the first length, the largest relative difference first; empty: a baseline holds hashes alone."""


def attention_alterations(pairs: Iterable[tuple[CellOutcomes, CellOutcomes]]) -> list[Alteration]:
    """Alterations of compared cells, by model and method: the same for all tasks of a length."""
    changed: dict[tuple[str, MethodKey, int], tuple[Slot, ...]] = {}
    for one, other in pairs:
        hashes = (one.cell.identity.get("attention"), other.cell.identity.get("attention"))
        if None in hashes or hashes[0] == hashes[1] or one.refused is not None or other.refused is not None:
            continue
        known = one.attention is not None and other.attention is not None
        slots = changed_slots(one.attention or {}, other.attention or {}) if known else ()
        if slots or not known:
            changed.setdefault((other.cell.model, other.cell.method, other.cell.length), slots)
    groups = group_by_key(sorted(changed, key=lambda key: (key[0], key[1], key[2])), lambda key: key[:2])
    return [
        Alteration(model, method, tuple(length for *_, length in keys), changed[keys[0]])
        for (model, method), keys in groups.items()
    ]


def changed_slots(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Slot, ...]:
    """What differs between two attentions as data by more than rounding, the largest relative difference first."""
    here, there = dict(_leaves(before)), dict(_leaves(after))
    found = [
        Slot(path, here.get(path), there.get(path))
        for path in dict.fromkeys((*here, *there))
        if not _is_rounding(here.get(path), there.get(path))
    ]
    return tuple(sorted(found, key=lambda slot: -_relative_difference(slot.before, slot.after)))


def _leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterable[tuple[tuple[str | int, ...], Any]]:
    """Each number or word with its place."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _leaves(each, (*path, name))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for place, each in enumerate(value):
            yield from _leaves(each, (*path, place))
    else:
        yield path, value


def _is_rounding(before: Any, after: Any) -> bool:
    if _is_number(before) and _is_number(after):
        return math.isclose(before, after, rel_tol=ATTENTION_ROUNDING_SHARE, abs_tol=0.0)
    return bool(before == after)


def _relative_difference(before: Any, after: Any) -> float:
    """Difference over the larger size; infinite where a side is no number."""
    if not (_is_number(before) and _is_number(after)):
        return math.inf
    return float(abs(after - before) / max(abs(before), abs(after)))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
