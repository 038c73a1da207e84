"""p-RoPE: the slowest pairs do not rotate."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from lexbench.core.attention import Attention
from lexbench.core.errors import ConfigError
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.methods.rotary import transformers_rope_parameters


@dataclass(frozen=True)
class PRope:
    """Keep the fastest pairs, stop the others (Barbero et al. 2024, arXiv 2410.06205).

        theta'_p = theta_p  where p < floor(fraction d/2), else 0

    Pairs that do not rotate carry meaning independent of distance. Models are trained this way (0.75 is the paper's
    best; Gemma 4 has 0.25 in its global layers); another model loses what its slow pairs have learnt.

    Args:
        fraction: share of pairs that rotate, 0 (none: NoPE) to 1 (all: the model itself).
    """

    family: ClassVar[str] = "other frequencies"

    fraction: float = 0.75

    def __post_init__(self) -> None:
        if not 0 <= self.fraction <= 1:
            raise ConfigError(f"p_rope's fraction must be from 0 to 1, got {self.fraction}: the paper takes 0.75")

    def attention(self, model: Model, length: int) -> Attention:
        """The kept frequencies, the same at every length; Refused unless the model has plain RoPE."""
        pairs = model.rotated // 2
        kept = np.arange(pairs) < int(self.fraction * pairs)
        return Attention(inv_freq=np.where(kept, model.inv_freq(), 0.0))

    def rope_parameters(self, model: Model, length: int) -> dict[str, Any]:
        """Rope parameters of transformers' config, of type `proportional`; Refused for partly rotated heads."""
        if model.rotated < model.head_dim:
            raise Refused(
                f"transformers' proportional is for whole heads, {model.name} rotates {model.rotated} of "
                f"{model.head_dim} dimensions"
            )
        return transformers_rope_parameters(model, "proportional", partial_rotary_factor=float(self.fraction))
