"""Relative position representations (Shaw et al. 2018, NAACL, arXiv 1803.02155)."""

import torch
from torch import Generator, Tensor, nn

from lexbench.encodings.base import Encoding, apart


class Shaw(Encoding):
    """A learned vector for each distance up to k is added to the key, in each layer; all heads share the vectors.

        logit(i, j) = q_i . (k_j + a_n) / sqrt(d),   n = min(i - j, size)

    The paper clips j - i to [-k, k]; of its 2k + 1 vectors a causal model needs the k + 1 at or before the query: a_n
    here is its a^K_{-n}. The paper also adds vectors a^V to the values. They are left out, as in other comparisons of
    encodings: with them an output is not a weighted mean of the values, so attention weights alone would not describe
    it; and the paper itself finds that the vectors for keys may be enough. All distances beyond `size` share one
    vector, so any length is defined.

    Args:
        head_dim: d, dimensions of a head.
        size: k, tokens; 16 in the paper.
    """

    shared = False
    rescores = True
    held = 4

    def __init__(self, head_dim: int, size: int = 16) -> None:
        super().__init__()
        if size < 1:
            raise ValueError(f"shaw needs a size of at least 1 token, got {size}: the paper has 16")
        self.vectors = nn.Parameter(torch.zeros(size + 1, head_dim))

    def initialise(self, generator: Generator) -> None:
        """Normal, with the deviation 0.02 of all other weights; the paper does not state one."""
        nn.init.normal_(self.vectors, std=0.02, generator=generator)

    def rescore(
        self, scores: Tensor, seen: Tensor, queries: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> Tensor:
        """[B, H, Q, K] scores plus q . a."""
        # All q . a_n at once, [B, H, Q, size + 1]; each pair then takes the column of its distance.
        table = queries @ self.vectors.to(queries.dtype).T * self.scaling(queries.shape[-1])
        nearest = self.places(query_positions, key_positions)
        return scores + table.gather(-1, nearest.expand_as(scores))

    def places(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """[.., 1, Q, K] indices n of the vectors, fractions cut off; 0 for later keys."""
        return apart(query_positions, key_positions).clamp(0, len(self.vectors) - 1).long()
