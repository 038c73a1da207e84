"""YaRN, as its paper writes it."""

from dataclasses import dataclass
from typing import ClassVar

from lexbench.core.attention import Attention
from lexbench.core.model import Model
from lexbench.methods.rotary import (
    blend_by_rotations,
    check_attention_factor,
    check_factor,
    check_ramp,
    check_trained_length,
    resolve_factor,
    with_trained_length,
    yarn_scale,
)


@dataclass(frozen=True)
class YarnPaper:
    """Interpolate pairs by their rotations, sharpen attention (Peng et al. 2023, arXiv 2309.00071, def. 2 and 3).

        theta'_p = (1 - g(r_p)) theta_p / s + g(r_p) theta_p
        g(r) = clip((r - alpha) / (beta - alpha), 0, 1),  r_p = L theta_p / (2 pi)
        cos and sin times m = 0.1 ln s + 1, so that logits grow by m^2

    The ramp is linear in r_p, the rotations of pair p within the trained length L: this is `ntk_by_parts` with the
    scale m. Common implementations, the authors' code included, are linear in the pair's index: that is `yarn`. In the
    middle of the ramp the two differ much: at s = 8, pair 36 of Llama 2 rotates 0.43 times as fast here as there.

    Args:
        factor: s, at least 1; None: length / trained_length, the local static policy.
        alpha: rotations up to which a pair is fully interpolated.
        beta: rotations from which a pair does not change.
        attention_factor: m, above 0; None: 0.1 ln s + 1.
        trained_length: L in tokens; None: the model's.
    """

    family: ClassVar[str] = "interpolation"

    factor: float | None = None
    alpha: float = 1.0
    beta: float = 32.0
    attention_factor: float | None = None
    trained_length: int | None = None

    def __post_init__(self) -> None:
        check_factor("yarn_paper", self.factor)
        check_attention_factor("yarn_paper", self.attention_factor, "0.1 ln s + 1")
        check_trained_length("yarn_paper", self.trained_length)
        check_ramp("yarn_paper", self.alpha, self.beta)

    def attention(self, model: Model, length: int) -> Attention:
        """Blended frequencies, and the scale of cos and sin; Refused unless the model has plain RoPE."""
        model = with_trained_length(model, self.trained_length)
        factor = resolve_factor(self.factor, model, length)
        scale = yarn_scale(factor) if self.attention_factor is None else self.attention_factor
        return Attention(inv_freq=blend_by_rotations(model, factor, slow=self.alpha, fast=self.beta), scale=scale)
