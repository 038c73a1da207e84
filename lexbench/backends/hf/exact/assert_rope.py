"""Asserts that a loaded model rotates by the angles that were asked for, in its own dtype, without a text.

Which dimensions of a head make a pair is not read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from lexbench.backends.hf.exact.extended import model_of
from lexbench.backends.hf.exact.rope_modules import RotaryModule, read_module, rotary_modules
from lexbench.backends.rope_causes import RopeMismatch, WantedRope, likely_cause
from lexbench.backends.rope_reading import RopeReading, places_up_to
from lexbench.checkpoints import config_facts
from lexbench.core.attention import Attention
from lexbench.core.errors import ConfigError
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.core.values import is_whole
from lexbench.methods.composition import Method, method_config, read_method
from lexbench.methods.scaled import Fixed, LayerRope, OnScaled, attention_of, ropes_of_model

OWN_ROPE_LABEL = "the model's own RoPE"


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
        raise ConfigError(f"length must be a whole number of at least 1 token, got {length!r}: the longest text")
    model = _facts(given, facts, trained_length)
    wanted = _wanted_ropes(model, method, length, parameters)
    places = places_up_to(length)
    modules = list(rotary_modules(given, model))
    if not modules:
        raise Refused(
            f"{type(given).__name__} holds no rotary module that is known here: give the module itself, with "
            "inv_freq and forward(x, positions), or with a table named cos_sin_cache, cache, freqs_cis, or cos and sin"
        )
    met: set[str | None] = set()
    wrong = []
    for module in modules:
        candidates = [each for each in wanted if each.rope.kind == module.kind] or wanted
        reading = read_module(module, candidates, places)
        found = {each.rope.kind for each in candidates if reading.agrees(each.inv_freq, each.scale)}
        met |= found
        if not found:
            wrong.append((module, reading, candidates))
    if wrong:
        module, reading, candidates = wrong[0]
        unmet = [each for each in candidates if each.rope.kind not in met]  # nothing else rotates by these
        raise _mismatch_error(module, reading, unmet or candidates, wanted)
    if missing := [each for each in wanted if each.rope.kind not in met]:
        cause = "scaling of one kind of layers lost"
        by = f"{missing[0].label}{missing[0].layers}"
        raise RopeMismatch(f"no rotary module of {model.name} rotates by {by}. Likely cause: {cause}", cause)


# what is wanted


def _facts(given: Any, facts: Model | None, trained_length: int | None) -> Model:
    """The facts as given, or those in the config of the model or its rotary module."""
    if facts is None:
        holder = next(iter(given.values())) if isinstance(given, Mapping | nn.ModuleDict) else given
        config: Any = getattr(holder, "config", None)
        if not hasattr(config, "to_dict"):
            raise ConfigError(
                f"assert_rope needs a model's facts, {type(holder).__name__} has no config of transformers: "
                "give facts=lexbench.Model(name=..., trained_length=..., head_dim=..., rope_base=...)"
            )
        if trained_length is None and "trained_length" not in config_facts.facts_of_config(config.to_dict()):
            facts = model_of(holder, _original_length(config))
        else:
            facts = model_of(holder, trained_length)
    return facts if trained_length is None else _with_trained_length(facts, trained_length)


def _original_length(config: Any) -> int | None:
    """The original length that a config's scaling states for all layers."""
    stated = (getattr(config, "rope_parameters", None) or {}).get("original_max_position_embeddings")
    return stated if isinstance(stated, int) else None


def _with_trained_length(model: Model, tokens: int) -> Model:
    """The model as if trained on texts of so many tokens before any scaling."""

    def stated(rope: Mapping[str, Any]) -> Mapping[str, Any]:
        plain = rope.get("rope_type", "default") == "default"
        return rope if plain else {**rope, "original_max_position_embeddings": tokens}

    scaling = model.rope_scaling
    if scaling is not None:
        scaling = stated(scaling) if "rope_type" in scaling else {kind: stated(rope) for kind, rope in scaling.items()}
    return replace(model, trained_length=tokens, rope_scaling=scaling)


def _wanted_ropes(model: Model, given: Any, length: int, parameters: Mapping[str, Any]) -> list[WantedRope]:
    """The RoPE of each kind of layers under the method; Refused for a method that is not all in cos and sin."""
    found = ropes_of_model(model)
    if not found:
        raise Refused(f"{model.name} has no rotary positions: give a model with RoPE, or facts with a rope_base")
    if given is None:
        if parameters:
            raise ConfigError(f"assert_rope takes {next(iter(parameters))} with a method's name only: name a method")
        return [WantedRope(rope, OWN_ROPE_LABEL, *rope.own(length), None, length) for rope in found]
    method, label, over = _method(given, parameters)
    attention = attention_of(over, model, length)
    wanted = []
    for rope in found:
        part = _attention_of_rope(attention, rope, label, model)
        if part.inv_freq is not None:
            wanted.append(WantedRope(rope, label, part.inv_freq, part.scale or 1.0, method, length))
            continue
        inv_freq, scale = rope.own(length)  # other layers than those that the method changes, or a scale alone
        said = label if part.slots() else OWN_ROPE_LABEL
        wanted.append(WantedRope(rope, said, inv_freq, part.scale or scale, None, length))
    return wanted


def _method(given: Any, parameters: Mapping[str, Any]) -> tuple[Method, str, Method]:
    """The method itself, its label, and the method over plain RoPE, unless another start is given."""
    start = {"over": "plain", **{name: value for name, value in parameters.items() if name in ("over", "layers")}}
    rest = {name: value for name, value in parameters.items() if name not in start}
    if isinstance(given, str | Mapping):
        _, method, key = read_method({**method_config(given), **rest})
        label = str(key)
    elif isinstance(given, type) or not hasattr(given, "attention"):
        raise ConfigError(f"method must be a name, or an object with attention(...), got {given!r}")
    elif parameters:
        raise ConfigError(f"assert_rope takes {next(iter(parameters))} with a method's name only: set it in the method")
    else:
        method, label = given, type(given).__name__
    if isinstance(method, OnScaled):
        return method.method, label, method
    return method.method if isinstance(method, Fixed) else method, label, OnScaled(method, **start)


def _attention_of_rope(attention: Attention, rope: LayerRope, label: str, model: Model) -> Attention:
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


def _mismatch_error(
    module: RotaryModule, reading: RopeReading, candidates: list[WantedRope], every: list[WantedRope]
) -> RopeMismatch:
    """The error for a module that rotates by none of the candidates."""
    places = reading.places
    wanted = min(candidates, key=lambda each: reading.share_of_wrong_angles(each.inv_freq, each.scale))
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
