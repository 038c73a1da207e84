"""Clipped RoPE: a taper over the pairs that made no full turn."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lexbench.core.attention import Attention
from lexbench.core.errors import ConfigError
from lexbench.core.model import Model
from lexbench.methods.rotary import change_frequencies, check_trained_length, with_trained_length


@dataclass(frozen=True)
class ClippedRope:
    """Slow the pairs that made no full turn in training, more and more, to a stop (Li et al. 2026, arXiv 2602.05258).

        theta'_p = theta_p (1 + cos(pi j / (k - 1))) / 2  for j = p - (d/2 - k) from 0 to k - 1, else theta_p

    k pairs are clipped: half of Hann's window begins at 1 and ends at 0, where `hope` and `p_rope` stop pairs at once,
    and distances ring. The paper calls it CoPE, as an older encoding is called. Its authors' code clips 20 of Llama 3's
    64 pairs, of which 29 have a period beyond the trained length, and trains on; without training a model is changed at
    every length.

    It is a modifier: method=yarn+clipped_rope tapers YaRN's frequencies, as the authors' code does after any scaling.

    Args:
        clipped_pairs: k, at least 1 (one alone stays as it is); None: those with 2 pi / theta_p > L, by the model's
            own frequencies.
        trained_length: L in tokens; None: the model's.
    """

    family: ClassVar[str] = "interpolation"

    clipped_pairs: int | None = None
    trained_length: int | None = None

    def __post_init__(self) -> None:
        check_trained_length("clipped_rope", self.trained_length)
        if self.clipped_pairs is not None and self.clipped_pairs < 1:
            raise ConfigError(
                f"clipped_rope's clipped_pairs must be at least 1, got {self.clipped_pairs}: leave it out for the "
                "pairs without a full turn, or take the paper's 20"
            )

    def attention(self, model: Model, length: int) -> Attention:
        """The tapered frequencies, the same at every length; Refused unless the model has plain RoPE."""
        return self.over(Attention(), model, length)

    def over(self, attention: Attention, model: Model, length: int) -> Attention:
        """Taper the frequencies of an Attention in all its layers and passes; Refused unless the model has plain RoPE.

        ConfigError where frequencies change while a text is read (`dynamic`).
        """
        clipped, pairs = self._count_clipped(with_trained_length(model, self.trained_length)), model.rotated // 2
        taper = np.ones(pairs)
        taper[pairs - clipped :] = (1 + np.cos(np.linspace(0, np.pi, clipped))) / 2
        return change_frequencies("clipped_rope", attention, model, lambda frequencies: frequencies * taper)

    def _count_clipped(self, model: Model) -> int:
        """Number of pairs that are clipped."""
        plain = model.inv_freq()
        unturned = int((plain * model.trained_length < 2 * math.pi).sum())
        return unturned if self.clipped_pairs is None else min(self.clipped_pairs, len(plain))
