"""NTK-aware scaling that changes every pair."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lexbench.core.attention import Attention
from lexbench.core.model import Model
from lexbench.methods.rotary import check_factor, resolve_factor


@dataclass(frozen=True)
class NtkFixed:
    """Slow pair by pair in equal ratios, the last one by s (Su 2023, kexue.fm/archives/9706, NTK-RoPE-fixed).

        theta'_p = theta_p s^(-2(p+1)/d)

    `ntk` keeps the first pair and slows each further one by another s^(2/(d-2)); here the first is slowed, too, and
    each further one by another s^(2/d). vLLM's rope_type `ntk` is the same.

    Args:
        factor: s, at least 1; None: length / trained_length, the local static policy.
    """

    family: ClassVar[str] = "base"

    factor: float | None = None

    def __post_init__(self) -> None:
        check_factor("ntk_fixed", self.factor)

    def attention(self, model: Model, length: int) -> Attention:
        """The slowed frequencies; Refused unless the model has plain RoPE."""
        factor = resolve_factor(self.factor, model, length)
        # The article counts pairs from 1 here: the first one is slowed, too.
        pairs = np.arange(1, model.rotated // 2 + 1, dtype=np.float64)
        return Attention(inv_freq=model.inv_freq() * factor ** (-2 * pairs / model.rotated))
