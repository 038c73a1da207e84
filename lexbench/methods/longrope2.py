"""LongRoPE2."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from lexbench.core.attention import Attention, Floats
from lexbench.core.errors import ConfigError
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.methods.distances import check_count
from lexbench.methods.rotary import (
    check_attention_factor,
    check_factor,
    check_pair_factors,
    check_trained_length,
    critical_dimension,
    resolve_factor,
    su_scale,
    transformers_rope_parameters,
    with_trained_length,
)


@dataclass(frozen=True)
class Longrope2:
    """Slow all pairs beyond a critical one by s or more, NTK-aware before it (Shang et al. 2025, arXiv 2502.20082).

        lambda_p in [s, 2s], not falling   p >= c
        lambda_p = lambda_c^(p/c)          p < c:  another base, which slows pair c by lambda_c
        theta'_p = theta_p / lambda_p,  cos and sin times m = sqrt(1 + ln s / ln L)

    From pair c on, training covered too little of a turn. In theory c is the first pair without a full turn within the
    trained length L, ceil(d/2 log_b(L / 2 pi)) counted from 0. The paper's search finds an earlier one (30 instead of
    35 in Llama 3 8B, 25 instead of 31 in Phi 3 mini), together with the factors from there on. By default these are all
    s, the smallest that keep slow pairs in their trained range. Within L the model does not change, as in the paper's
    mixed-window training.

    Args:
        factor: s, at least 1; None: length / trained_length.
        critical_pair: c, at least 1, counted from 0; None: the theoretical one.
        upper_factors: lambda from pair c on, one per pair, each from s to 2s, never falling; searched for one s, so
            `factor` must be given. None: all s.
        attention_factor: m beyond L, above 0; None: sqrt(1 + ln s / ln L), as in LongRoPE.
        trained_length: L in tokens; None: the model's.
    """

    family: ClassVar[str] = "other frequencies"

    factor: float | None = None
    critical_pair: int | None = None
    upper_factors: Sequence[float] | None = None
    attention_factor: float | None = None
    trained_length: int | None = None

    def __post_init__(self) -> None:
        check_factor("longrope2", self.factor)
        check_attention_factor("longrope2", self.attention_factor, "sqrt(1 + ln s / ln L)")
        check_trained_length("longrope2", self.trained_length)
        upper = check_pair_factors("longrope2's upper_factors", self.upper_factors)
        object.__setattr__(self, "upper_factors", upper)
        check_count("longrope2's critical_pair", self.critical_pair, "leave it out for the theoretical one")
        if upper is None:
            return
        if self.factor is None:
            raise ConfigError("longrope2's upper_factors were searched for one factor, got none: give factor as well")
        rising = all(one <= two for one, two in pairwise(upper))
        if not (rising and self.factor <= upper[0] and upper[-1] <= 2 * self.factor):
            raise ConfigError(
                f"longrope2's upper_factors must rise from {self.factor:g} to {2 * self.factor:g} at most, "
                f"got {list(upper)}: leave them out for the factor itself"
            )

    def attention(self, model: Model, length: int) -> Attention:
        """Slowed frequencies and the scale; Refused unless the model has plain RoPE and pairs for all factors."""
        model = with_trained_length(model, self.trained_length)
        factors = self._factors(model, resolve_factor(self.factor, model, length))
        # Within L the model itself: transformers' longrope would choose the short factors, all 1.
        if length <= model.trained_length:
            factors = np.ones_like(factors)
        return Attention(inv_freq=model.inv_freq() / factors, scale=self._scale(model, length))

    def rope_parameters(self, model: Model, length: int) -> dict[str, Any]:
        """Rope parameters of transformers' config, of type `longrope`, with short factors of 1."""
        model = with_trained_length(model, self.trained_length)
        factor = resolve_factor(self.factor, model, length)
        return transformers_rope_parameters(
            model,
            "longrope",
            short_factor=[1.0] * (model.rotated // 2),
            long_factor=self._factors(model, factor).tolist(),
            factor=factor,
            attention_factor=self._scale(model, length),
            original_max_position_embeddings=model.trained_length,
        )

    def _scale(self, model: Model, length: int) -> float:
        if length <= model.trained_length:
            return 1.0
        if self.attention_factor is not None:
            return float(self.attention_factor)
        return su_scale(model, resolve_factor(self.factor, model, length))

    def _factors(self, model: Model, factor: float) -> Floats:
        """[rotated / 2] lambda beyond the trained length."""
        pairs = model.rotated // 2
        critical = self.critical_pair or max(1, critical_dimension(model) // 2)
        if critical > pairs:
            raise Refused(
                f"longrope2's critical_pair must be at most the {pairs} pairs of {model.name}, got {critical}: "
                "lower critical_pair"
            )
        upper = self.upper_factors or (factor,) * (pairs - critical)
        if len(upper) != pairs - critical:
            raise Refused(
                f"longrope2 has {len(upper)} upper_factors, {model.name} has {pairs - critical} pairs from pair "
                f"{critical} on: give one for each"
            )
        first = upper[0] if upper else factor
        # Below pair c: theta_p lambda_c^(-p/c) is another base, continuous at c, where it slows by lambda_c.
        return np.concatenate([first ** (np.arange(critical) / critical), np.asarray(upper, dtype=np.float64)])
