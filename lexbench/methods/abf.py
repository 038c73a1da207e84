"""Adjusted base frequency."""

import math
from dataclasses import dataclass

from lexbench.attention import Attention
from lexbench.model import Model


@dataclass(frozen=True)
class Abf:
    """Rotate with another base, the same at every length (Xiong et al. 2023, arXiv 2309.16039, section 2.1).

        theta'_p = base^(-2p/d)

    Meant to be followed by fine-tuning; Code Llama (arXiv 2308.12950) is the same with base 1e6. A model that was
    fine-tuned so states its base in its own config, and needs no method.

    Args:
        base: the new b, above 1.
    """

    base: float = 500_000.0

    def __post_init__(self) -> None:
        if not 1 < self.base < math.inf:
            raise ValueError(f"abf's base must be finite and above 1, got {self.base}: the paper takes 500000")

    def attention(self, model: Model, length: int) -> Attention:
        """Frequencies of the new base; Refused unless the model has plain RoPE."""
        return Attention(inv_freq=model.inv_freq(self.base))
