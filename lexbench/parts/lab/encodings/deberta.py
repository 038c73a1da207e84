"""DeBERTa's disentangled positions (He et al. 2021, arXiv 2006.03654)."""

import copy

import torch
from torch import Generator, Tensor, nn

from lexbench.core.errors import ConfigError
from lexbench.kernels.heads import Rotate, multiply_per_group
from lexbench.parts.lab.encodings.base import WEIGHT_DEVIATION, Encoding, relative_positions


class Deberta(Encoding):
    """Each relative distance has a vector; projected it is a key for the query, and a query for the key.

        logit(i, j) = (q_i . k_j + q_i . K_r[delta(i, j)] + Q_r[delta(j, i)] . k_j) / sqrt(3 d)
        K_r = P W_k,  Q_r = P W_q,   delta(i, j) = min(k + i - j, 2k - 1),  delta(j, i) = max(k - (i - j), 0)

    for j <= i (the paper's eq. 3 and 4). All layers share P, of 2k rows; a layer has its own W_k and W_q. All distances
    of k and more share a vector, so any length is defined. transformers and the authors' code take delta(i, j) in both
    terms; here the third has the paper's. The absolute positions that DeBERTa adds before its last layers, for masked
    tokens, are not part of this.

    Args:
        head_dim: d, dimensions of a head.
        heads: H, query heads; each has its own rows of W_q.
        kv_heads: key heads; each has its own rows of W_k.
        width: of the network and of P.
        layers: of the network.
        trained_length: tokens.
        size: k in tokens, at least 1; None: trained_length. The paper has 512, its trained length.
    """

    held = 4

    def __init__(
        self,
        head_dim: int,
        heads: int,
        kv_heads: int,
        width: int,
        layers: int,
        trained_length: int,
        size: int | None = None,
    ) -> None:
        super().__init__()
        self.size = trained_length if size is None else size
        if self.size < 1:
            raise ConfigError(f"deberta needs a size of at least 1 token, got {size}: the paper has 512")
        self.table = nn.Parameter(torch.zeros(2 * self.size, width))
        self.to_keys = nn.Parameter(torch.zeros(layers, kv_heads, width, head_dim))
        self.to_queries = nn.Parameter(torch.zeros(layers, heads, width, head_dim))
        self.layer = 0

    def initialise(self, generator: Generator) -> None:
        """Draw projections like the decoder's weights, P with deviation 1, the size of a normed input."""
        nn.init.normal_(self.table, generator=generator)
        for weight in (self.to_keys, self.to_queries):
            nn.init.normal_(weight, std=WEIGHT_DEVIATION, generator=generator)

    def at(self, layer: int) -> Encoding:
        """The same table, with the projections of that layer."""
        other = copy.copy(self)
        other.layer = layer
        return other

    def scaling(self, head_dim: int) -> float:
        """Factor 1 / sqrt(3 d) on the logits, as three products are added."""
        return super().scaling(head_dim) / float(3**0.5)

    def products(
        self, queries: Tensor, keys: Tensor, query_positions: Tensor, key_positions: Tensor, rotate: Rotate
    ) -> Tensor:
        """[B, H, Q, K] the three products, before scaling."""
        scores, dtype = multiply_per_group(queries, keys.mT), queries.dtype
        between = relative_positions(query_positions, key_positions).clamp_min(0).long()
        ahead = (self.size + between).clamp_max(2 * self.size - 1).expand_as(scores)
        behind = (self.size - between).clamp_min(0).expand_as(scores)
        table = self.table.to(dtype)
        known = table @ self.to_keys[self.layer].to(dtype)  # [KV, 2k, D]
        asking = (table @ self.to_queries[self.layer].to(dtype)).expand(len(keys), -1, -1, -1)  # [B, H, 2k, D]
        asked = multiply_per_group(queries, known.mT.expand(len(queries), -1, -1, -1)).gather(-1, ahead)
        return scores + asked + multiply_per_group(asking, keys.mT).gather(-2, behind)
