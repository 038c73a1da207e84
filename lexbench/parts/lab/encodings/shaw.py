"""Relative position representations (Shaw et al. 2018, NAACL, arXiv 1803.02155)."""

from types import MappingProxyType

import torch
from torch import Generator, Tensor, nn

from lexbench.core.errors import ConfigError
from lexbench.kernels.heads import multiply_per_group
from lexbench.parts.lab.encodings.base import WEIGHT_DEVIATION, Encoding, relative_positions


class Shaw(Encoding):
    """A learned vector for each distance up to k is added to the key, another to the value; all heads share them.

        logit(i, j) = q_i . (k_j + a_n) / sqrt(d),   output(i) = sum_j weight(i, j) (v_j + b_n),   n = min(i - j, size)

    The paper clips j - i to [-k, k]; of its 2k + 1 vectors a causal model needs the k + 1 at or before the query: a_n
    here is its a^K_{-n}, and b_n its a^V_{-n}. The paper itself finds that the vectors for keys may be enough: then
    leave out the others by values=false. All distances beyond `size` share one vector, so any length is defined.

    Vectors that all heads share are those of the paper's section 3.3 and of its big model, with k = 8; its base model,
    with k = 16, has vectors for each head.

    Args:
        head_dim: d, dimensions of a head.
        size: k, tokens; 16 in the paper's base model.
        values: whether vectors b are added to the values, too.
    """

    before = MappingProxyType({"values": False})
    shared = False
    rescores = True
    held = 4

    def __init__(self, head_dim: int, size: int = 16, values: bool = True) -> None:
        super().__init__()
        if size < 1:
            raise ConfigError(f"shaw needs a size of at least 1 token, got {size}: the paper has 16")
        self.vectors = nn.Parameter(torch.zeros(size + 1, head_dim))
        self.value_vectors = nn.Parameter(torch.zeros(size + 1, head_dim)) if values else None

    def initialise(self, generator: Generator) -> None:
        """Normal, with the deviation 0.02 of all other weights; the paper does not state one."""
        for vectors in self.parameters():
            nn.init.normal_(vectors, std=WEIGHT_DEVIATION, generator=generator)

    def rescore(
        self, scores: Tensor, seen: Tensor, queries: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> Tensor:
        """[B, H, Q, K] scores plus q . a."""
        # All q . a_n at once, [B, H, Q, size + 1]; each pair then takes the column of its distance.
        table = queries @ self.vectors.to(queries.dtype).T * self.scaling(queries.shape[-1])
        nearest = self.vector_indices(query_positions, key_positions)
        return scores + table.gather(-1, nearest.expand_as(scores))

    def mix(self, logits: Tensor, values: Tensor, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """[B, H, Q, D] means of values plus those of the vectors b."""
        weights = logits.softmax(-1)
        output = multiply_per_group(weights, values)
        if self.value_vectors is None:
            return output
        # Sum the weights of each distance, then multiply by its vector.
        vectors = self.value_vectors.to(weights.dtype)
        index = self.vector_indices(query_positions, key_positions).expand_as(weights)
        each = weights.new_zeros(*weights.shape[:3], len(vectors)).scatter_add(-1, index, weights)
        return output + each @ vectors

    def vector_indices(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """[.., 1, Q, K] indices n of the vectors, fractions cut off; 0 for later keys."""
        return relative_positions(query_positions, key_positions).clamp(0, len(self.vectors) - 1).long()
