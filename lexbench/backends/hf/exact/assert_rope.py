"""Asserts that a loaded model rotates by the angles that were asked for, in its own dtype, without a text.

Which dimensions of a head make a pair is not read.
"""

import math
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
from lexbench.core.attention import Attention, Floats
from lexbench.core.errors import ConfigError
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.core.values import is_whole
from lexbench.methods.composition import Method, method_config, read_method
from lexbench.methods.export import fit_base_and_factor
from lexbench.methods.scaled import Fixed, LayerRope, OnScaled, attention_of, ropes_of_model

OWN_ROPE_LABEL = "the model's own RoPE"
BASELINE_FAMILY = "none"
"""Family of the method that changes nothing at any length."""


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
    model = facts_for(given, facts, trained_length)
    wanted, idle = wanted_ropes(model, method, length, parameters)
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
            if facts is None:
                _refuse_base_of_config(reading, candidates, trained_length)
            wrong.append((module, reading, candidates))
    if idle and not wrong:
        raise Refused(
            f"assert_rope cannot tell {idle} from no method: at {length:,} tokens and a trained length of "
            f"{model.trained_length:,} (an export raises that of a config) it changes nothing: give factor=, a greater "
            "length, or trained_length= as it was before any scaling"
        )
    if wrong:
        module, reading, candidates = wrong[0]
        unmet = [each for each in candidates if each.rope.kind not in met]  # nothing else rotates by these
        raise _mismatch_error(module, reading, unmet or candidates, wanted)
    if missing := [each for each in wanted if each.rope.kind not in met]:
        cause = "scaling of one kind of layers lost"
        by = f"{missing[0].label}{missing[0].layers}"
        raise RopeMismatch(f"no rotary module of {model.name} rotates by {by}. Likely cause: {cause}", cause)


# what is wanted


def facts_for(given: Any, facts: Model | None, trained_length: int | None) -> Model:
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


def wanted_ropes(
    model: Model, given: Any, length: int, parameters: Mapping[str, Any]
) -> tuple[list[WantedRope], str | None]:
    """The RoPE of each kind of layers under the method, and the label of a method that changes none of them.

    Refused for a method that is not all in cos and sin.
    """
    found = ropes_of_model(model)
    if not found:
        raise Refused(f"{model.name} has no rotary positions: give a model with RoPE, or facts with a rope_base")
    if given is None:
        if parameters:
            raise ConfigError(f"assert_rope takes {next(iter(parameters))} with a method's name only: name a method")
        return [WantedRope(rope, OWN_ROPE_LABEL, *rope.own(length), None, length) for rope in found], None
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
    judged = getattr(method, "family", None) != BASELINE_FAMILY
    return wanted, label if judged and all(_changes_nothing(each, over.over) for each in wanted) else None


def _changes_nothing(wanted: WantedRope, over: str) -> bool:
    """Whether the rotation is that from which the method starts, whatever its base is."""
    if wanted.label == OWN_ROPE_LABEL:
        return True
    if wanted.method is None:  # a scale alone
        return False
    if over == "scaled" and wanted.rope.scaled:
        inv_freq, scale = wanted.rope.own(wanted.length)
        return _are_alike(wanted.inv_freq, inv_freq) and math.isclose(wanted.scale, scale)
    if wanted.scale != 1 or not _are_alike(wanted.inv_freq, wanted.plain.inv_freq()):
        return False
    # A method that states the base itself may have named the one that is there.
    base = 2 * wanted.plain.rotary_base()
    turned = wanted.angles(base=base)
    return turned is None or _are_alike(turned[0], wanted.plain.inv_freq(base))


def _are_alike(one: Floats, other: Floats) -> bool:
    return len(one) == len(other) and np.allclose(one, other, rtol=1e-9, atol=0)


def _method(given: Any, parameters: Mapping[str, Any]) -> tuple[Method, str, OnScaled]:
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


def _refuse_base_of_config(reading: RopeReading, candidates: list[WantedRope], trained_length: int | None) -> None:
    """Refused where a method is stated as a base, and the module rotates by the base in its own config.

    That is the base before the scaling, which then is not applied, or the scaled one, as an export writes it there:
    the config does not say which, nor the trained length that it has replaced.
    """
    for each in candidates:
        if each.method is None or each.rope.scaled:
            continue
        fit = fit_base_and_factor(each.inv_freq, each.plain)
        if fit is None or math.isclose(fit[0], each.plain.rotary_base(), rel_tol=1e-6):
            continue
        others = [each.angles(base=2 * each.plain.rotary_base())]
        if trained_length is None:
            others.append(each.angles(original=2 * each.plain.trained_length))
        rests = any(other is None or not _are_alike(other[0], each.inv_freq) for other in others)
        if rests and reading.agrees(*each.rope.own(each.length)):
            base = each.plain.rotary_base()
            raise Refused(
                f"{each.label} is stated as a base: the model rotates by the base of its config, {base:,.10g}, which "
                "does not say whether that is the scaled one or the one before: give facts=lexbench.Model(name=..., "
                "trained_length=..., head_dim=..., rope_base=...) as they were before the scaling"
            )


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
