"""Tell whether two cells compute one function of a text: one normal form of an Attention, for comparisons.

A method may state slots that change nothing at a length: yarn at factor 1, self_extend at group 1, rerope inside its
window. Its cell records them, and so do its identity and its id; a comparison asks for this form instead. Compared with
a cell of the same form, a method is compared with itself: what differs is rounding, and no test of it belongs into a
family.

A slot is left out where it changes nothing among the positions 0 to length - 1. For frequencies this needs the
model's own, which no identity states: they are those of a cell whose method fits its factor to the length, within the
trained length. Where no such cell is at hand, frequencies stay, and a comparison is tested.
"""

import functools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lexbench.core.attention import ConstantScale, LogScale, PositionMap, StepScale
from lexbench.core.record import Cell
from lexbench.core.values import is_whole

Slots = Mapping[str, Any]
"""An Attention as the identity of a cell holds it (`Attention.as_data`)."""
ModelKey = tuple[str, str]
"""A model's name, and the rest that its identity states of it."""
MAX_LENGTH = 1 << 22
"""Tokens beyond which slots are not looked at position by position, and stay."""
FREQUENCY_ROUNDING = 1e-9
"""Relative difference of frequencies that are the same but for rounding; identities hold 12 digits."""


def attention_forms(cells: Iterable[Cell]) -> dict[str, str]:
    """The normal form of each cell's attention, by cell id; without cells that have none, as imported ones.

    Of two cells that share all else, equal forms mean one function. The cells of a model tell its own frequencies.
    """
    stated = {cell.id: cell for cell in cells if isinstance(cell.identity.get("attention"), Mapping)}
    own: dict[ModelKey, str] = {}
    for cell in stated.values():
        if (found := _own_frequencies(cell)) is not None:
            own.setdefault(_model_key(cell), json.dumps(found))
    return {
        name: _form_text(
            json.dumps(cell.identity["attention"], sort_keys=True),
            cell.length,
            own.get(_model_key(cell), "null"),
            _starts_from_plain(cell.identity.get("method")),
        )
        for name, cell in stated.items()
    }


def cell_functions(cells: Iterable[Cell]) -> dict[str, str]:
    """What each cell computed, by cell id: the form of its attention with all else that its samples depend on.

    The method's name and the number of questions are left out. Cells without a form are absent.
    """
    named = {cell.id: cell for cell in cells}
    apart = ("method", "attention", "n")
    return {
        name: json.dumps(
            [form, {key: each for key, each in named[name].identity.items() if key not in apart}], sort_keys=True
        )
        for name, form in attention_forms(named.values()).items()
    }


def unchanged_up_to(form: str) -> float:
    """Tokens of the longest question that an attention of this form reads as the model itself does; inf: all."""
    slots = json.loads(form)
    unchanged = [up_to for up_to, each in _groups(slots).items() if not each]
    return math.inf if not slots else max(unchanged, default=0)


def _groups(slots: Slots) -> dict[int, Slots]:
    """Attention of groups of questions by the tokens of the longest; empty where all have one."""
    stated = slots.get("groups")
    if not isinstance(stated, Mapping) or not all(name.isdecimal() for name in stated):
        return {}
    return {int(name): each for name, each in stated.items() if isinstance(each, Mapping)}


def _model_key(cell: Cell) -> ModelKey:
    return cell.model, json.dumps(cell.identity.get("model"), sort_keys=True)


def _own_frequencies(cell: Cell) -> list[float] | None:
    """The model's own frequencies, where the cell's method must have kept them.

    It fits its factor to the length, never below 1, and this length is within the trained one. A list among its
    parameters may hold divisors or factors of its own; code of a user (`file`) may mean something else by a factor.
    """
    method, trained = cell.identity.get("method"), cell.trained_length
    if not isinstance(method, Mapping) or "factor" not in method or method["factor"] is not None:
        return None
    if "file" in method or _starts_from_plain(method) or any(isinstance(each, list) for each in method.values()):
        return None
    stated, fitted, within = cell.identity["attention"], cell.length, method.get("trained_length") or trained
    if groups := _groups(stated):
        fitted, stated = min(groups.items(), key=lambda group: group[0])
    fitted = method.get("at") or fitted
    if not (is_whole(fitted, 1) and is_whole(within, 1) and fitted <= within):
        return None
    found = stated.get("inv_freq")
    return found if isinstance(found, list) and "layers" not in stated else None


def _starts_from_plain(method: Any) -> bool:
    """Whether a method takes back the model's own scaling: then a scale of 1 may be a change."""
    return isinstance(method, Mapping) and method.get("over") == "plain"


@functools.lru_cache(maxsize=1 << 12)
def _form_text(attention: str, length: int, own: str, from_plain: bool) -> str:
    """The form as text; kept, as many tasks share the attention of a method at a length.

    A cell may be anybody's: slots that no Attention has stay as they are.
    """
    stated = json.loads(attention)
    try:
        found = normal_form(stated, length, json.loads(own), unscaled=not from_plain)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError):
        found = stated
    return json.dumps(found, sort_keys=True)


