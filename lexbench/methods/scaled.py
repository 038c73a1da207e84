"""Methods on checkpoints that scale their RoPE already, or whose kinds of layers rotate differently.

A method starts from one RoPE theta_p with base b, and from one trained length L. Where a checkpoint has scaled its
RoPE, `over` says which these are; where kinds of layers have a RoPE each, `layers` says which of them a method changes:

    over=scaled   theta_p: the checkpoint's own scaled frequencies; L: the length to which it was extended
                  a new base b' stands for theta_p (b'/b)^(-2p/d); a scale of cos and sin multiplies the own one
    over=plain    theta_p = b^(-2p/d), L = original_max_position_embeddings (where stated, else the trained length)
                  the checkpoint's own scaling of frequencies, and of cos and sin, is taken back
    layers=global layers that see all keys; layers with a window keep their RoPE and all else
    layers=all    all layers, each from its own RoPE

The default is `scaled`: the weights have been trained on these frequencies, and so a method that changes nothing within
the trained length leaves the model as it is. By default layers are `global` where kinds of layers state a RoPE each: a
window never shows a distance beyond those trained. A model with one RoPE for all layers is changed in all of them. A
cache (slot `cache`) has no distances: by default it is one for all layers on every model.

Frequencies that depend on the text's length (dynamic, longrope) are those of the cell's length.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from lexbench.checkpoints.config_facts import other_entries
from lexbench.core.attention import Attention, Floats
from lexbench.core.errors import ConfigError
from lexbench.core.fence import attention_from
from lexbench.core.layer_types import is_windowed
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.core.values import MAX_EXACT_INTEGER, is_whole

ROPE_STARTS = ("scaled", "plain")
CHANGED_LAYERS_CHOICES = ("global", "all")
LENGTH_DEPENDENT_ROPE_TYPES = ("dynamic", "longrope")
"""Kinds of RoPE whose frequencies depend on the length of the text."""


class _Method(Protocol):
    def attention(self, model: Model, length: int) -> Attention: ...


@dataclass(frozen=True)
class LayerRope:
    """The RoPE of some layers of a checkpoint."""

    kind: str | None
    """Kind of the layers; None: all layers share it."""
    layers: tuple[int, ...] | None
    """Numbers of the layers; None: all."""
    parameters: Mapping[str, Any]
    """Rope parameters as in transformers' config, base included; `rope_type` is default where RoPE is plain."""
    plain: Model
    """The model with this RoPE unscaled, at the model's trained length."""

    @property
    def scaled(self) -> bool:
        """Whether its frequencies or its scale of cos and sin are not plain."""
        return bool(self.parameters["rope_type"] != "default")

    @property
    def grows(self) -> bool:
        """Whether its frequencies depend on the length of the text."""
        return self.parameters["rope_type"] in LENGTH_DEPENDENT_ROPE_TYPES

    @property
    def windowed(self) -> bool:
        """Whether its layers see a window of the keys only."""
        return self.kind is not None and is_windowed(self.kind)

    def own(self, length: int) -> tuple[Floats, float]:
        """[rotated / 2] radians per token, and scale of cos and sin, as transformers computes them at a length.

        Refused for a kind of scaling that is not known here.
        """
        kind = self.parameters["rope_type"]
        if kind not in ROPE_TYPE_FORMULAS:
            raise Refused(f"the frequencies of {self.plain.name} are not known: its RoPE is scaled by {kind}")
        try:
            return ROPE_TYPE_FORMULAS[kind](self.plain, self.parameters, length, self.kind is not None)
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            said = f"{type(error).__name__}: {error}"
            raise Refused(f"the {kind} RoPE of {self.plain.name} cannot be understood ({said})") from None

    def as_model(self, over: str, length: int) -> Model:
        """The model as a method sees it: with one RoPE, and one trained length."""
        if not self.scaled:
            return self.plain
        if over == "scaled":
            return replace(self.plain, frequencies=tuple(self.own(length)[0].tolist()))
        original = self.parameters.get("original_max_position_embeddings") or self.plain.trained_length
        still = self.parameters["rope_type"] == "proportional"  # pairs that never rotate are no scaling
        unscaled = replace(self, parameters={**self.parameters, "factor": 1.0}).own(length)[0] if still else None
        frequencies = None if unscaled is None else tuple(unscaled.tolist())
        return replace(self.plain, trained_length=int(original), frequencies=frequencies)


