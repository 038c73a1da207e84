"""Relative vectors that meet query and key (Huang et al. 2020, arXiv 2009.13658, method 4)."""

import torch
from torch import Generator, Tensor, nn

from lexbench.core.errors import ConfigError
from lexbench.kernels.heads import Rotate, multiply_per_group
from lexbench.parts.lab.encodings.base import WEIGHT_DEVIATION, Encoding, relative_positions


class Huang(Encoding):
    """A learned vector for each distance up to k meets the query and the key; all heads share the vectors.

        logit(i, j) = (q_i . k_j + q_i . a_n + k_j . a_n) / sqrt(d),   n = min(i - j, size)

    Without the last term these are `shaw`'s vectors for keys. It is transformers' `relative_key_query`, whose table of
    2 L - 1 distances a causal model needs half of; there no text may be longer, here all distances beyond `size` share
    a vector. Only this formula could be read, the paper's most promising; its methods 1 to 3 are not built.

    Args:
        head_dim: d, dimensions of a head.
        trained_length: L in tokens.
        size: k in tokens; None: L - 1.
    """

    shared = False
    held = 4

    def __init__(self, head_dim: int, trained_length: int, size: int | None = None) -> None:
        super().__init__()
        size = max(1, trained_length - 1) if size is None else size
        if size < 1:
            raise ConfigError(f"huang needs a size of at least 1 token, got {size}: leave it out for L - 1")
        self.vectors = nn.Parameter(torch.zeros(size + 1, head_dim))

    def initialise(self, generator: Generator) -> None:
        """Normal, with the deviation of all other weights."""
        nn.init.normal_(self.vectors, std=WEIGHT_DEVIATION, generator=generator)

    def products(
        self, queries: Tensor, keys: Tensor, query_positions: Tensor, key_positions: Tensor, rotate: Rotate
    ) -> Tensor:
        """[B, H, Q, K] the three products, before scaling."""
        vectors, scores = self.vectors.to(queries.dtype), multiply_per_group(queries, keys.mT)
        nearest = relative_positions(query_positions, key_positions).clamp(0, len(vectors) - 1).long()
        asked = (queries @ vectors.T).gather(-1, nearest.expand_as(scores))
        met = (vectors @ keys.mT).gather(-2, nearest.expand(*keys.shape[:2], *scores.shape[2:]))
        return scores + asked + met.repeat_interleave(scores.shape[1] // keys.shape[1], 1)
