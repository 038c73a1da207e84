"""Asserts that a loaded model rotates by the angles that were asked for, in its own dtype, without a text.

Known are rotary modules of transformers, called with (x, positions), and tables of cos and sin of other trainers and
engines (`rope_tables`). Read are 65 positions: 0, 1, 2, 4, 8, ... and, up to the last one, odd positions at even
distances, because half precision holds many even ones exactly. The order of dimensions in a pair is not read.
"""

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from lexbench.backends.hf.extended import model_of
from lexbench.backends.hf.layers import ask, cos_sin, frequencies, kinds_of
from lexbench.backends.hf.network import towers
from lexbench.backends.rope_causes import ROUNDING, RopeMismatch, RopeReading, WantedRope, likely_cause
from lexbench.backends.rope_tables import RopeTable, tables_of
from lexbench.core import registry
from lexbench.core.attention import Attention, Floats, Positions
from lexbench.core.method import Method, read_method
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.core.scaled import Fixed, OnScaled, Rope, attention_of, ropes
from lexbench.core.values import is_whole

PLACES = 65
"""Number of positions that are read."""
OWN = "the model's own RoPE"
OTHER_TOWERS = re.compile("vision|visual|image|audio")
"""Names of modules whose positions are not those of a text."""


@dataclass(frozen=True, eq=False)
class RotaryModule:
    """What rotates, and for which layers."""

    place: str
    """Name inside the model, or of the class."""
    module: Any
    kind: str | None
    """Kind of layers; None: not known, or all."""
    table: RopeTable | None = None
    """None: it is called."""
    called_with: str | None = None
    """Kind of layers that it is called with, where it holds angles of several."""
    dtype: torch.dtype | None = None
    """Of the model's weights; None: that of its frequencies."""


def assert_rope(
    given: Any,
    method: str | Sequence[str | Mapping[str, Any]] | Method | None = None,
    *,
    length: int,
    facts: Model | None = None,
    trained_length: int | None = None,
    **parameters: Any,
) -> None:
    """RopeMismatch unless all rotary modules rotate as asked; arguments and errors are those of `lexbench.assert_rope`.

    Args:
        given: a model, a rotary module, or a mapping of kinds of layers to modules.
        method: a name, several, a method, or None for the model's own RoPE.
        length: tokens of the longest text.
        facts: of the model; None: those of its config.
        trained_length: of the model before any scaling.
        parameters: of the method.
    """
    if not is_whole(length, 1):
        raise ValueError(f"length must be a whole number of at least 1 token, got {length!r}: the longest text")
    model = _facts(given, facts, trained_length)
    wanted = _wanted(model, method, length, parameters)
    places = places_up_to(length)
    modules = list(_modules(given, model))
    if not modules:
        raise Refused(
            f"{type(given).__name__} holds no rotary module that is known here: give the module itself, with "
            "inv_freq and forward(x, positions), or with a table named cos_sin_cache, cache, freqs_cis, or cos and sin"
        )
    met: set[str | None] = set()
    wrong = []
    for module in modules:
        candidates = [each for each in wanted if each.rope.kind == module.kind] or wanted
        reading = _read(replace(module, dtype=_dtype(given)), candidates, places)
        found = {each.rope.kind for each in candidates if reading.agrees(each.inv_freq, each.scale)}
        met |= found
        if not found:
            wrong.append((module, reading, candidates))
    for module, reading, candidates in wrong:
        # Of several kinds, those that nothing else rotates by.
        raise _mismatch(
            module, reading, [each for each in candidates if each.rope.kind not in met] or candidates, wanted
        )
    if missing := [each for each in wanted if each.rope.kind not in met]:
        cause = "scaling of one kind of layers lost"
        by = f"{missing[0].label}{missing[0].layers}"
        raise RopeMismatch(f"no rotary module of {model.name} rotates by {by}. Likely cause: {cause}", cause)


def places_up_to(length: int) -> Positions:
    """[65 or fewer] positions below a length: 0, the powers of two, odd ones at even distances, and the last."""
    powers = [0, *(2**power for power in range(max(length - 1, 1).bit_length()))]
    spread = np.linspace(0, length - 1, PLACES - len(powers) + 1)[1:].astype(np.int64) | 1
    found = np.unique(np.concatenate([powers, spread, [length - 1]]))
    return np.asarray(found[found < length])


def _dtype(given: Any) -> torch.dtype | None:
    """Dtype of a model's weights, where that is one in which angles may be held."""
    weights = given.parameters() if isinstance(given, nn.Module) else ()
    return next((each.dtype for each in weights if str(each.dtype).removeprefix("torch.") in ROUNDING), None)


# what is wanted


