"""CABLE: context-aware biases for length extrapolation (Veisi et al. 2025, arXiv 2503.08067)."""

from collections.abc import Callable
from types import MappingProxyType

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from lexbench.core.errors import ConfigError
from lexbench.parts.lab.encodings.base import WEIGHT_DEVIATION, Encoding, cumulative_from

ACTIVATION_OF_FORM: dict[str, Callable[[Tensor], Tensor]] = {"weighted": F.relu, "relu": F.relu, "softplus": F.softplus}
"""Slopes of the projections, by form."""


class Cable(Encoding):
    """Like ALiBi, with a slope that each token chooses for each head of each layer.

        logit(i, j) = q_i . k_j / sqrt(d) - g_i sum_{l = j+1 .. i} slope(w_h . x_l + b_h)

        weighted    slope(z) = max(0, z),  g_i = ln(1 + e^(u_h . x_i + c_h))       (eq. 2 to 7, the paper's CABLE)
        relu        slope(z) = max(0, z),  g_i = 1                                 (eq. 2 to 5, its CABLE_NW)
        softplus    slope(z) = ln(1 + e^z),  g_i = 1

    x is the layer's input after its norm. Where slopes are max(0, z), a token with slope 0 takes no room: keys before
    it are as near as it is. g lets a query weigh all its distances more or less.

    The paper's formulas have no b and c. w and u begin like the decoder's weights, b and c at 0, so that in a width of
    128 the mean slope is 0.09, or 0.7 under softplus, and g about 0.7. The released code (read, not run) has the form
    softplus, and no 1 / sqrt(d). As -softplus(z) = ln sigmoid(-z), that form is `fox` over nope with w and b of the
    other sign.

    Args:
        heads: H, query heads.
        width: of the network.
        form: weighted, relu or softplus.
    """

    before = MappingProxyType({"form": "relu"})
    shared = False

    def __init__(self, heads: int, width: int, form: str = "weighted") -> None:
        super().__init__()
        if form not in ACTIVATION_OF_FORM:
            raise ConfigError(f"cable's form must be weighted, relu or softplus, got {form!r}: the paper's is weighted")
        self.form = form
        self.slope = nn.Parameter(torch.zeros(heads, width))
        self.slope_bias = nn.Parameter(torch.zeros(heads))
        if form == "weighted":
            self.weight = nn.Parameter(torch.zeros(heads, width))
            self.weight_bias = nn.Parameter(torch.zeros(heads))

    def initialise(self, generator: Generator) -> None:
        """Draw w, then u; b and c are 0."""
        nn.init.normal_(self.slope, std=WEIGHT_DEVIATION, generator=generator)
        if self.form == "weighted":
            nn.init.normal_(self.weight, std=WEIGHT_DEVIATION, generator=generator)

    def gates(self, normed: Tensor) -> Tensor:
        """[B, H, T, 1] slopes below 0; in the form weighted [B, H, T, 2], slopes and g."""
        slopes = -ACTIVATION_OF_FORM[self.form](_project_per_head(normed, self.slope, self.slope_bias))
        if self.form != "weighted":
            return slopes[..., None]
        return torch.stack([slopes, F.softplus(_project_per_head(normed, self.weight, self.weight_bias))], dim=-1)

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """[B, H, Q, K]; zeros [1, Q, K] before there are gates."""
        between = cumulative_from(self.given, query_positions, key_positions)
        if self.given is None or self.form != "weighted":
            return between
        # Positions are plain, indices of tokens: see `cumulative_from`.
        return self.given[..., 1].to(between)[..., query_positions.long(), None] * between


def _project_per_head(normed: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """[B, H, T] in float32 or better, of [B, T, width]."""
    found = F.linear(normed, weight.to(normed.dtype), bias.to(normed.dtype))
    return found.to(torch.promote_types(found.dtype, torch.float32)).mT
