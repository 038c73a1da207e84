"""Giraffe's power basis."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lexbench.core.attention import Attention
from lexbench.core.errors import ConfigError
from lexbench.core.model import Model


@dataclass(frozen=True)
class PowerBasis:
    """Slow pairs the more the slower they are (Giraffe, Pal et al. 2023, arXiv 2308.10882).

        theta'_p = theta_p (1 - p / (d/2))^power

    The first pair keeps its frequency, the last one is divided by (d/2)^power. It is the same at every length and needs
    fine-tuning.

    Args:
        power: at least 0; 0 is the model itself, the released code takes 0.1.
    """

    family: ClassVar[str] = "other frequencies"

    power: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.power < math.inf:
            raise ConfigError(
                f"power_basis's power must be finite and at least 0, got {self.power}: the released code takes 0.1"
            )

    def attention(self, model: Model, length: int) -> Attention:
        """The slowed frequencies, the same at every length; Refused unless the model has plain RoPE."""
        pairs = model.rotated // 2
        return Attention(inv_freq=model.inv_freq() * (1 - np.arange(pairs) / pairs) ** self.power)
