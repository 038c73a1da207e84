"""HoPE: high frequencies only."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lexbench.core.attention import Attention
from lexbench.core.model import Model
from lexbench.methods.rotary import check_trained_length, with_trained_length


@dataclass(frozen=True)
class Hope:
    """Stop the pairs that made no full turn in training (Chen et al. 2024, arXiv 2410.21216).

        theta'_p = theta_p  where theta_p >= 2 pi / L, else 0

    The paper replaces the low-frequency components of RoPE, which cause its U-shaped attention, by components without
    positions. It trains models this way; this method applies the rule to a trained model, and changes it at every
    length. The threshold of one full turn within the trained length L follows a secondary description; it was not
    checked against the paper's text.

    Args:
        trained_length: L in tokens; None: the model's.
    """

    family: ClassVar[str] = "other frequencies"

    trained_length: int | None = None

    def __post_init__(self) -> None:
        check_trained_length("hope", self.trained_length)

    def attention(self, model: Model, length: int) -> Attention:
        """The kept frequencies, the same at every length; Refused unless the model has plain RoPE."""
        model = with_trained_length(model, self.trained_length)
        plain = model.inv_freq()
        return Attention(inv_freq=np.where(plain >= 2 * math.pi / model.trained_length, plain, 0.0))
