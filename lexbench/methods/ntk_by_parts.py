"""NTK-by-parts interpolation."""

from dataclasses import dataclass
from typing import ClassVar

from lexbench.core.attention import Attention
from lexbench.core.model import Model
from lexbench.methods.rotary import (
    blend_by_rotations,
    check_factor,
    check_ramp,
    check_trained_length,
    resolve_factor,
    with_trained_length,
)


@dataclass(frozen=True)
class NtkByParts:
    """Interpolate the pairs without a full turn in training, keep the fast ones (arXiv 2309.00071, definition 2).

        theta'_p = (1 - g(r_p)) theta_p / s + g(r_p) theta_p
        g(r) = clip((r - alpha) / (beta - alpha), 0, 1),  r_p = L theta_p / (2 pi)

    r_p counts the rotations of pair p within the trained length L. This is the paper's formula, linear in r; common
    implementations of YaRN are linear in the pair's index, see `yarn`.

    Args:
        factor: s, at least 1; None: length / trained_length.
        alpha: rotations up to which a pair is fully interpolated.
        beta: rotations from which a pair does not change.
        trained_length: L in tokens; None: the model's.
    """

    family: ClassVar[str] = "interpolation"

    factor: float | None = None
    alpha: float = 1.0
    beta: float = 32.0
    trained_length: int | None = None

    def __post_init__(self) -> None:
        check_factor("ntk_by_parts", self.factor)
        check_trained_length("ntk_by_parts", self.trained_length)
        check_ramp("ntk_by_parts", self.alpha, self.beta)

    def attention(self, model: Model, length: int) -> Attention:
        """Blended frequencies; Refused unless the model has plain RoPE."""
        model = with_trained_length(model, self.trained_length)
        factor = resolve_factor(self.factor, model, length)
        return Attention(inv_freq=blend_by_rotations(model, factor, slow=self.alpha, fast=self.beta))
