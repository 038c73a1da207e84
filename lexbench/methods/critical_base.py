"""The small bases below which extrapolation improves."""

import math
from dataclasses import dataclass
from typing import ClassVar

from lexbench.core.errors import ConfigError
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.methods.rotary import Rebased


@dataclass(frozen=True)
class CriticalBase(Rebased):
    """Rotate with so small a base that every pair is trained (Liu et al. 2023, arXiv 2310.05209).

        theta'_p = base^(-2p/d),  base = 2T / pi, T / pi or T / (2 pi),  T = trained length

    With these the slowest angle, about T / base, makes a quarter, a half or a full turn within T, so that training
    shows the cosine of every pair down to 0, down to -1, or over a full turn; at each of these bases the paper finds
    better extrapolation. For T = 4096 they are 2608, 1304 and 652.

    It needs fine-tuning at length T, because pairs rotate faster than in training. Unlike `abf` it aims at no length.

    Args:
        divisor: of 2T / pi: 1, 2 or 4.
    """

    family: ClassVar[str] = "base"

    divisor: int = 1

    def __post_init__(self) -> None:
        if self.divisor not in (1, 2, 4):
            raise ConfigError(
                f"critical_base's divisor must be 1, 2 or 4, got {self.divisor}: "
                "1 for 2T / pi, 2 for T / pi, 4 for T / 2 pi"
            )

    def _base(self, model: Model, length: int) -> float:
        """Base of the frequencies, the same at every length; Refused for a base of at most 1."""
        if model.frequencies is not None:
            raise Refused(
                "critical_base sets all frequencies by one base, which leaves nothing of the scaled ones of "
                f"{model.name}: give over=plain"
            )
        # With it the slowest pair turns by about T / base = pi / 2 times the divisor within the trained length.
        base = 2 * model.trained_length / math.pi / self.divisor
        if base <= 1:
            raise Refused(
                f"critical_base needs a base above 1, {model.name} with {model.trained_length} trained tokens has "
                f"{base:.3g}: lower divisor"
            )
        return base
