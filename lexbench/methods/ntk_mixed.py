"""NTK-aware scaling in ratios that fall from pair to pair."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lexbench.core.attention import Attention
from lexbench.core.errors import ConfigError
from lexbench.core.model import Model
from lexbench.methods.rotary import check_factor, resolve_factor


@dataclass(frozen=True)
class NtkMixed:
    """Between position interpolation and `ntk_fixed` (Su 2023, kexue.fm/archives/9706, NTK-RoPE-mixed).

        theta'_p = theta_p exp(-a (p+1)^B),  a = ln s / (d/2)^B

    The last pair is slowed by exactly s for every B. With B = 1 all pairs are slowed in equal ratios (`ntk_fixed`),
    with B = 0 all by s (`pi`). The article's experiments add clipped log n scaling, which is the method `log_n`.

    Args:
        factor: s, at least 1; None: length / trained_length, the local static policy.
        exponent: B, 0 to 1: the article takes 0.625, its author's code for Llama 0.75.
    """

    family: ClassVar[str] = "base"

    factor: float | None = None
    exponent: float = 0.625

    def __post_init__(self) -> None:
        check_factor("ntk_mixed", self.factor)
        if not 0 <= self.exponent <= 1:
            raise ConfigError(
                f"ntk_mixed's exponent must be from 0 (pi) to 1 (ntk_fixed), got {self.exponent}: "
                "the article takes 0.625"
            )

    def attention(self, model: Model, length: int) -> Attention:
        """The slowed frequencies; Refused unless the model has plain RoPE."""
        factor = resolve_factor(self.factor, model, length)
        count = model.rotated // 2
        # exp(-a (p+1)^B) with a = ln s / (d/2)^B is s to the power of minus this share.
        shares = (np.arange(1, count + 1) / count) ** self.exponent
        return Attention(inv_freq=model.inv_freq() * factor**-shares)
