"""YaRN, as its implementations compute it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, ClassVar

import numpy as np

from lexbench.core.attention import Attention, Floats
from lexbench.core.errors import ConfigError
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.methods.rotary import (
    MAX_SCALING_FACTOR,
    check_attention_factor,
    check_factor,
    check_trained_length,
    pair_with_rotations,
    resolve_factor,
    transformers_rope_parameters,
    with_trained_length,
    yarn_scale,
)


@dataclass(frozen=True)
class Yarn:
    """Interpolate slow pairs, keep fast ones, sharpen attention (Peng et al. 2023, arXiv 2309.00071, definition 3).

        theta'_p = k_p theta_p + (1 - k_p) theta_p / s,  k_p = 1 - clip((p - low) / (high - low), 0, 1)
        low = max(0, floor(c(beta_fast))),  high = min(d - 1, ceil(c(beta_slow)))
        c(n) = d ln(L / (2 pi n)) / (2 ln b), the pair that makes n rotations within the trained length L
        cos and sin times m = 0.1 ln s + 1, so that logits grow by m^2

    The paper's formula is linear in the number of rotations (`yarn_paper`). Its authors' code, transformers and vLLM
    are linear in the pair's index p, as here, so that numbers are comparable. DeepSeek's mscale and mscale_all_dim are
    attention_factor = (0.1 mscale ln s + 1) / (0.1 mscale_all_dim ln s + 1).

    A server that takes requests of all lengths can hold a few factors ready and choose for each request
    (github.com/vllm-project/vllm/pull/53964, with 1, 2 and 4): s is the least of `profiles` that covers prompt and
    answer, s >= length / L, and is fixed for the request.

    Args:
        factor: s, at least 1; None: length / trained_length, the local static policy, or one of the profiles.
        beta_fast: rotations from which a pair does not change.
        beta_slow: rotations up to which a pair is fully interpolated.
        truncate: round low down and high up to whole pairs; gpt-oss does not.
        attention_factor: m, above 0; None: 0.1 ln s + 1.
        trained_length: L in tokens; None: the model's.
        profiles: factors to choose s from, each at least 1, without `factor`; None: any factor.
    """

    family: ClassVar[str] = "interpolation"

    factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    trained_length: int | None = None
    profiles: Sequence[float] | None = field(default=None, metadata={"new": True})

    def __post_init__(self) -> None:
        check_factor("yarn", self.factor)
        self._check_profiles()
        check_trained_length("yarn", self.trained_length)
        if not 0 < self.beta_slow < self.beta_fast:
            raise ConfigError(
                f"yarn needs 0 < beta_slow < beta_fast, got beta_slow {self.beta_slow} and beta_fast "
                f"{self.beta_fast}: the paper takes 1 and 32"
            )
        check_attention_factor("yarn", self.attention_factor, "0.1 ln s + 1")

    def attention(self, model: Model, length: int) -> Attention:
        """Blended frequencies, and the scale of cos and sin.

        Refused unless the model has plain RoPE, and where no profile covers the length.
        """
        model = with_trained_length(model, self.trained_length)
        factor = self._factor(model, length)
        kept = self._kept_shares(model)
        return Attention(inv_freq=model.inv_freq() * (kept + (1 - kept) / factor), scale=self._scale(factor))

    def rope_parameters(self, model: Model, length: int) -> dict[str, Any]:
        """Rope parameters of transformers' config, of type `yarn`; Refused where its ramp runs backwards."""
        model = with_trained_length(model, self.trained_length)
        factor = self._factor(model, length)
        low, high = self._ramp(model)
        if high < low:
            raise Refused(f"transformers' yarn has no ramp from pair {low:g} to pair {high:g} of {model.name}")
        return transformers_rope_parameters(
            model,
            "yarn",
            factor=factor,
            original_max_position_embeddings=model.trained_length,
            beta_fast=self.beta_fast,
            beta_slow=self.beta_slow,
            attention_factor=float(self._scale(factor)),
            truncate=self.truncate,
        )

    def _factor(self, model: Model, length: int) -> float:
        if self.profiles is None:
            return resolve_factor(self.factor, model, length)
        for profile in self.profiles:
            if profile * model.trained_length >= length:
                return profile
        raise Refused(
            f"yarn's profiles reach {self.profiles[-1] * model.trained_length:,.0f} tokens on {model.name}, asked for "
            f"{length:,}: give a profile of at least {length / model.trained_length:g}, or leave profiles out"
        )

    def _check_profiles(self) -> None:
        """ConfigError unless the profiles are left out, or stand alone and are factors; they ascend from then on."""
        if self.profiles is None:
            return
        if self.factor is not None:
            raise ConfigError(
                f"yarn takes factor or profiles, got factor {self.factor} and profiles {self.profiles}: leave one out"
            )
        listed = isinstance(self.profiles, Sequence) and len(self.profiles) > 0
        if not listed or not all(isinstance(each, Real) and 1 <= each <= MAX_SCALING_FACTOR for each in self.profiles):
            raise ConfigError(
                f"yarn's profiles must be a list of factors from 1 to {MAX_SCALING_FACTOR:,.0f}, got {self.profiles}: "
                "e.g. [1,2,4]"
            )
        object.__setattr__(self, "profiles", tuple(sorted(map(float, self.profiles))))

    def _scale(self, factor: float) -> float:
        return yarn_scale(factor) if self.attention_factor is None else self.attention_factor

    def _ramp(self, model: Model) -> tuple[float, float]:
        """Pairs where the ramp begins and ends, fractional without `truncate`."""
        # Fast pairs come first: many rotations are the ramp's lower end.
        low = pair_with_rotations(model, self.beta_fast)
        high = pair_with_rotations(model, self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        # The authors' upper limit is d - 1, a number of dimensions, although low and high count pairs.
        return max(low, 0), min(high, model.rotated - 1)

    def _kept_shares(self, model: Model) -> Floats:
        """[rotated / 2] share of its own frequency that each pair keeps."""
        low, high = self._ramp(model)
        if high <= low:
            high = low + 0.001  # a step, as in the authors' code
        pairs = np.arange(model.rotated // 2, dtype=np.float64)
        return np.asarray(1 - np.clip((pairs - low) / (high - low), 0.0, 1.0))
