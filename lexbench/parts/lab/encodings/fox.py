"""FoX: the forgetting transformer (Lin et al. 2025, arXiv 2503.02130)."""

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from lexbench.parts.lab.encodings.base import WEIGHT_DEVIATION, Encoding, cumulative_from
from lexbench.parts.lab.encodings.wrappers import EncodingWrapper


class Fox(EncodingWrapper):
    """Each token decides how much every head forgets of what came before it.

        logit(i, j) = q_i . k_j / sqrt(d) + sum_{l = j+1 .. i} ln f_l,   f_l = sigmoid(w_h . x_l + b_h)

    x is the layer's input after its norm. A constant f is ALiBi. Sums are differences of one cumulative sum in float64.
    b begins at 0, so f near 1/2: heads begin local, about 0.7 nats a token, and learn to look further. The paper needs
    no other positions (over=nope) and finds that rope adds little. Its block "Pro", with an output gate and norms, is
    left out.

    Args:
        over: the inner encoding: nope or rope.
        heads: H, query heads.
        width: of the network.
    """

    excludes = frozenset({"gates", "mix", "positions", "products", "rescore"})
    shared = False

    def __init__(self, over: Encoding, heads: int, width: int) -> None:
        super().__init__(over)
        self.forget = nn.Parameter(torch.zeros(heads, width))
        self.forget_bias = nn.Parameter(torch.zeros(heads))

    def initialise(self, generator: Generator) -> None:
        """Draw w like the decoder's weights; b is 0."""
        self.over.initialise(generator)
        nn.init.normal_(self.forget, std=WEIGHT_DEVIATION, generator=generator)

    def gates(self, normed: Tensor) -> Tensor:
        """[B, H, T, 1] ln f."""
        logits = F.linear(normed, self.forget.to(normed.dtype), self.forget_bias.to(normed.dtype))
        return F.logsigmoid(logits.to(torch.promote_types(logits.dtype, torch.float32))).mT[..., None]

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """[B, H, Q, K]; zeros [H, Q, K] before there are gates."""
        own, inner = (
            cumulative_from(self.given, query_positions, key_positions),
            self.over.bias(query_positions, key_positions),
        )
        own = own if self.given is not None else own.expand(len(self.forget), -1, -1)
        return own if inner is None else own + inner
