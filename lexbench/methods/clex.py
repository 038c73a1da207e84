"""CLEX, before it is trained."""

import math
from dataclasses import dataclass
from typing import ClassVar

from lexbench.core.attention import Attention
from lexbench.core.errors import ConfigError
from lexbench.core.model import Model
from lexbench.methods.rotary import ntk_base


@dataclass(frozen=True)
class Clex:
    """Scale frequencies along a differential equation in the stretch t (Chen et al. 2023, arXiv 2310.16450).

        d ln theta_p / dt = psi(ln theta, t)_p + xi_p(t),  theta(1) = the model's own
        xi_p(t) = d/dt ln (2t - 1)^(-2p/(d-2))

    psi is a network to be trained with the model; untrained it is 0, and the equation has the closed form that this
    method computes: NTK-aware scaling by the factor 2t - 1. A trained CLEX is a model of its own.

    As in the authors' inference code, t is a whole number, up to a cap. There, a cached key keeps the frequencies of
    the t at which it was computed; here t is fixed before the text begins.

    Args:
        t: the stretch, at least 1; None: ceil(length / trained_length), at least 1, at most max_factor.
        max_factor: the largest t, at least 1; beyond max_factor trained lengths nothing changes any more.
    """

    family: ClassVar[str] = "other frequencies"
    per_text: ClassVar[bool] = True

    t: float | None = None
    max_factor: float = 16.0

    def __post_init__(self) -> None:
        if not 1 <= self.max_factor < math.inf:
            raise ConfigError(
                f"clex's max_factor must be finite and at least 1, got {self.max_factor}: the paper takes 16"
            )
        if self.t is not None and not 1 <= self.t <= self.max_factor:
            raise ConfigError(
                f"clex's t must be from 1 to max_factor {self.max_factor:g}, got {self.t}: "
                "leave it out to fit the length"
            )

    def attention(self, model: Model, length: int) -> Attention:
        """Frequencies at t; Refused unless the model has plain RoPE of at least 4 dimensions."""
        fitting = max(1, math.ceil(length / model.trained_length))
        stretch = min(fitting, self.max_factor) if self.t is None else self.t
        # The closed form with psi = 0: theta (2t - 1)^(-2p/(d-2)), NTK-aware by the factor 2t - 1.
        return Attention(inv_freq=model.inv_freq(ntk_base(model, 2 * stretch - 1)))
