"""TISA: translation-invariant self-attention (Wennberg and Henter 2021, ACL, arXiv 2106.01950)."""

import torch
from torch import Generator, Tensor, nn

from lexbench.core.errors import ConfigError
from lexbench.parts.lab.encodings.base import Encoding, bias_by_distance


class Tisa(Encoding):
    """Bias of a few Gaussians of the distance, learned for each head of each layer.

        b_h(o) = sum_s a_s e^(-|c_s| (o - r_s)^2),   o = j - i, at most 0

    They begin at r ~ N(0, 5), a and c ~ N(0.1, 0.01), mean and deviation. The released code has (i - j) - 1 instead
    of o, the opposite sign and shifted by one; offsets r' trained there are r = -(r' + 1) here. Far from every r_s the
    bias is 0, so distances far beyond the trained ones all have the same bias.

    Args:
        heads: H, query heads.
        kernels: S, Gaussians a head.
    """

    shared = False

    def __init__(self, heads: int, kernels: int = 5) -> None:
        super().__init__()
        if kernels < 1:
            raise ConfigError(f"tisa needs at least 1 kernel, got {kernels}: the paper has 5")
        self.amplitudes = nn.Parameter(torch.zeros(heads, kernels))
        self.sharpness = nn.Parameter(torch.zeros(heads, kernels))
        self.offsets = nn.Parameter(torch.zeros(heads, kernels))

    def initialise(self, generator: Generator) -> None:
        """Draw all three from normal distributions."""
        for weight, mean, deviation in (
            (self.offsets, 0.0, 5.0),
            (self.amplitudes, 0.1, 0.01),
            (self.sharpness, 0.1, 0.01),
        ):
            nn.init.normal_(weight, mean, deviation, generator=generator)

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """[H, Q, K] bias of the logits, or [B, H, Q, K] where positions have a batch axis."""
        return bias_by_distance(lambda distances: self.bias_at_offsets(-distances), query_positions, key_positions)

    def bias_at_offsets(self, offsets: Tensor) -> Tensor:
        """[H, N] bias of the logits at offsets o [N]."""
        squares = (offsets.to(self.offsets.dtype) - self.offsets[..., None]).square()
        return (self.amplitudes[..., None] * (-self.sharpness.abs()[..., None] * squares).exp()).sum(1)