def grows_with_length(model: Model) -> bool:
    """Whether frequencies of some layer depend on the length of the text."""
    scaling = model.rope_scaling or {}
    stated = [scaling, *(each for each in scaling.values() if isinstance(each, Mapping))]
    return any(each.get("rope_type") in LENGTH_DEPENDENT_ROPE_TYPES for each in stated)


def ropes_of_model(model: Model) -> list[LayerRope]:
    """The RoPEs of a model; none if it has no rotary positions. Refused if layers of a kind cannot be told."""
    if model.rope_scaling is None:
        plain = {"rope_type": "default", "rope_theta": model.rope_base}
        return [] if model.rope_base is None else [LayerRope(None, None, plain, model)]
    if "rope_type" in model.rope_scaling:
        parameters = {**model.rope_scaling, "rope_theta": model.rope_base}
        return [LayerRope(None, None, parameters, replace(model, rope_scaling=None))]
    if model.layer_types is None or not set(model.rope_scaling) & set(model.layer_types):
        kinds = ", ".join(model.rope_scaling)
        raise Refused(
            f"{model.name} has a RoPE for each of {kinds}, and its config does not say which layers these are"
        )
    return [
        _of_kind(model, kind, parameters)
        for kind, parameters in model.rope_scaling.items()
        if kind in model.layer_types
    ]


def _of_kind(model: Model, kind: str, parameters: Mapping[str, Any]) -> LayerRope:
    rope_type = parameters.get("rope_type", "default")
    head_dim = model.head_dim if is_windowed(kind) else model.global_head_dim or model.head_dim
    share = 1.0 if rope_type == "proportional" else parameters.get("partial_rotary_factor") or 1.0
    rotary_dim = model.rotary_dim if share == 1.0 else int(head_dim * share)
    kv_heads = model.kv_heads if is_windowed(kind) else model.global_kv_heads or model.kv_heads
    if parameters.get("rope_theta") is None:
        raise Refused(f"the config of {model.name} states no base for the RoPE of its {kind} layers: state rope_theta")
    base = float(parameters["rope_theta"])
    extra = {**(model.rope_extra or {}), **other_entries(parameters)} or None
    plain = replace(
        model,
        rope_scaling=None,
        rope_extra=extra,
        rope_base=base,
        head_dim=head_dim,
        rotary_dim=rotary_dim,
        kv_heads=kv_heads,
    )
    assert model.layer_types is not None
    layers = tuple(layer for layer, each in enumerate(model.layer_types) if each == kind)
    return LayerRope(kind, layers, {**parameters, "rope_type": rope_type}, plain)


# methods


@dataclass(frozen=True)
class OnScaled:
    """A method, and what it starts from on a model that scales its RoPE or has several."""

    method: _Method
    over: str = "scaled"
    layers: str | None = None

    def __post_init__(self) -> None:
        for name, value, choices in (
            ("over", self.over, ROPE_STARTS),
            ("layers", self.layers or CHANGED_LAYERS_CHOICES[0], CHANGED_LAYERS_CHOICES),
        ):
            if value not in choices:
                raise ConfigError(f"method.{name} must be {' or '.join(choices)}, got {value!r}")

    def attention(self, model: Model, length: int) -> Attention:
        """The method's Attention, in the layers that it changes; Refused as by the method."""
        if model.rope_scaling is None and (self.layers or "all") == "all":
            return attention_from(self.method, model, length)
        try:
            return self._on(model, length)
        except Refused as refusal:
            if self.over == "scaled" and self.layers is None:
                with suppress(Refused):  # a method that needs no frequencies needs not know them
                    return attention_from(self.method, model, length)
            raise refusal from None

    def _on(self, model: Model, length: int) -> Attention:
        found, others = ropes_of_model(model), Attention()
        if len(found) <= 1:
            made = self._attention_of_layers(found[0], length) if found else attention_from(self.method, model, length)
            if self.layers in (None, "all"):
                return made
            by_layer = dict.fromkeys(global_layers(model), made)
        else:
            chosen = [rope for rope in found if self.layers == "all" or not rope.windowed]
            if not chosen:
                raise Refused(f"{model.name} has no layers that see all keys: give method.layers=all")
            made_by_kind = [(rope.layers or (), self._attention_of_layers(rope, length)) for rope in chosen]
            by_layer = {layer: made for layers, made in made_by_kind for layer in layers}
            if self.layers != "global":
                others = _change_parts(made_by_kind[0][1], lambda part: Attention(cache=part.cache))
        return join_layers([by_layer.get(layer, others) for layer in range(len(model.layer_types or ()))])

    def _attention_of_layers(self, rope: LayerRope, length: int) -> Attention:
        """The Attention of the layers of one RoPE."""
        made = attention_from(self.method, rope.as_model(self.over, length), length)
        if not rope.scaled or (self.over == "scaled" and not made.slots()):
            return made
        return _change_parts(made, lambda part: self._complete_part(part, rope, length))

    def _complete_part(self, part: Attention, rope: LayerRope, length: int) -> Attention:
        """An Attention with the frequencies and the scale that it starts from, where it would lose or keep them."""
        frequencies, scale = rope.own(length)
        name = rope.plain.name
        if part.dynamic is not None:
            raise Refused(f"dynamic is for plain RoPE, {name} scales its own: give policy=local_static")
        if self.over == "plain":
            if part.keep_first is not None:
                raise Refused(f"keep_first keeps the scaled angles of {name} for its first tokens: give over=scaled")
            unscaled = rope.as_model("plain", length).inv_freq()
            taken_back = 1.0 if part.scale is None and scale != 1 else part.scale
            return replace(part, inv_freq=unscaled if part.inv_freq is None else part.inv_freq, scale=taken_back)
        if part.inv_freq is None and rope.grows:
            part = replace(part, inv_freq=frequencies)
        if scale != 1 and (part.inv_freq is not None or part.scale is not None):
            part = replace(part, scale=scale * (part.scale or 1.0))
        return part


