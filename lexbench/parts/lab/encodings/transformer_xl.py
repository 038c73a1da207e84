"""Transformer-XL's relative positions (Dai et al. 2019, arXiv 1901.02860)."""

import torch
from torch import Generator, Tensor, nn

from lexbench.kernels.heads import Rotate, multiply_per_group
from lexbench.parts.lab.encodings.base import (
    WEIGHT_DEVIATION,
    Encoding,
    distinct_distances,
    rope_frequencies,
    rotation_angles,
)


class TransformerXl(Encoding):
    """A projected sinusoid of the distance is a second key, and two vectors stand for the query's own position.

        logit(i, j) = ((q_i + u) . k_j + (q_i + v) . W_R R(i - j)) / sqrt(d)
        R(n) = [sin(n f), cos(n f)],   f_p = base^(-2p / width)

    These are the four terms of the paper's section 3.3. Nothing is learned for a distance, so any length is defined.
    As in XLNet each layer has its own u and v; the paper's equations share them between layers, and W_R belongs to a
    layer there, too. Its segments, whose states are kept for the next one, are not part of this: a text is read whole.

    Args:
        head_dim: d, dimensions of a head.
        heads: H, query heads; each has its own u, v and rows of W_R.
        width: of the network and of R.
        base: of the sinusoids.
    """

    shared = False
    held = 4
    frequencies: Tensor

    def __init__(self, head_dim: int, heads: int, width: int, base: float = 10000.0) -> None:
        super().__init__()
        self.register_buffer("frequencies", rope_frequencies(width, base), persistent=False)
        self.projection = nn.Parameter(torch.zeros(heads * head_dim, width))
        self.content = nn.Parameter(torch.zeros(heads, head_dim))
        self.place = nn.Parameter(torch.zeros(heads, head_dim))

    def initialise(self, generator: Generator) -> None:
        """Normal, with the deviation of all other weights."""
        for weight in self.parameters():
            nn.init.normal_(weight, std=WEIGHT_DEVIATION, generator=generator)

    def products(
        self, queries: Tensor, keys: Tensor, query_positions: Tensor, key_positions: Tensor, rotate: Rotate
    ) -> Tensor:
        """[B, H, Q, K] both products, before scaling."""
        distances, index = distinct_distances(query_positions, key_positions)
        angles, dtype = rotation_angles(self.frequencies, distances), queries.dtype
        waves = torch.cat([angles.sin(), angles.cos()], dim=-1)
        known = (
            (waves.to(dtype) @ self.projection.T.to(dtype)).reshape(len(waves), queries.shape[1], -1).transpose(0, 1)
        )
        # (q + v) . W_R R(n) of all distances at once, [B, H, Q, N]; each pair then takes the column of its own.
        each = (queries + self.place[:, None].to(dtype)) @ known.mT
        scores = multiply_per_group(queries + self.content[:, None].to(dtype), keys.mT)
        return scores + each.gather(-1, index.expand_as(scores))
