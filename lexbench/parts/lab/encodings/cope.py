"""CoPE: contextual position encoding (Golovneva et al. 2024, arXiv 2405.18719)."""

import torch
from torch import Tensor, nn

from lexbench.core.errors import ConfigError
from lexbench.parts.lab.encodings.base import Encoding


class Cope(Encoding):
    """The distance of a key is the sum of the query's gates on all keys from that key to the query.

        g(i, j) = sigmoid(q_i . k_j / sqrt(d)),   p(i, j) = min(g(i, j) + ... + g(i, i), size - 1)
        logit(i, j) = q_i . k_j / sqrt(d) + (p' - p) q_i . e[floor p] + (p - floor p) q_i . e[p'],   p' = floor p + 1

    A query's own key is at g(i, i), not at 0. Every layer has its own vectors e, shared by its heads; they begin at 0,
    so a model begins without positions. Gates use scaled logits, and q . e is not scaled, as in the code of the paper's
    appendix; its formulas have no scale at all, and the released code (read, not run) divides q . e by sqrt(d), too,
    unless told otherwise. Gates of later keys are 0. Not the CoPE of arXiv 2602.05258, which clips RoPE.

    Each score needs memory for its gate, its position, and two indices and values of a table; no fused kernel computes
    it.

    Args:
        head_dim: d, dimensions of a head.
        size: vectors, at least 2; positions end at size - 1.
    """

    shared = False
    rescores = True
    held = 10

    def __init__(self, head_dim: int, size: int = 64) -> None:
        super().__init__()
        if size < 2:
            raise ConfigError(f"cope needs a size of at least 2 vectors, got {size}: the default is 64")
        self.vectors = nn.Parameter(torch.zeros(size, head_dim))

    def rescore(
        self, scores: Tensor, seen: Tensor, queries: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> Tensor:
        """[B, H, Q, K] scores plus q . e at positions between two vectors."""
        places = self.gate_distances(scores, seen)
        table = (queries @ self.vectors.to(queries.dtype).T).to(scores.dtype)  # autocast lowers their precision
        # No gradient through floor; one row less, so that floor p + 1 exists also at the last position, where its share
        # is 1.
        below = places.detach().floor().clamp_max(len(self.vectors) - 2)
        index = below.long()
        low, high = table.gather(-1, index), table.gather(-1, index + 1)
        return scores + torch.lerp(low, high, places - below)

    def gate_distances(self, scores: Tensor, seen: Tensor) -> Tensor:
        """[B, H, Q, K] distances p(i, j), from scaled products."""
        # A later key must add nothing: unmasked, it would count in p of every key before it.
        gates = scores.sigmoid().masked_fill(~seen, 0.0)
        # From key j up to the query: a cumulative sum from the right.
        return gates.flip(-1).cumsum(-1).flip(-1).clamp_max(len(self.vectors) - 1)