def _facts(given: Any, facts: Model | None, trained_length: int | None) -> Model:
    """The facts as given, or those in the config of the model or its rotary module."""
    if facts is None:
        holder = next(iter(given.values())) if isinstance(given, Mapping | nn.ModuleDict) else given
        config = getattr(holder, "config", None)
        if not hasattr(config, "to_dict"):
            raise ValueError(
                f"assert_rope needs a model's facts, {type(holder).__name__} has no config of transformers: "
                "give facts=lexbench.Model(name=..., trained_length=..., head_dim=..., rope_base=...)"
            )
        facts = model_of(holder, trained_length or _original(config))
    return facts if trained_length is None else _trained_on(facts, trained_length)


def _original(config: Any) -> int | None:
    """The original length that a config's scaling states for all layers."""
    stated = (getattr(config, "rope_parameters", None) or {}).get("original_max_position_embeddings")
    return stated if isinstance(stated, int) else None


def _trained_on(model: Model, tokens: int) -> Model:
    """The model as if trained on texts of so many tokens before any scaling."""

    def stated(rope: Mapping[str, Any]) -> Mapping[str, Any]:
        plain = rope.get("rope_type", "default") == "default"
        return rope if plain else {**rope, "original_max_position_embeddings": tokens}

    scaling = model.rope_scaling
    if scaling is not None:
        scaling = stated(scaling) if "rope_type" in scaling else {kind: stated(rope) for kind, rope in scaling.items()}
    return replace(model, trained_length=tokens, rope_scaling=scaling)


def _wanted(model: Model, given: Any, length: int, parameters: Mapping[str, Any]) -> list[WantedRope]:
    """The RoPE of each kind of layers under the method; Refused for a method that is not all in cos and sin."""
    found = ropes(model)
    if not found:
        raise Refused(f"{model.name} has no rotary positions: give a model with RoPE, or facts with a rope_base")
    if given is None:
        if parameters:
            raise ValueError(f"assert_rope takes {next(iter(parameters))} with a method's name only: name a method")
        return [WantedRope(rope, OWN, *rope.own(length), None, length) for rope in found]
    method, label, over = _method(given, parameters)
    attention = attention_of(over, model, length)
    wanted = []
    for rope in found:
        part = _part(attention, rope, label, model)
        if part.inv_freq is not None:
            wanted.append(WantedRope(rope, label, part.inv_freq, part.scale or 1.0, method, length))
            continue
        inv_freq, scale = rope.own(length)  # other layers than those that the method changes, or a scale alone
        said = label if part.slots() else OWN
        wanted.append(WantedRope(rope, said, inv_freq, part.scale or scale, None, length))
    return wanted


def _method(given: Any, parameters: Mapping[str, Any]) -> tuple[Method, str, Method]:
    """The method itself, its label, and the method over plain RoPE, unless another start is given."""
    start = {"over": "plain", **{name: value for name, value in parameters.items() if name in ("over", "layers")}}
    rest = {name: value for name, value in parameters.items() if name not in start}
    if isinstance(given, str):
        _, method, label = read_method({**registry.read("method", given), **rest, "name": given})
    elif isinstance(given, Sequence):
        _, method, label = read_method({"compose": given, **rest})
    elif parameters:
        raise ValueError(f"assert_rope takes {next(iter(parameters))} with a method's name only: set it in the method")
    else:
        method, label = given, type(given).__name__
    if isinstance(method, OnScaled | Fixed):
        return method.method, label, method
    return method, label, OnScaled(method, **start)


def _part(attention: Attention, rope: Rope, label: str, model: Model) -> Attention:
    """The Attention of the layers of one RoPE; Refused where it has slots that cos and sin do not show."""
    if attention.mixture is not None:
        raise Refused(f"assert_rope reads one set of cos and sin, {label} has several (mixture)")
    parts = [attention.at(layer) for layer in rope.layers or range(model.layers or 1)]
    if any(part.as_data() != parts[0].as_data() for part in parts):
        raise Refused(f"assert_rope reads one RoPE for all layers that share a module, {label} has several (layers)")
    if hidden := [slot for slot in parts[0].slots() if slot not in ("inv_freq", "scale")]:
        remedy = ": give policy=local_static" if "dynamic" in hidden else ": assert a method of frequencies alone"
        raise Refused(f"assert_rope reads cos and sin, which do not show {', '.join(hidden)} of {label}{remedy}")
    return parts[0]


# what runs


def _modules(given: Any, model: Model) -> Iterator[RotaryModule]:
    """The rotary modules of a model, or of each kind of layers."""
    if isinstance(given, Mapping | nn.ModuleDict):
        for kind, module in given.items():
            yield from (replace(each, kind=each.kind or kind) for each in _in(type(module).__name__, module))
        return
    types = model.layer_types or ()
    root = towers(given)[0] if isinstance(given, PreTrainedModel) else given
    for name, module in root.named_modules() if isinstance(root, nn.Module) else [("", root)]:
        if OTHER_TOWERS.search(name):
            continue
        layer = re.search(r"\.(\d+)\.", f".{name}.")
        kind = types[int(layer[1])] if layer and int(layer[1]) < len(types) else None
        for each in _in(f"{name} ({type(module).__name__})" if name else type(module).__name__, module):
            if each.called_with is None or each.called_with in types:  # else of a kind that no layer has
                yield replace(each, kind=each.kind or kind)


