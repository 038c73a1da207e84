"""SSMax: a softmax that grows sharper with the number of keys (Nakanishi 2025, arXiv 2501.19399)."""

import math

import torch
from torch import Tensor, nn

from lexbench.core.errors import ConfigError
from lexbench.parts.lab.encodings.base import Encoding
from lexbench.parts.lab.encodings.wrappers import EncodingWrapper


class Ssmax(EncodingWrapper):
    """Logits times ln n with a learned factor for each head of each layer; n keys are seen.

        logit(i, j) = s_h ln(n) q_i . k_j / sqrt(d),   n = i + 1

    A softmax of n equal logits falls as 1/n; here the largest weight need not fade as the text grows. s begins so that
    the mean factor over the trained length L is 1: s = L / ln(L!). The paper also tries a learned term s ln(n) + b and
    leaves it out, as here: it harms longer texts.

    Args:
        over: the inner encoding; the paper has rope.
        heads: H, query heads.
        trained_length: L in tokens, at least 2.
    """

    excludes = frozenset({"mix", "products", "qk", "rescore"})
    shared = False

    def __init__(self, over: Encoding, heads: int, trained_length: int) -> None:
        super().__init__(over)
        if trained_length < 2:
            raise ConfigError(f"ssmax needs a trained length of at least 2, got {trained_length}: ln 1 is 0")
        # lgamma(L + 1) = ln L! = sum of ln n over n = 1 .. L, so s times the mean of ln n is 1.
        self.s = nn.Parameter(torch.full((heads,), trained_length / math.lgamma(trained_length + 1)))

    def prepare(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Multiply each query by s ln n."""
        queries, keys = self.over.prepare(queries, keys)
        total, count = keys.shape[2], queries.shape[2]
        # n = i + 1 by the index of the token: a query sees as many keys wherever positions stand.
        seen = torch.arange(total - count + 1, total + 1, device=queries.device, dtype=torch.float64).log()
        return queries * (self.s[:, None, None] * seen[:, None]).to(queries.dtype), keys
