"""Stick-breaking attention (Tan et al. 2024, arXiv 2410.17980)."""

import torch
from torch import Tensor
from torch.nn import functional as F

from lexbench.parts.lab.encodings.base import Encoding


class StickBreaking(Encoding):
    """Each key takes a share of the weight that nearer keys have left, from the nearest on; no softmax.

        weight(i, j) = beta_ij prod_{j < l < i} (1 - beta_il),   j < i,   beta_ij = sigmoid(q_i . k_j / sqrt(d))
        weight(i, i) = prod_{l < i} (1 - beta_il)

    What all keys have left goes to the query's own token; its own logit plays no part. The authors' library returns it
    beside the sum over j < i: its tests add it to the own value, as here; an early model of theirs (read, not run)
    leaves it out. So weights sum to 1, and a softmax of their logarithms, which `rescore` gives, is the weights
    themselves. The nearest of equal keys wins: order needs no other positions. An untrained model halves the weight
    from one key to the next.
    """

    rescores = True
    held = 6

    def __init__(self) -> None:
        super().__init__()

    def rescore(
        self, scores: Tensor, seen: Tensor, queries: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> Tensor:
        """[B, H, Q, K] logarithms of the weights."""
        own = query_positions[..., :, None] == key_positions[..., None, :]
        own = own[:, None] if own.dim() == 3 else own
        # ln(1 - beta) of every key that may take a share; the own token and later keys take none.
        left = F.logsigmoid(-scores).masked_fill(own | ~seen, 0.0)
        # For each key the sum over later ones, which are nearer.
        after = F.pad(left.flip(-1).cumsum(-1).flip(-1)[..., 1:], (0, 1))
        # The own token gets what all earlier keys have left.
        return torch.where(own, left.sum(-1, keepdim=True), F.logsigmoid(scores) + after)
