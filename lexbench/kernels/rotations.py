"""Rotations that differ by token, by head or by band of pairs, built from the rotation of a model."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lexbench.core.attention import HeadRatios
from lexbench.kernels.heads import Rotate


def rotate_keeping_first(count: int, own: Rotate, changed: Rotate) -> Rotate:
    """Rotate the first `count` tokens with `own`, the others with `changed`."""

    def rotate(vectors: Tensor, positions: Tensor) -> Tensor:
        first = positions < count
        turned = changed(vectors, positions)
        # To look at positions on a GPU waits for it.
        some = first.is_cuda or bool(first.any())
        return torch.where(first[:, None], own(vectors, positions), turned) if some else turned

    return rotate


def rotate_per_head(ratios: Sequence[float], rotate: Rotate) -> Rotate:
    """Rotation to positions divided by ratios[h], for key head h and the query heads that share it."""

    def turn(vectors: Tensor, positions: Tensor) -> Tensor:
        places = positions.to(torch.float64)  # divided as integers, they would become float32
        groups = vectors.chunk(len(ratios), dim=1)
        return torch.cat([rotate(g, places / ratio) for g, ratio in zip(groups, ratios, strict=True)], dim=1)

    return turn


def per_band(rotate: Rotate) -> Rotate:
    """Rotate pairs (p, p + D / 2) to positions [T], or [T, bands] where each band of pairs has its own."""

    def turn(vectors: Tensor, positions: Tensor) -> Tensor:
        if positions.dim() == 1:
            return rotate(vectors, positions)
        return joined_bands(lambda places: rotate(vectors, places), positions, vectors.shape[-1] // 2)

    return turn


def joined_bands(make: Callable[[Tensor], Tensor], positions: Tensor, row: int) -> Tensor:
    """Numbers of pairs [..., width], those of each band as `make` gives them for its positions.

    Args:
        make: from [T] positions to [..., width] numbers of all pairs.
        positions: [T, bands].
        row: numbers from the first pair to the last: of pairs (p, p + width / 2), half of the width.
    """
    count, parts = positions.shape[1], []
    for band in range(count):
        made = make(positions[:, band])
        # Copied, so that a band does not keep the numbers of all others in memory.
        parts.append(made.reshape(*made.shape[:-1], -1, count, row // count)[..., band, :].clone())
    return torch.stack(parts, dim=-2).flatten(-3)


def scale_of(rotate: Rotate, vectors: Tensor) -> Tensor:
    """[1, H, 1, D] factor by which a rotation scales each dimension of vectors [B, H, T, D]."""
    # Ones that are rotated by 0 are that factor.
    one = vectors.new_ones(1, vectors.shape[1], 1, vectors.shape[3])
    return rotate(one, torch.zeros(1, dtype=torch.float64, device=vectors.device))


def ranked_ratios(query: Tensor, keys: Tensor, rotate: Rotate, scaling: float, rule: HeadRatios) -> tuple[float, ...]:
    """The ratio of each key head: the smallest for the head that notices most keys.

    Args:
        query: [1, H, 1, D] of the prompt's last token, before rotation.
        keys: [1, KV, K, D] of the whole prompt, before rotation.
        rotate: rotates vectors to positions, without ratios.
        scaling: factor on the logits.
        rule: the ratios, and the threshold: a key is noticed above so many times the mean weight.
    """
    positions = torch.arange(keys.shape[2], device=keys.device)
    asking, known = rotate(query, positions[-1:]), rotate(keys, positions)
    weights = (asking.reshape(keys.shape[1], -1, query.shape[3]) @ known[0].mT * scaling).float().softmax(-1)
    noticed = (weights > rule.threshold / keys.shape[2]).sum((1, 2)).cpu()
    # The argsort of an argsort is the rank; stable, so that equal heads keep their order.
    ranks = noticed.argsort(descending=True, stable=True).argsort()
    return tuple(rule.ratios[int(rank)] for rank in ranks)
