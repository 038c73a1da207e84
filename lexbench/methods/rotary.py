"""Shared by methods that change rotary frequencies: checks, bases, blend by rotations, transformers' parameters."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

import numpy as np

from lexbench.checkpoints.config_facts import QUERY_SCALE
from lexbench.core.attention import Attention, Floats
from lexbench.core.errors import ConfigError
from lexbench.core.model import Model
from lexbench.core.record import Refused

MAX_SCALING_FACTOR = 1e6
"""Bound of a factor: with a larger one, all frequencies are 0 in float32 at any length."""


def change_frequencies(
    method: str, attention: Attention, model: Model, change: Callable[[Floats], Floats]
) -> Attention:
    """Apply a modifier's `change` to the frequencies of an Attention, in all its layers and passes.

    Where it has no frequencies, the model's own are changed; Refused unless the model has plain RoPE. ConfigError
    where frequencies change while a text is read (`dynamic`).
    """
    # A modifier acts on each pass of a mixture and on each group of layers.
    if attention.mixture is not None:
        passes = (change_frequencies(method, part, model, change) for part in attention.mixture)
        return Attention(mixture=tuple(passes))
    if attention.dynamic is not None:
        raise ConfigError(
            f"{method} needs frequencies that are fixed before the text begins, got dynamic: "
            "compose it with dynamic_ntk's policy=local_static"
        )
    frequencies = model.inv_freq() if attention.inv_freq is None else attention.inv_freq
    otherwise = attention.otherwise
    if attention.layers is not None:
        otherwise = change_frequencies(method, otherwise or Attention(), model, change)
    return replace(attention, inv_freq=change(frequencies), otherwise=otherwise)


def check_factor(method: str, factor: float | None) -> None:
    """ConfigError unless the factor is left out, or from 1 to a million."""
    if factor is not None and not 1 <= factor < math.inf:
        raise ConfigError(
            f"{method}'s factor must be finite and at least 1, got {factor}: leave it out for length / trained_length"
        )
    if factor is not None and factor > MAX_SCALING_FACTOR:
        raise ConfigError(f"{method}'s factor must be at most {MAX_SCALING_FACTOR:,.0f}, got {factor:g}: e.g. 8")


def check_base(method: str, base: float | None) -> None:
    """ConfigError unless the base is left out or above 1."""
    if base is not None and not 1 < base < math.inf:
        raise ConfigError(
            f"{method}'s base must be finite and above 1, got {base}: leave it out to fit the length, "
            "or take the paper's 500000"
        )


def check_trained_length(method: str, trained_length: int | None) -> None:
    """ConfigError unless the trained length is left out or at least 1."""
    if trained_length is not None and trained_length < 1:
        raise ConfigError(
            f"{method}'s trained_length must be at least 1, got {trained_length}: leave it out to take the model's"
        )


def check_attention_factor(method: str, attention_factor: float | None, default: str) -> None:
    """ConfigError unless the scale of cos and sin is left out or above 0."""
    if attention_factor is not None and not 0 < attention_factor < math.inf:
        raise ConfigError(
            f"{method}'s attention_factor must be finite and above 0, got {attention_factor}: "
            f"leave it out for {default}"
        )


def check_ramp(method: str, alpha: float, beta: float) -> None:
    """ConfigError unless the ramp between alpha and beta rotations rises."""
    if not 0 <= alpha < beta:
        raise ConfigError(
            f"{method} needs 0 <= alpha < beta, got alpha {alpha} and beta {beta}: the paper takes 1 and 32"
        )


def check_pair_factors(what: str, factors: Sequence[float] | None) -> tuple[float, ...] | None:
    """The divisors of frequencies, one per pair, as a tuple; ConfigError unless all are above 0. None: left out."""
    if factors is None:
        return None
    listed = isinstance(factors, Sequence) and len(factors) > 0
    if not listed or not all(isinstance(each, Real) and 0 < each < math.inf for each in factors):
        raise ConfigError(f"{what} must be a list of finite numbers above 0, got {factors}: give one for each pair")
    return tuple(factors)


def with_trained_length(model: Model, trained_length: int | None) -> Model:
    """The model as if it had been trained on texts of `trained_length` tokens; None: as it was."""
    return model if trained_length is None else replace(model, trained_length=trained_length)


def resolve_factor(factor: float | None, model: Model, length: int) -> float:
    """The factor s; None: length / trained_length, never below 1.

    A length counts prompt and answer and is known before the text begins, so that the default factor is the local
    static policy (Su, kexue.fm/archives/9948): it fits each cell, and is constant within it.
    """
    return max(1.0, length / model.trained_length) if factor is None else float(factor)


def ntk_base(model: Model, factor: float) -> float:
    """The base b s^(d / (d - 2)) that slows the last pair by exactly s and keeps the first.

    d counts the rotated dimensions, not the head's. Refused at d = 2, where the first pair is the last.
    """
    base = model.rotary_base()
    dims = model.rotated
    if dims < 4:
        raise Refused(f"an NTK base needs at least 4 rotary dimensions, {model.name} has {dims}: use method=pi")
    # theta_p(b') = theta_p s^(-2p/(d-2)): at the last pair, 2p = d - 2, exactly 1 / s.
    return float(base * factor ** (dims / (dims - 2)))


def base_for_length(model: Model, length: int) -> float:
    """The base b^(ln(T / 2 pi) / ln(L / 2 pi)), T the length but at least L (arXiv 2310.05209).

    The pair with just one turn within the trained length L makes one turn within T. Refused where L < 7: there no pair
    makes a full turn.
    """
    base, trained_length = model.rotary_base(), model.trained_length
    if trained_length <= 2 * math.pi:
        raise Refused(
            f"a base for a length needs a trained length of at least 7, {model.name} has {trained_length}: give a base"
        )
    longest = max(length, trained_length)
    # The pair p with b^(2p/d) = L / 2 pi turns once within L; under base^(2p/d) = T / 2 pi it turns once within T.
    return float(base ** (math.log(longest / (2 * math.pi)) / math.log(trained_length / (2 * math.pi))))


def critical_dimension(model: Model) -> int:
    """Number of dimensions whose pairs make a full turn within the trained length L: 2 ceil(d/2 log_b(L / 2 pi)).

    0 to d, even (arXiv 2310.05209). Half of it is the index, counted from 0, of the first pair without a full
    turn in training. Where frequencies are not b^(-2p/d), the pairs with more than a turn are counted.
    """
    if model.frequencies is not None:
        return 2 * int((np.array(model.frequencies) > 2 * math.pi / model.trained_length).sum())
    # b^(-2p/d) = 2 pi / L at p = d/2 log_b(L / 2 pi): the first whole pair from there on makes no full turn.
    trained = math.log(model.trained_length / (2 * math.pi)) / math.log(model.rotary_base())
    return 2 * min(max(math.ceil(model.rotated / 2 * trained), 0), model.rotated // 2)


def pair_with_rotations(model: Model, rotations: float) -> float:
    """Index of the pair with so many rotations within the trained length; fractional, perhaps outside the head.

    Where frequencies are not b^(-2p/d), between the two pairs around it by their logarithms, and beyond the last ones
    in steps of the base.
    """
    # L b^(-2p/d) / 2 pi = n, solved for p: d ln(L / 2 pi n) / (2 ln b), YaRN's find_correction_dim.
    turns, step = model.trained_length / (2 * math.pi * rotations), 2 * math.log(model.rotary_base())
    if model.frequencies is None:
        return model.rotated * math.log(turns) / step
    rising = -np.log(np.array([each for each in model.frequencies if each > 0] or [1.0]))
    # np.interp needs a rising axis; searched factors may let two neighbours change places.
    rising, wanted, step = np.maximum.accumulate(rising), math.log(turns), step / model.rotated
    if wanted < rising[0]:
        return float((wanted - rising[0]) / step)
    if wanted > rising[-1]:
        return float(len(rising) - 1 + (wanted - rising[-1]) / step)
    return float(np.interp(wanted, rising, np.arange(len(rising))))


def su_scale(model: Model, factor: float) -> float:
    """Scale of cos and sin: sqrt(1 + ln s / ln L) (LongRoPE's code); 1 where nothing is stretched.

    Refused where the trained length L is one token, whose logarithm is 0.
    """
    if factor == 1:
        return 1.0
    if model.trained_length < 2:
        raise Refused(
            f"a scale of cos and sin needs a trained length of at least 2, {model.name} has 1: give attention_factor"
        )
    return math.sqrt(1 + math.log(factor) / math.log(model.trained_length))


def yarn_scale(factor: float) -> float:
    """Scale of cos and sin: 0.1 ln s + 1 (YaRN, arXiv 2309.00071)."""
    return 0.1 * math.log(factor) + 1


def kept_rope_entries(model: Model, kind: str) -> dict[str, Any]:
    """The rope parameters that a model keeps beside those of any rope type."""
    kept = dict(model.rope_extra or {})
    if QUERY_SCALE not in kept and kind not in ("yarn", "longrope", "llama3"):  # which alone read it
        kept.pop("original_max_position_embeddings", None)
    return kept


def transformers_rope_parameters(model: Model, kind: str, **parameters: Any) -> dict[str, Any]:
    """transformers' `rope_parameters` of one rope type: the base, the rotated share of the head, and parameters."""
    found = {"rope_type": kind, "rope_theta": model.rotary_base(), **kept_rope_entries(model, kind), **parameters}
    if model.frequencies is not None:
        raise Refused(f"{model.name} has frequencies of its own, no rope type of transformers starts from them")
    if model.rotated == model.head_dim or model.decoupled:
        return found
    share = model.rotated / model.head_dim
    if int(model.head_dim * share) < model.rotated:  # transformers rounds down: 44 * (30 / 44) is 29.99...
        share = math.nextafter(share, 1.0)
    return {**found, "partial_rotary_factor": share}


class Rebased:
    """A method that rotates as plain RoPE of another base does; it states `_base`."""

    def _base(self, model: Model, length: int) -> float:
        """The base at a length."""
        raise NotImplementedError

    def attention(self, model: Model, length: int) -> Attention:
        """Frequencies of the base; Refused unless the model has plain RoPE, or where the base is not defined."""
        return Attention(inv_freq=model.inv_freq(self._base(model, length)))

    def rope_parameters(self, model: Model, length: int) -> dict[str, Any]:
        """Rope parameters of transformers' config, of type `default`, with the base of the method."""
        return transformers_rope_parameters(model, "default", rope_theta=self._base(model, length))


def blend_by_rotations(model: Model, factor: float, slow: float, fast: float) -> Floats:
    """[rotated / 2] radians per token, slowed the less, the more rotations a pair made in training.

    A pair made r = L theta / 2 pi rotations within the trained length L. It keeps its frequency where r >= fast, is
    slowed by the factor where r <= slow, and between them the two frequencies mix linearly in r.
    """
    plain = model.inv_freq()
    rotations = model.trained_length * plain / (2 * math.pi)
    # gamma(r) of YaRN's equation for NTK-by-parts.
    kept = np.clip((rotations - slow) / (fast - slow), 0.0, 1.0)
    return np.asarray(plain * (kept + (1 - kept) / factor))
