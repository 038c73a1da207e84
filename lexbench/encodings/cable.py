"""CABLE: context-aware biases for length extrapolation (Veisi et al. 2025, arXiv 2503.08067)."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from lexbench.encodings.base import DEVIATION, Encoding, since

FORMS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "softplus": F.softplus}


class Cable(Encoding):
    """Like ALiBi, with a slope that each token chooses for each head of each layer.

        logit(i, j) = q_i . k_j / sqrt(d) - sum_{l = j+1 .. i} slope(w_h . x_l + b_h)

        relu        slope(z) = max(0, z)
        softplus    slope(z) = ln(1 + e^z)

    x is the layer's input after its norm. Under relu a token with slope 0 takes no room: keys before it are as near as
    it is. w begins like the decoder's weights and b at 0, so that the mean slope is 0.09 under relu in a width of 128,
    and 0.7 under softplus. The released code (read, not run) has softplus, sums without another weight, as here, and no
    1 / sqrt(d). As -softplus(z) = ln sigmoid(-z), that form is `fox` over nope with w and b of the other sign. Not
    verified: which form the paper's text has; only its abstract and introduction were read.

    Args:
        heads: H, query heads.
        width: of the network.
        form: relu or softplus.
    """

    shared = False

    def __init__(self, heads: int, width: int, form: str = "relu") -> None:
        super().__init__()
        if form not in FORMS:
            raise ValueError(f"cable's form must be relu or softplus, got {form!r}: the released code has softplus")
        self.form = form
        self.slope = nn.Parameter(torch.zeros(heads, width))
        self.slope_bias = nn.Parameter(torch.zeros(heads))

    def initialise(self, generator: Generator) -> None:
        """Draw w; b is 0."""
        nn.init.normal_(self.slope, std=DEVIATION, generator=generator)

    def gates(self, normed: Tensor) -> Tensor:
        """[B, H, T, 1] slopes below 0."""
        slopes = F.linear(normed, self.slope.to(normed.dtype), self.slope_bias.to(normed.dtype))
        return -FORMS[self.form](slopes.to(torch.promote_types(slopes.dtype, torch.float32))).mT[..., None]

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """[B, H, Q, K]; zeros [1, Q, K] before there are gates."""
        return since(self.given, query_positions, key_positions)
