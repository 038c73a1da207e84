"""Tokens of a prompt that each key head keeps."""

import torch
from torch import Tensor
from torch.nn import functional as F

from lexbench.core.record import Refused
from lexbench.kernels.heads import Rotate, multiply_per_group
from lexbench.kernels.spans import position_tensor
from lexbench.parts.kv.forms import (
    EXPECTED_FIRST_TOKENS,
    EXPECTED_LATER_POSITIONS,
    SNAPKV_POOLED_KEYS,
    SNAPKV_WINDOW_QUERIES,
)

ROUNDING_IN_EPSILONS = {torch.bfloat16: 1 / 4, torch.float16: 1 / 4}
"""Largest difference by rounding of the scores of equal tokens, in epsilons of a dtype; of others 32. In half precision
a number of a key may differ by an epsilon, and the norm of 64 of them by a fourth."""
ROTATED_TOGETHER_POSITIONS = 32
"""Positions to which all unit vectors are rotated at once: head size x query heads x 32 x head size numbers."""


def norm(keys: Tensor) -> Tensor:
    """[B, KV, P] scores of keys [B, KV, P, D]: small keys draw attention (Devoto et al. 2024, arXiv 2406.11430)."""
    precise = keys.to(torch.promote_types(keys.dtype, torch.float32))
    return -precise.square().sum(-1).sqrt()


def snapkv(queries: Tensor, keys: Tensor, rotate: Rotate, scaling: float) -> Tensor:
    """[B, KV, P] scores by the weights of the prompt's last 64 queries, pooled over 5 keys (arXiv 2404.14469).

    As kvpress 0.5.5 has it: the mean over these queries of weights on the keys before them, pooled, then the mean over
    the query heads of a key head; the 64 tokens themselves are always kept.

    Args:
        queries: [B, H, Q, D] of the last Q >= 64 of P tokens, before `rotate`.
        keys: [B, KV, P, D], before `rotate`.
        rotate: rotates vectors to positions.
        scaling: factor on the logits.
    """
    total, count = keys.shape[2], SNAPKV_WINDOW_QUERIES
    if total <= SNAPKV_WINDOW_QUERIES:
        raise Refused(
            f"kv by snapkv looks back from the last {SNAPKV_WINDOW_QUERIES} tokens of a prompt, it has {total}: use "
            "by=norm"
        )
    asking = rotate(queries[:, :, -count:], position_tensor(total - count, total, queries.device))
    keys = rotate(keys, position_tensor(0, total, keys.device))
    precise = torch.promote_types(asking.dtype, torch.float32)
    scores = multiply_per_group(asking.to(precise) * scaling, keys.to(precise).mT)
    later = torch.arange(total, device=keys.device) > torch.arange(total - count, total, device=keys.device)[:, None]
    weights = scores.masked_fill(later, -torch.inf).softmax(-1)[..., : total - count].mean(2)
    pooled = F.avg_pool1d(weights, kernel_size=SNAPKV_POOLED_KEYS, padding=SNAPKV_POOLED_KEYS // 2, stride=1)
    mean = pooled.reshape(len(pooled), keys.shape[1], -1, pooled.shape[2]).mean(2)
    return F.pad(mean, (0, count), value=float(mean.max()) + 1)


def expected_attention(queries: Tensor, keys: Tensor, values: Tensor, rotate: Rotate, scaling: float) -> Tensor:
    """[B, KV, P] scores by Expected Attention (Devoto, Jeblick and Jegou 2025, arXiv 2510.00636).

    As kvpress 0.5.5 has it with its defaults: queries behind the prompt are normal, with the mean m and the covariance
    C of the prompt's own before rotation, both under the mean rotation of the next 512 positions. For a key k of a
    query head the expected power of its logit, scaled by s, is

        z = exp(s m k + s^2 k C k / 2)

    Its share of all keys, as the mean over the query heads of a key head, times the norm of the value is the score.
    The first 4 tokens are always kept, and count neither as queries nor in the shares.

    Args:
        queries: [B, H, P, D], before `rotate`.
        keys: [B, KV, P, D], before `rotate`.
        values: [B, KV, P, D].
        rotate: rotates vectors to positions.
        scaling: s.
    """
    total, first = keys.shape[2], EXPECTED_FIRST_TOKENS
    if total <= first:
        raise Refused(f"kv by expected needs a prompt of more than {first} tokens, it has {total}: use by=norm")
    precise = torch.promote_types(queries.dtype, torch.float32)
    asking = queries[:, :, first:].to(precise)
    mean = asking.mean(2, keepdim=True)
    apart = asking - mean
    later = mean_rotation(rotate, mean, total)
    spread = later.mT @ (apart.mT @ apart / asking.shape[2]) @ later
    known = rotate(keys, position_tensor(0, total, keys.device))[:, :, first:].to(precise)
    logits = multiply_per_group(mean @ later * scaling, known.mT)[:, :, 0]
    batch, groups, count, width = known.shape
    grouped = spread.reshape(batch, groups, -1, width, width)
    logits += ((known[:, :, None] @ grouped) * known[:, :, None]).sum(-1).flatten(1, 2) * scaling**2 / 2
    shares = logits.softmax(-1).reshape(batch, groups, -1, count).mean(2)
    scores = shares * values[:, :, first:].to(precise).norm(dim=-1)
    return F.pad(scores, (first, 0), value=float(scores.max()) + 1)


def mean_rotation(rotate: Rotate, like: Tensor, start: int) -> Tensor:
    """[H, D, D] for each query head the matrix M of which x M is the mean of x rotated to the next 512 positions.

    Args:
        rotate: rotates vectors to positions.
        like: [B, H, T, D] of the number of heads, dtype and device.
        start: first position.
    """
    heads, width = like.shape[1], like.shape[3]
    units = torch.eye(width, dtype=like.dtype, device=like.device)[:, None, None]
    added = torch.zeros(width, heads, width, dtype=like.dtype, device=like.device)
    for begin in range(start, start + EXPECTED_LATER_POSITIONS, ROTATED_TOGETHER_POSITIONS):
        places = position_tensor(begin, begin + ROTATED_TOGETHER_POSITIONS, like.device)
        added += rotate(units.expand(-1, heads, len(places), -1), places).sum(2)
    return added.transpose(0, 1) / EXPECTED_LATER_POSITIONS


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
