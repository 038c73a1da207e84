"""Tokens of a prompt that each key head keeps."""

import torch
from torch import Tensor

ROUNDING_IN_EPSILONS = {torch.bfloat16: 1 / 4, torch.float16: 1 / 4}
"""Largest difference by rounding of the scores of equal tokens, in epsilons of a dtype; of others 32. In half precision
a number of a key may differ by an epsilon, and the norm of 64 of them by a fourth."""


def best(scores: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """[B, KV, P] whether a token is among the `count` of largest score [B, KV, P] in its head; at least one is.

    Scores that differ from the least chosen one by rounding only are equal, and of equal ones the first tokens are
    taken: equal tokens have equal keys in the first layer but for rounding, which differs by batch and kernel.

    Args:
        scores: of each token.
        count: tokens to choose.
        dtype: of the numbers from which the scores were computed.
    """
    count = max(1, count)
    least = scores.topk(count, dim=-1).values[..., -1:]
    width = least.abs() * ROUNDING_IN_EPSILONS.get(dtype, 32) * torch.finfo(dtype).eps
    above = scores > least + width
    equal = ~above & (scores >= least - width)
    return above | (equal & (equal.cumsum(-1) <= count - above.sum(-1, keepdim=True)))
