"""DAPE: data-adaptive positional encoding over a bias (Zheng et al. 2024, arXiv 2405.14722, and v2, 2410.04798)."""

import math

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from lexbench.core.errors import ConfigError
from lexbench.parts.lab.encodings.base import Encoding
from lexbench.parts.lab.encodings.wrappers import EncodingWrapper

FORM_NAMES = ("v1", "v2")


class Dape(EncodingWrapper):
    """A network corrects each logit, from scores and biases of all heads for the pair, in v2 also for its neighbours.

        A = X + B + f(X, B),   X = scaled q . k,  B the bias of the inner encoding
        f: 2H -> hidden -> H with a LeakyReLU (0.01) between; v2: both steps convolve `kernel` keys of a row

    Its preprint was called CAPE. Some printed formulas lack the middle term B; the released code has it, as here. Every
    layer has its own f and its own inner encoding.

    v2 needs zeros at later keys. The released code sets X and B to 0 there, but not the values between the
    convolutions: so the key after the query changes the query's row, unless the text ends there. Here both are 0, so
    that a row is the same in a longer text, with a cache, and in chunks.

    Every pair of query and key needs memory for about 6H + 3 hidden numbers; no fused kernel computes it.

    Args:
        over: an encoding with a bias: kerple, alibi, fire and the like.
        heads: H, query heads.
        form: v1 or v2.
        hidden: numbers between the two steps.
        kernel: of v2, odd: keys in a convolution.
    """

    shared = False

    def __init__(self, over: Encoding, heads: int, form: str = "v1", hidden: int = 32, kernel: int = 3) -> None:
        super().__init__(over)
        start = torch.zeros(1, dtype=torch.float64)
        if over.rescores or over.bias(start, start) is None:
            raise ConfigError(
                f"dape needs an encoding with a bias, {over.name} adds none: use over=kerple, alibi or fire"
            )
        if form not in FORM_NAMES:
            raise ConfigError(f"dape form must be one of {', '.join(FORM_NAMES)}, got {form}")
        if hidden < 1 or kernel < 1 or kernel % 2 == 0:
            raise ConfigError(f"dape needs hidden >= 1 and an odd kernel, got {hidden} and {kernel}: 32 and 3")
        # v1 is v2 with a kernel of one key.
        size = kernel if form == "v2" else 1
        self.inner = nn.Parameter(torch.zeros(hidden, 2 * heads, 1, size))
        self.inner_bias = nn.Parameter(torch.zeros(hidden))
        self.outer = nn.Parameter(torch.zeros(heads, hidden, 1, size))
        self.outer_bias = nn.Parameter(torch.zeros(heads))

    @property
    def rescores(self) -> bool:  # type: ignore[override]
        """Always: heads mix."""
        return True

    @property
    def held(self) -> int:  # type: ignore[override]
        """Scores, biases, their sum and correction; and the hidden numbers, which all heads share."""
        hidden, heads = self.inner.shape[0], self.outer.shape[0]
        return 6 + math.ceil(3 * hidden / heads)

    def initialise(self, generator: Generator) -> None:
        """Draw the inner encoding's weights, then f as PyTorch draws its layers: uniform up to 1 / sqrt(inputs)."""
        self.over.initialise(generator)
        for weight, bias in ((self.inner, self.inner_bias), (self.outer, self.outer_bias)):
            bound = weight[0].numel() ** -0.5
            nn.init.uniform_(weight, -bound, bound, generator=generator)
            nn.init.uniform_(bias, -bound, bound, generator=generator)

    def rescore(
        self, scores: Tensor, seen: Tensor, queries: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> Tensor:
        """[B, H, Q, K] scores plus bias plus f of both."""
        bias = self.over.bias(query_positions, key_positions)
        bias = scores.new_zeros(()) if bias is None else bias  # a layer without one
        bias = bias.to(scores.dtype).expand_as(scores).masked_fill(~seen, 0.0)
        both = torch.cat([scores, bias], dim=1)
        # Masked again: else the second convolution of v2 would read the key after the query.
        between = F.leaky_relu(_convolve_along_keys(both, self.inner, self.inner_bias)).masked_fill(~seen, 0.0)
        return scores + bias + _convolve_along_keys(between, self.outer, self.outer_bias)


def _convolve_along_keys(channels: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """[B, out, Q, K] convolution of [B, in, Q, K] along the keys, padded with zeros."""
    dtype, reach = channels.dtype, weight.shape[-1] // 2
    return F.conv2d(channels, weight.to(dtype), bias.to(dtype), padding=(0, reach))
