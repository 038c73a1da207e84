"""CABLE: context-aware biases for length extrapolation (Veisi et al. 2025, arXiv 2503.08067)."""

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from lexbench.encodings.base import DEVIATION, Encoding, since


class Cable(Encoding):
    """Like ALiBi, with a slope that each token chooses for each head of each layer.

        logit(i, j) = q_i . k_j / sqrt(d) - sum_{l = j+1 .. i} relu(w_h . x_l + b_h)

    x is the layer's input after its norm. A token with slope 0 takes no room: keys before it are as near as it is. FoX
    (`fox`) differs in the function: -ln sigmoid in place of relu, so that no token is free there. w begins like the
    decoder's weights and b at 0, so that the mean slope is 0.09 in a width of 128. Not verified: that slopes pass a
    relu and are summed without another weight; only the paper's abstract and introduction were read.

    Args:
        heads: H, query heads.
        width: of the network.
    """

    shared = False

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.zeros(heads, width))
        self.slope_bias = nn.Parameter(torch.zeros(heads))

    def initialise(self, generator: Generator) -> None:
        """Draw w; b is 0."""
        nn.init.normal_(self.slope, std=DEVIATION, generator=generator)

    def gates(self, normed: Tensor) -> Tensor:
        """[B, H, T, 1] slopes below 0."""
        slopes = F.linear(normed, self.slope.to(normed.dtype), self.slope_bias.to(normed.dtype))
        return -slopes.relu().to(torch.promote_types(slopes.dtype, torch.float32)).mT[..., None]

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """[B, H, Q, K]; zeros [1, Q, K] before there are gates."""
        return since(self.given, query_positions, key_positions)