def normal_form(slots: Slots, length: int, own: Sequence[float] | None, unscaled: bool = True) -> dict[str, Any]:
    """The slots that change something among positions 0 to length - 1; {}: the model as it is.

    Args:
        slots: as `Attention.as_data` gives them; or of groups of questions each, by the length of the longest.
        length: tokens.
        own: [rotated / 2] the model's own frequencies; None: not known.
        unscaled: whether a scale of 1 is the model's own.
    """
    if groups := _groups(slots):
        forms = {str(up_to): normal_form(each, up_to, own, unscaled) for up_to, each in groups.items()}
        first = next(iter(forms.values()))
        return first if all(each == first for each in forms.values()) else {"groups": forms}
    if "mixture" in slots:
        passes = [normal_form(each, length, own, unscaled) for each in slots["mixture"]]
        # Equal passes have equal logits, whose weighted sum is each of them.
        return passes[0] if all(each == passes[0] for each in passes) else {"mixture": passes}
    if "layers" in slots:
        return _form_of_layers(slots, length, own, unscaled)
    kept = {name: value for name, value in slots.items() if not _changes_nothing(name, value, length, own, unscaled)}
    if kept.get("keep_first", 0) >= length:  # all tokens keep the model's own
        kept = {name: value for name, value in kept.items() if name not in ("inv_freq", "scale")}
    if not kept.keys() & {"inv_freq", "scale", "growing"}:
        kept.pop("keep_first", None)
    return kept


def _form_of_layers(slots: Slots, length: int, own: Sequence[float] | None, unscaled: bool) -> dict[str, Any]:
    """The form of groups of layers, of which some may change nothing."""
    inside = {name: value for name, value in slots.items() if name not in ("layers", "otherwise")}
    here = normal_form(inside, length, own, unscaled)
    others = normal_form(slots.get("otherwise", {}), length, own, unscaled)
    if here == others:
        return here
    return {**here, "layers": sorted(slots["layers"])} | ({"otherwise": others} if others else {})


def _changes_nothing(name: str, value: Any, length: int, own: Sequence[float] | None, unscaled: bool) -> bool:
    """Whether a slot with this value leaves every pair of positions below `length` as without it."""
    if name == "inv_freq":
        return own is not None and _are_close(value, own)
    if name == "scale":
        return bool(unscaled and value == 1)
    if not isinstance(value, Mapping) or "file" in value or length > MAX_LENGTH:
        return False
    if name == "growing":
        exponents = np.arange(value["pairs"]) / value["pairs"]
        plain = own is not None and _are_close(value["base"] ** -exponents, own)
        return bool(plain and length <= value["trained_length"])
    if name == "dynamic":
        return bool(length <= value["trained_length"])
    if name == "head_ratios":
        return all(ratio == 1 for ratio in value["ratios"])
    asked = IDLE_FORMS_OF_SLOT.get(name, {}).get(str(value.get("kind")))
    return asked is not None and asked(value, length)


def _are_close(one: Any, other: Any) -> bool:
    left, right = np.asarray(one, np.float64), np.asarray(other, np.float64)
    return left.shape == right.shape and bool(np.allclose(left, right, rtol=FREQUENCY_ROUNDING, atol=0.0))


def _multiplies_by_one(kind: type) -> Callable[[Slots, int], bool]:
    """Whether a scale of queries is 1 at all positions."""

    def asked(value: Slots, length: int) -> bool:
        scale = kind(**{name: each for name, each in value.items() if name != "kind"})
        return _are_close(scale(np.arange(length)), np.ones(length))

    return asked


def _keeps_far_distances(value: Slots, length: int) -> bool:
    """Whether a remap gives all pairs beyond its window the distance i - j: both its maps only add the same number."""
    window = int(value["window"])
    if window >= length:
        return True
    moved = [
        _shifts(value[side], at)
        for side, at in (("query", np.arange(window, length)), ("key", np.arange(length - window)))
    ]
    return bool(np.ptp(np.concatenate(moved)) < FREQUENCY_ROUNDING)


def _shifts(stated: Slots, at: NDArray[np.int64]) -> NDArray[np.float64]:
    """[positions x bands] what a map adds to positions."""
    lines = (
        PositionMap(float(line["divisor"]), float(line["offset"]), bool(line["floor"]), float(line["cap"]))
        for line in stated.get("lines", [stated])
    )
    return np.concatenate([line(at) - at for line in lines])


def _steps_are_tokens(value: Slots, length: int) -> bool:
    """Whether stairs have single tokens as steps up to the largest distance."""
    reach = 0
    for count, repeat in value["steps"]:
        if repeat != 1:
            return reach >= length - 1  # where a longer step begins, the distance still stays
        reach += count
    return True  # the last entry repeats without end


IDLE_FORMS_OF_SLOT: Mapping[str, Mapping[str, Callable[[Slots, int], bool]]] = {
    "query_scale": {
        getattr(kind, "stored_kind", kind.__name__): _multiplies_by_one(kind)
        for kind in (LogScale, StepScale, ConstantScale)
    },
    "remap": {
        "Remap": _keeps_far_distances,
        # In the second chunk a query stands at min(i, limit).
        "Chunks": lambda value, length: bool(length <= 2 * value["size"] and length - 1 <= value["limit"]),
        "Stairs": _steps_are_tokens,
    },
    "mask": {
        # A key is hidden if it is `size` or more behind the query, and none of the first `sinks`.
        "Window": lambda value, length: bool(value["size"] + value["sinks"] >= length),
        "Middle": lambda value, length: bool(value["size"] + value["sinks"] + value["count"] >= length),
        "Blocks": lambda value, length: bool(2 * value["size"] >= length),
        "Segments": lambda value, length: bool(value["size"] >= length),
    },
}
"""By slot and kind: whether a value changes nothing up to a length."""
