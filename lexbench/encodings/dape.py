"""DAPE: data-adaptive positional encoding over a bias (Zheng et al. 2024, arXiv 2405.14722, and v2, 2410.04798)."""

import math

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from lexbench.encodings.base import Encoding
from lexbench.encodings.wrappers import Over

FORMS = ("v1", "v2")


class Dape(Over):
    """All heads' scores and biases of a pair, and in v2 of its neighbours, decide how much each logit changes.

        A = X + B + f(X, B),   X = scaled q . k,  B the bias of the encoding that this is over
        f: 2H -> hidden -> H with a LeakyReLU (0.01) between; v2: both steps convolve `kernel` keys of a row

    Its preprint was called CAPE. Where it is printed without the B between, the released code has it, as here. f is
    each layer's own, and so is the encoding under it.

    v2 needs later keys as zeros: the released code makes X and B so, but not what is between the convolutions, where
    the place after a query's own then counts in its row, unless the text ends there. Here nothing unseen counts, so
    that a row is the same in a longer text, with a cache, and chunk by chunk.

    Every pair of query and key holds some 6H + 3 hidden numbers on the way; no fused kernel can do it.

    Args:
        over: an encoding with a bias: kerple, alibi, fire and the like.
        heads: H, query heads.
        form: v1 or v2.
        hidden: numbers between the two steps.
        kernel: of v2, odd: keys that a convolution sees.
    """

    shared = False

    def __init__(self, over: Encoding, heads: int, form: str = "v1", hidden: int = 32, kernel: int = 3) -> None:
        super().__init__(over)
        start = torch.zeros(1, dtype=torch.float64)
        if over.rescores or over.bias(start, start) is None:
            raise ValueError(
                f"dape needs an encoding with a bias, {over.name} adds none: use over=kerple, alibi or fire"
            )
        if form not in FORMS:
            raise ValueError(f"dape form must be one of {', '.join(FORMS)}, got {form}")
        if hidden < 1 or kernel < 1 or kernel % 2 == 0:
            raise ValueError(f"dape needs hidden >= 1 and an odd kernel, got {hidden} and {kernel}: 32 and 3")
        size = kernel if form == "v2" else 1
        self.inner = nn.Parameter(torch.zeros(hidden, 2 * heads, 1, size))
        self.inner_bias = nn.Parameter(torch.zeros(hidden))
        self.outer = nn.Parameter(torch.zeros(heads, hidden, 1, size))
        self.outer_bias = nn.Parameter(torch.zeros(heads))

    @property
    def rescores(self) -> bool:  # type: ignore[override]
        """Heads mix."""
        return True

    @property
    def held(self) -> int:  # type: ignore[override]
        """Scores, biases, their sum and change; and what is between the steps, for all heads together."""
        hidden, heads = self.inner.shape[0], self.outer.shape[0]
        return 6 + math.ceil(3 * hidden / heads)

    def initialise(self, generator: Generator) -> None:
        """The encoding's under it; f as PyTorch begins its layers: uniform up to 1 / sqrt(inputs)."""
        self.over.initialise(generator)
        for weight, bias in ((self.inner, self.inner_bias), (self.outer, self.outer_bias)):
            bound = weight[0].numel() ** -0.5
            nn.init.uniform_(weight, -bound, bound, generator=generator)
            nn.init.uniform_(bias, -bound, bound, generator=generator)

    def rescore(
        self, scores: Tensor, seen: Tensor, queries: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> Tensor:
        """[B, H, Q, K] scores plus bias plus what both together add."""
        bias = self.over.bias(query_positions, key_positions)
        bias = scores.new_zeros(()) if bias is None else bias  # a layer without one
        bias = bias.to(scores.dtype).expand_as(scores).masked_fill(~seen, 0.0)
        both = torch.cat([scores, bias], dim=1)
        between = F.leaky_relu(_along_keys(both, self.inner, self.inner_bias)).masked_fill(~seen, 0.0)
        return scores + bias + _along_keys(between, self.outer, self.outer_bias)


def _along_keys(channels: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """[B, out, Q, K] of [B, in, Q, K]; beyond the first and last key there are zeros."""
    dtype, reach = channels.dtype, weight.shape[-1] // 2
    return F.conv2d(channels, weight.to(dtype), bias.to(dtype), padding=(0, reach))