def _in(place: str, module: Any) -> Iterator[RotaryModule]:
    """What a module itself rotates by, without the modules inside it."""
    if tables := tables_of(module):
        yield from (RotaryModule(place, module, None, table) for table in tables)
    elif isinstance(module, nn.Module):
        yield from (RotaryModule(place, module, kind, called_with=kind) for kind in kinds_of(module))


def _mismatch(
    module: RotaryModule, reading: RopeReading, candidates: list[WantedRope], every: list[WantedRope]
) -> RopeMismatch:
    """What to raise for a module that rotates by none of the candidates."""
    places = reading.places
    wanted = min(candidates, key=lambda each: reading.share_off(each.inv_freq, each.scale))
    errors, slack = reading.errors(wanted.inv_freq, wanted.scale)
    row, pair = np.unravel_index(np.argmax(np.minimum(errors, 4.0) - slack), errors.shape)
    first, error = places[(errors > slack).any(axis=1)][0], float(errors[row, pair])
    cause = likely_cause(reading, wanted, [each for each in every if each is not wanted])
    by = f"are off by {error:.2g}" if np.isfinite(error) else "are no numbers"
    return RopeMismatch(
        f"{module.place} does not rotate by {wanted.label}{wanted.layers}: cos and sin of pair {pair} at position "
        f"{places[row]:,} {by} (rounding explains {slack[row, pair]:.1g}), the first wrong position is {first:,}. "
        f"Likely cause: {cause or 'none known'}",
        cause,
        int(pair),
        int(places[row]),
        error,
    )


def _read(module: RotaryModule, candidates: list[WantedRope], places: Positions) -> RopeReading:
    """Cos and sin of each pair at the positions."""
    cos, sin = _called(module, places) if module.table is None else _looked_up(module, module.table, places)
    dtype = str(cos.dtype).removeprefix("torch.")
    if dtype not in ROUNDING:
        raise Refused(f"{module.place} holds cos and sin in {dtype}: give a module in one of {', '.join(ROUNDING)}")
    values = [each.double().cpu().numpy() for each in (cos, sin)]
    counts = list(dict.fromkeys(len(each.inv_freq) for each in candidates))
    width = values[0].shape[1]
    if width not in (each for count in counts for each in (count, 2 * count)):
        cause = "another number of rotated dimensions"
        raise RopeMismatch(
            f"{module.place} holds {width} numbers a position, for {width // 2} or {width} pairs; "
            f"{candidates[0].label} has {counts[0]} pairs. Likely cause: {cause}",
            cause,
        )
    if width not in counts:
        values = _once(module, values)
    return RopeReading(places, values[0], values[1], dtype)


def _once(module: RotaryModule, values: list[Floats]) -> list[Floats]:
    """Tables in which each pair stands twice, in two halves or side by side, with each pair once."""
    half = values[0].shape[1] // 2
    for first, second in ((slice(half), slice(half, None)), (slice(0, None, 2), slice(1, None, 2))):
        if all(np.array_equal(each[:, first], each[:, second], equal_nan=True) for each in values):
            return [each[:, first] for each in values]
    raise Refused(f"{module.place} repeats its pairs neither in halves nor side by side: no layout that is known here")


def _looked_up(module: RotaryModule, table: RopeTable, places: Positions) -> tuple[Tensor, Tensor]:
    """[n, width] rows of a table; RopeMismatch if it ends before."""
    if table.cos.is_meta:
        raise Refused(f"{module.place} is on the meta device: load its weights first")
    if len(table.cos) <= places[-1]:
        cause = "table of cos and sin too short"
        raise RopeMismatch(
            f"{module.place} has a table of {len(table.cos):,} positions, asked for {places[-1] + 1:,}. "
            f"Likely cause: {cause}",
            cause,
            position=len(table.cos),
        )
    rows = torch.from_numpy(places).to(table.cos.device)
    return table.cos[rows], table.sin[rows]


@torch.no_grad()
def _called(module: RotaryModule, places: Positions) -> tuple[Tensor, Tensor]:
    """[n, width] cos and sin that a module of transformers' kind returns for the dtype of the model."""
    kind = module.called_with
    held = frequencies(module.module, kind)
    if held.is_meta:
        raise Refused(f"{module.place} is on the meta device: load its weights first")
    rotary = copy.deepcopy(module.module)  # those of dynamic and longrope change when they are called
    x = torch.zeros(1, dtype=module.dtype or held.dtype, device=held.device)
    try:
        # As in a fresh process: from the shortest text on.
        for at in (places[:1], places):
            made = cos_sin(ask(rotary, x, torch.from_numpy(at)[None].to(held.device), kind))
    except (TypeError, ValueError, RuntimeError, IndexError, AttributeError) as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())[:120]
        raise Refused(f"{module.place} cannot be called with (x, positions): {said}") from None
    if made is None:
        raise Refused(f"{module.place} does not return cos and sin")
    return made[0][0], made[1][0]
