"""Position interpolation."""

from dataclasses import dataclass
from typing import Any, ClassVar

from lexbench.core.attention import Attention
from lexbench.core.model import Model
from lexbench.methods.rotary import check_factor, resolve_factor, transformers_rope_parameters


@dataclass(frozen=True)
class Pi:
    """Squeeze all positions into the trained range (Chen et al. 2023, arXiv 2306.15595, section 2.3; kaiokendev).

        theta'_p = theta_p / s

    Position t becomes t / s. Frequencies are divided instead of positions, because fractional positions lose precision;
    cached keys stay valid. Without fine-tuning, the model knows none of the new frequencies, not even the fast ones.

    Args:
        factor: s, at least 1; None: length / trained_length, the local static policy.
    """

    family: ClassVar[str] = "interpolation"

    factor: float | None = None

    def __post_init__(self) -> None:
        check_factor("pi", self.factor)

    def attention(self, model: Model, length: int) -> Attention:
        """All frequencies divided by the factor; Refused unless the model has plain RoPE."""
        return Attention(inv_freq=model.inv_freq() / resolve_factor(self.factor, model, length))

    def rope_parameters(self, model: Model, length: int) -> dict[str, Any]:
        """Rope parameters of transformers' config, of type `linear`."""
        return transformers_rope_parameters(model, "linear", factor=resolve_factor(self.factor, model, length))
