"""Rotations that differ by token or by head, made of a model's own."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lexbench.core.attention import HeadRatios
from lexbench.kernels.dense import Rotate


def keeping_first(count: int, own: Rotate, changed: Rotate) -> Rotate:
    """The first `count` tokens as the model itself rotates them, the others changed."""

    def rotate(vectors: Tensor, positions: Tensor) -> Tensor:
        first = positions < count
        turned = changed(vectors, positions)
        return torch.where(first[:, None], own(vectors, positions), turned) if bool(first.any()) else turned

    return rotate


def per_head(ratios: Sequence[float], rotate: Rotate) -> Rotate:
    """Positions of key head h, and of the query heads that share it, divided by ratios[h]."""

    def turn(vectors: Tensor, positions: Tensor) -> Tensor:
        groups, places = (
            vectors.chunk(len(ratios), dim=1),
            positions.to(torch.float64),
        )  # whole ones would become float32
        return torch.cat([rotate(g, places / ratio) for g, ratio in zip(groups, ratios, strict=True)], dim=1)

    return turn


def ranked_ratios(query: Tensor, keys: Tensor, rotate: Rotate, scaling: float, rule: HeadRatios) -> tuple[float, ...]:
    """Each key head's ratio: the smallest for the head that notices most keys.

    Args:
        query: [1, H, 1, D], the prompt's last, not rotated.
        keys: [1, KV, K, D] of the whole prompt, not rotated.
        rotate: at a position, before any ratio.
        scaling: of the logits.
        rule: the ratios and the threshold, in mean weights, above which a key is noticed.
    """
    positions = torch.arange(keys.shape[2], device=keys.device)
    asking, known = rotate(query, positions[-1:]), rotate(keys, positions)
    weights = (asking.reshape(keys.shape[1], -1, query.shape[3]) @ known[0].mT * scaling).float().softmax(-1)
    noticed = (weights > rule.threshold / keys.shape[2]).sum((1, 2)).cpu()
    ranks = noticed.argsort(descending=True, stable=True).argsort()
    return tuple(rule.ratios[int(rank)] for rank in ranks)
