"""LongRoPE."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from lexbench.core.attention import Attention, Floats
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.methods.distances import check_count
from lexbench.methods.rotary import (
    check_attention_factor,
    check_factor,
    check_pair_factors,
    check_trained_length,
    ntk_base,
    resolve_factor,
    su_scale,
    transformers_rope_parameters,
    with_trained_length,
)


@dataclass(frozen=True)
class Longrope:
    """Slow each pair by a searched factor of its own (Ding et al. 2024, arXiv 2402.13753).

        theta'_p = theta_p / lambda_p
        cos and sin times m = sqrt(1 + ln s / ln L)

    The first n tokens keep theta_p without m: the paper's equation has no m, the official code puts the model's own
    cos and sin in their place.

    The factors lambda are found by evolution on perplexity, one list beyond the trained length L and another within it.
    They fit one model and one factor s: `lexbench search` finds them, and the configs of the Phi models have published
    ones. Without lists this is one of the seeds of the search: NTK-aware factors s^(2p/(d-2)) beyond L, 1 within.

    In transformers the longest text so far chooses the list, and keys cached earlier keep the short one; here the
    cell's length chooses before the text begins. m depends on the factor, so a given factor changes m within L, too.

    Args:
        long_factors: lambda beyond L, one per pair, above 0; None: the NTK-aware ones.
        short_factors: lambda up to L, one per pair, above 0; None: all 1.
        factor: s, at least 1; None: length / trained_length.
        attention_factor: m, above 0; None: sqrt(1 + ln s / ln L).
        start_tokens: n, at least 0; also searched; 0 in released models.
        trained_length: L in tokens; None: the model's.
    """

    family: ClassVar[str] = "other frequencies"

    long_factors: Sequence[float] | None = None
    short_factors: Sequence[float] | None = None
    factor: float | None = None
    attention_factor: float | None = None
    start_tokens: int = 0
    trained_length: int | None = None

    def __post_init__(self) -> None:
        for name in ("long_factors", "short_factors"):
            object.__setattr__(self, name, check_pair_factors(f"longrope's {name}", getattr(self, name)))
        check_factor("longrope", self.factor)
        check_attention_factor("longrope", self.attention_factor, "sqrt(1 + ln s / ln L)")
        check_trained_length("longrope", self.trained_length)
        check_count("longrope's start_tokens", self.start_tokens, "0 rotates all tokens alike", least=0)

    def attention(self, model: Model, length: int) -> Attention:
        """Slowed frequencies and the scale; Refused unless the model has plain RoPE and as many pairs as factors."""
        model = with_trained_length(model, self.trained_length)
        factor = resolve_factor(self.factor, model, length)
        lists = self._short(model), self._long(model, factor)
        return Attention(
            # By the cell's length, not by the longest text so far: keys of one text never mix both lists.
            inv_freq=model.inv_freq() / lists[length > model.trained_length],
            scale=self._scale(model, factor),
            keep_first=self.start_tokens or None,
        )

    def rope_parameters(self, model: Model, length: int) -> dict[str, Any]:
        """Rope parameters of transformers' config, of type `longrope`; Refused with start_tokens, which it lacks."""
        if self.start_tokens:
            raise Refused("transformers' longrope has no start tokens: give start_tokens=0")
        model = with_trained_length(model, self.trained_length)
        factor = resolve_factor(self.factor, model, length)
        return transformers_rope_parameters(
            model,
            "longrope",
            short_factor=self._short(model).tolist(),
            long_factor=self._long(model, factor).tolist(),
            factor=factor,
            attention_factor=self._scale(model, factor),
            original_max_position_embeddings=model.trained_length,
        )

    def _scale(self, model: Model, factor: float) -> float:
        return su_scale(model, factor) if self.attention_factor is None else float(self.attention_factor)

    def _short(self, model: Model) -> Floats:
        if self.short_factors is None:
            return np.ones(model.rotated // 2)
        return _factors_for_pairs("short_factors", self.short_factors, model)

    def _long(self, model: Model, factor: float) -> Floats:
        if self.long_factors is None:
            plain = replace(model, frequencies=None)  # a factor each also for pairs that stand still
            return plain.inv_freq() / plain.inv_freq(ntk_base(plain, factor))
        return _factors_for_pairs("long_factors", self.long_factors, model)


def _factors_for_pairs(name: str, factors: Sequence[float], model: Model) -> Floats:
    """[rotated / 2] factors as an array; Refused where the model has another number of pairs."""
    if len(factors) != model.rotated // 2:
        raise Refused(
            f"longrope has {len(factors)} {name}, {model.name} has {model.rotated // 2} pairs: "
            "give one for each pair, as searched for this model"
        )
    return np.asarray(factors, dtype=np.float64)
