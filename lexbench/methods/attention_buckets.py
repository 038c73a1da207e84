"""Attention Buckets: several rotary bases at once."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from lexbench.core.attention import Attention
from lexbench.core.errors import ConfigError
from lexbench.core.model import Model

BASE_RATIOS = (1.0, 1.75, 1.8, 1.9, 2.0, 2.5)
"""The paper's bases 10000, 17500, 18000, 19000, 20000, 25000 in units of its models' own base."""


@dataclass(frozen=True)
class AttentionBuckets:
    """Run the model under several bases, so that one sees what another misses (Chen et al. 2023, arXiv 2312.04455).

        logits = sum_b w_b z_b,  w = softmax over b of max_v z_bv,  z_b the logits under base b

    Each base has its own angles b^(-2p/d) and its own cache: six bases cost six passes. The authors' code mixes
    the logits of the last position only; here those of every position are mixed, so that a text can be scored.

    Args:
        bases: at least two, each above 1; None: the model's own times 1, 1.75, 1.8, 1.9, 2, 2.5, which are the
            paper's bases where the model's is 10000.
    """

    family: ClassVar[str] = "logits and heads"

    bases: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if self.bases is None:
            return
        object.__setattr__(self, "bases", tuple(self.bases))
        if len(self.bases) < 2 or not all(1 < base < math.inf for base in self.bases):
            raise ConfigError(
                f"attention_buckets needs at least 2 bases, finite and above 1, got {self.bases}: "
                "leave them out for the paper's ratios, or use method=abf for one"
            )

    def attention(self, model: Model, length: int) -> Attention:
        """Passes, one for each base, the same at every length; Refused unless the model has plain RoPE."""
        # In ratios to the model's base: the paper's numbers would lower a base of 500000 instead of raising it.
        own = model.rotary_base()
        bases = [own * ratio for ratio in BASE_RATIOS] if self.bases is None else self.bases
        return Attention(mixture=tuple(Attention(inv_freq=model.inv_freq(base)) for base in bases))
