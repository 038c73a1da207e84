"""Tokens of a prompt that each key head keeps."""

import torch
from torch import Tensor
from torch.nn import functional as F

from lexbench.core.record import Refused
from lexbench.kernels.heads import multiply_per_group
from lexbench.parts.kv.forms import SNAPKV_POOLED_KEYS, SNAPKV_WINDOW_QUERIES


def norm(keys: Tensor) -> Tensor:
    """[B, KV, P] scores of keys [B, KV, P, D]: small keys draw attention (Devoto et al. 2024, arXiv 2406.11430)."""
    precise = keys.to(torch.promote_types(keys.dtype, torch.float32))
    return -precise.square().sum(-1).sqrt()


def snapkv(queries: Tensor, keys: Tensor, scaling: float) -> Tensor:
    """[B, KV, P] scores by the weights of the prompt's last 64 queries, pooled over 5 keys (arXiv 2404.14469).

    As kvpress 0.5.5 has it: the mean over these queries of weights on the keys before them, pooled, then the mean over
    the query heads of a key head; the 64 tokens themselves are always kept.

    Args:
        queries: [B, H, W, D] rotated, of the last tokens of the prompt.
        keys: [B, KV, P, D] rotated.
        scaling: factor on the logits.
    """
    total, count = keys.shape[2], min(SNAPKV_WINDOW_QUERIES, queries.shape[2])
    if total <= SNAPKV_WINDOW_QUERIES:
        raise Refused(
            f"kv by snapkv looks back from the last {SNAPKV_WINDOW_QUERIES} tokens of a prompt, it has {total}: use "
            "by=norm"
        )
    asking = queries[:, :, -count:]
    precise = torch.promote_types(asking.dtype, torch.float32)
    scores = multiply_per_group(asking.to(precise) * scaling, keys.to(precise).mT)
    later = torch.arange(total, device=keys.device) > torch.arange(total - count, total, device=keys.device)[:, None]
    weights = scores.masked_fill(later, -torch.inf).softmax(-1)[..., : total - count].mean(2)
    pooled = F.avg_pool1d(weights, kernel_size=SNAPKV_POOLED_KEYS, padding=SNAPKV_POOLED_KEYS // 2, stride=1)
    mean = pooled.reshape(len(pooled), keys.shape[1], -1, pooled.shape[2]).mean(2)
    return F.pad(mean, (0, count), value=float(mean.max()) + 1)


def best(scores: Tensor, count: int) -> Tensor:
    """[B, KV, P] whether a token is among the `count` of largest score [B, KV, P] in its head; at least one is."""
    places = scores.topk(max(1, count), dim=-1).indices
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, places, True)