@dataclass(frozen=True)
class Fixed:
    """Use the method's Attention for length `at` at every length, as a deployment for that length does."""

    method: _Method
    at: int

    def __post_init__(self) -> None:
        if not is_whole(self.at, 1):
            raise ConfigError(
                f"method.at must be a whole number of at least 1 token, got {self.at!r}: e.g. method.at=8192"
            )

        if self.at >= MAX_EXACT_INTEGER:
            raise ConfigError(f"method.at must be below 2^53 tokens, got {self.at}: e.g. method.at=8192")

    def attention(self, model: Model, length: int) -> Attention:
        """The method's Attention at `at` tokens; Refused as by the method."""
        return attention_of(self.method, model, self.at)


def attention_of(method: _Method, model: Model, length: int) -> Attention:
    """A method's Attention on any model, by the rule of this module; Refused as by the method."""
    if isinstance(method, Fixed):
        return method.attention(model, length)
    return (method if isinstance(method, OnScaled) else OnScaled(method)).attention(model, length)


def global_layers(model: Model) -> tuple[int, ...]:
    """The layers that see all keys; Refused if the config does not say it."""
    if model.layer_types is None:
        raise Refused(f"the config of {model.name} does not say which layers have a window: give method.layers=all")
    return tuple(layer for layer, kind in enumerate(model.layer_types) if not is_windowed(kind))


def _change_parts(made: Attention, change: Callable[[Attention], Attention]) -> Attention:
    """The Attention with all its parts changed: of groups of layers, and of passes."""
    if made.mixture is not None:
        return Attention(mixture=tuple(_change_parts(part, change) for part in made.mixture))
    if made.layers is None:
        return change(made)
    others = _change_parts(made.otherwise or Attention(), change)
    return replace(change(replace(made, layers=None, otherwise=None)), layers=made.layers, otherwise=others)


def join_layers(by_layer: Sequence[Attention]) -> Attention:
    """Join one Attention per layer into one, with a slot `layers` where they differ."""
    if passes := max(len(made.mixture or ()) for made in by_layer):
        # A layer without passes of its own is the same in each.
        by_pass = zip(*(made.mixture or (made,) * passes for made in by_layer), strict=True)
        return Attention(mixture=tuple(map(join_layers, by_pass)))
    groups: dict[str, tuple[Attention, list[int]]] = {}
    for layer, made in enumerate(by_layer):
        part = made.at(layer)
        groups.setdefault(json.dumps(part.as_data()), (part, []))[1].append(layer)
    *others, (whole, _) = groups.values()
    for part, layers in reversed(others):
        whole = replace(part, layers=tuple(layers), otherwise=whole)
    return whole


# the scalings of transformers (modeling_rope_utils), in float64


def _plain(model: Model, parameters: Mapping[str, Any], length: int, nested: bool) -> tuple[Floats, float]:
    return model.inv_freq(), 1.0


