"""Giraffe's truncated basis."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lexbench.core.attention import Attention
from lexbench.core.errors import ConfigError
from lexbench.core.model import Model


@dataclass(frozen=True)
class TruncatedBasis:
    """Give slow pairs one slower frequency, or stop them (Giraffe, Pal et al. 2023, arXiv 2308.10882).

        theta'_p = theta_p  where theta_p >= b
                   rho      where a <= theta_p < b
                   0        where theta_p < a
        b = 2 pi / T,  a = b / stop,  rho = b / slow

    Pairs with a full turn within T tokens are kept; for the others training did not show all angles. The paper leaves
    a, b and rho open; the defaults are those of its released code, which compares the plain frequencies. All pairs
    beyond the cutoff change at every length, so it needs fine-tuning.

    Args:
        cutoff: T in tokens, above 0; None: the trained length.
        stop: pairs of wavelengths above stop T do not rotate; at least 1.
        slow: wavelengths between T and stop T become slow T; at least 1.
    """

    family: ClassVar[str] = "other frequencies"

    cutoff: float | None = None
    stop: float = 8.0
    slow: float = 16.0

    def __post_init__(self) -> None:
        if self.cutoff is not None and not 0 < self.cutoff < math.inf:
            raise ConfigError(
                f"truncated_basis's cutoff must be finite and above 0, got {self.cutoff}: "
                "leave it out for the trained length"
            )
        if not (1 <= self.stop < math.inf and 1 <= self.slow < math.inf):
            raise ConfigError(
                f"truncated_basis needs stop and slow finite and at least 1, got {self.stop} and {self.slow}: "
                "the released code takes 8 and 16"
            )

    def attention(self, model: Model, length: int) -> Attention:
        """The truncated frequencies, the same at every length; Refused unless the model has plain RoPE."""
        plain = model.inv_freq()
        once = 2 * math.pi / (self.cutoff or model.trained_length)
        # Compared with the plain frequencies, as in the released code, not with those already replaced.
        slowed = np.where(plain < once / self.stop, 0.0, once / self.slow)
        return Attention(inv_freq=np.where(plain >= once, plain, slowed))