def _linear(model: Model, parameters: Mapping[str, Any], length: int, nested: bool) -> tuple[Floats, float]:
    return model.inv_freq() / parameters["factor"], 1.0


def _dynamic(model: Model, parameters: Mapping[str, Any], length: int, nested: bool) -> tuple[Floats, float]:
    dims, trained, factor = model.rotated, _claimed_max_positions(model), parameters["factor"]
    stretch = factor * max(length, trained) / trained - (factor - 1)
    return model.inv_freq(model.rotary_base() * stretch ** (dims / (dims - 2))), 1.0


def _proportional(model: Model, parameters: Mapping[str, Any], length: int, nested: bool) -> tuple[Floats, float]:
    # The last pairs stand still, but their number counts in the exponent.
    count = int((parameters.get("partial_rotary_factor") or 1.0) * model.head_dim // 2)
    turning = np.arange(model.head_dim // 2) < count
    return np.where(turning, model.inv_freq(), 0.0) / (parameters.get("factor") or 1.0), 1.0


def _llama3(model: Model, parameters: Mapping[str, Any], length: int, nested: bool) -> tuple[Floats, float]:
    plain, low, high = model.inv_freq(), parameters["low_freq_factor"], parameters["high_freq_factor"]
    # Turns of each pair within the original length: many are kept, few are stretched, a ramp between.
    turns = _original(model, parameters) * plain / (2 * math.pi)
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return plain * (kept + (1 - kept) / parameters["factor"]), 1.0


def _yarn(model: Model, parameters: Mapping[str, Any], length: int, nested: bool) -> tuple[Floats, float]:
    original, dims, base = _original(model, parameters), model.rotated, model.rotary_base()
    factor = parameters.get("factor") or _claimed_max_positions(model) / original
    scale = parameters.get("attention_factor")
    if scale is None:
        by, over_all = parameters.get("mscale"), parameters.get("mscale_all_dim")
        scale = (
            deepseek_scale(factor, by) / deepseek_scale(factor, over_all)
            if by and over_all
            else deepseek_scale(factor, 1)
        )
    turns = parameters.get("beta_fast") or 32, parameters.get("beta_slow") or 1
    # YaRN (2309.00071): the pair p that turns beta times within the original length, L b^(-2p/d) / 2 pi = beta.
    low, high = (dims * math.log(original / (each * 2 * math.pi)) / (2 * math.log(base)) for each in turns)
    if nested or parameters.get("truncate", True):  # transformers 5.23 reads `truncate` beside the kinds of layers only
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    if low == high:
        # As transformers does, against a division by zero.
        high += 0.001
    slowed = np.clip((np.arange(dims // 2) - low) / (high - low), 0.0, 1.0)
    return model.inv_freq() * (slowed / factor + 1 - slowed), float(scale)


def deepseek_scale(factor: float, by: float) -> float:
    """DeepSeek's scale of cos and sin: 0.1 m ln s + 1, and 1 for a factor s of at most 1."""
    return 1.0 if factor <= 1 else 0.1 * by * math.log(factor) + 1.0


def _longrope(model: Model, parameters: Mapping[str, Any], length: int, nested: bool) -> tuple[Floats, float]:
    original = _original(model, parameters)
    factor, scale = (
        parameters.get("factor") or _claimed_max_positions(model) / original,
        parameters.get("attention_factor"),
    )
    if scale is None:
        # LongRoPE (2402.13753): sqrt(1 + ln s / ln L).
        scale = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    divisors = np.asarray(parameters["long_factor" if length > original else "short_factor"], dtype=np.float64)
    return model.inv_freq() / divisors, float(scale)


def _claimed_max_positions(model: Model) -> int:
    """The config's max_position_embeddings."""
    return model.max_position_embeddings or model.trained_length


def _original(model: Model, parameters: Mapping[str, Any]) -> float:
    return float(parameters.get("original_max_position_embeddings") or _claimed_max_positions(model))


def _ntk_alpha(model: Model, parameters: Mapping[str, Any], length: int, nested: bool) -> tuple[Floats, float]:
    dims = model.rotated
    return model.inv_freq(model.rotary_base() * parameters["alpha"] ** (dims / (dims - 2))), 1.0


ROPE_TYPE_FORMULAS = {
    "default": _plain,
    "ntk_alpha": _ntk_alpha,
    "linear": _linear,
    "dynamic": _dynamic,
    "proportional": _proportional,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
"""The frequencies and scales of rope types: (plain model, parameters, length, in a kind of layers) -> both."""
