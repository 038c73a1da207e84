"""Attention resolution, and the mean attention logit at each distance, without the matrix of all logits (LEX).

    s[n] = mean of logit(i, i - n) over the queries i that see the key n tokens back       (arXiv 2212.10554, eq. 3, 13)
    R(s) = sum_n p[n] (p[n] - p[n + 1]),  p = softmax of s                                                   (eq. 4)

Summed over i, q(i) . k(i - n) is the cross-correlation of queries and keys: for each dimension a product of Fourier
transforms, in O(L log L) time and O(L) memory. Most structures of attention are a few such sums:

    window, sinks      near distances of the sum over all keys, far distances of the sum over the first keys
    near and far       a range of distances for each rotation
    stairs             the same, separately for the queries of each remainder
    blocks, chunks     sums of blocks of queries with keys of the own block and the one before; older keys: the rest
    xPos               each pair of dimensions alone, then times e^(decay n), which does not grow with the position
    biases             added where they depend on the distance alone, as in ALiBi

All others are summed along the diagonals of the logits, some rows at a time: also exact, in O(L^2) time.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lexbench.core.attention import (
    Attention,
    Blocks,
    Chunks,
    Region,
    Remap,
    Remapping,
    Segments,
    Stairs,
    TopKMask,
    Window,
    regions_of,
)
from lexbench.kernels import chunked
from lexbench.kernels.chunked import Places
from lexbench.kernels.logits import Group, Logits, logit_rows, split_by_key_head, sum_by_distance
from lexbench.kernels.spans import fold_blocks

MAX_FOURIER_NUMBERS = 1 << 18
"""Numbers of Fourier transforms in memory at once."""


def curve_resolution(curve: Tensor) -> Tensor:
    """R(s) of curves [..., L], in (0, 1], over all L given distances.

    NaN in s means that no key is seen; it has weight 0. After the last distance p[L] = 0. Written out,
    p[n] (p[n] - p[n + 1]) = (p[n]^2 - p[n + 1]^2 + (p[n] - p[n + 1])^2) / 2, and the squares cancel but for the first:

        R = (p[0]^2 + sum_n (p[n] - p[n + 1])^2) / 2

    So R is large where weights change much from one distance to the next. LEX expects this where they fall steeply from
    the nearest distance on. But noise and oscillation of s raise R, too, and so does weight on a few distances
    anywhere: the last step, to 0, adds p[L - 1]^2, and the mirrored curve has the same R. A flat curve has R = 1 / L^2.
    Look at the curve before you interpret R as resolution.

    The values published with the definition (0.08 to 1.08) are scaled by a power of ten that the paper does not state:
    by the formula R cannot exceed 1. Compare orders and ratios, not values.
    """
    weights = curve.masked_fill(curve.isnan(), -torch.inf).softmax(-1)
    return (weights * (weights - F.pad(weights[..., 1:], (0, 1)))).sum(-1)


def well_seen_distances(length: int) -> int:
    """Seven eighths of the length: under full attention, an eighth of the queries sees each distance below it.

    At the largest distances s[n] is the mean of a few logits; at the last one, of a single pair.
    """
    return max(1, 7 * length // 8)


def mean_logits(queries: Tensor, keys: Tensor, logits: Logits) -> Tensor:
    """[H, T] float64 s[n] of one text: the mean logit at each distance, NaN where no key is seen.

    Args:
        queries: [1, H, T, D], before rotation.
        keys: [1, KV, T, D], before rotation; H / KV query heads share a key head.
        logits: how logits follow from them.
    """
    return torch.cat([_curve(group, logits) for group in split_by_key_head(queries, keys, logits, torch.float64)])


def _curve(group: Group, logits: Logits) -> Tensor:
    """[G, T] mean logits s[n] at distance n of each query head."""
    if logits.made is not None:
        return _by_rows(group, logits)
    attention, biases = logits.attention, _biases(group, logits)
    match attention.remap, attention.mask:
        case ((None | Remap() | Stairs()), (None | Window())) if biases is not None:
            sums = _by_stretches(group, attention, logits.decay)
        case (None, Blocks() as rule) | (Chunks() as rule, None) if biases is not None:
            sums = _by_blocks(group, rule, logits.decay)
        case _:
            return _by_rows(group, logits)
    return (
        sums / _queries_per_distance(attention.mask, group.length).to(sums.device) + biases
    )  # 0 / 0 where no key is seen


def _biases(group: Group, logits: Logits) -> Tensor | None:
    """[G, T] bias at each distance, 0 without a bias; None where it depends on more than the distance.

    Three rows of the matrix are compared to tell.
    """
    total, device = group.length, group.keys.device
    found = torch.zeros(group.queries.shape[1], total, dtype=torch.float64, device=device)
    # A bias of the distance alone gives shorter rows that are beginnings of the longest one.
    for last in (total - 1, total // 2, total // 3):
        row = logits.biases(group.heads, np.array([last]), np.arange(last + 1), device)
        if row is None:
            return found
        row = row[:, 0].flip(-1)
        if last == total - 1:
            found = row
        elif not torch.allclose(row, found[:, : last + 1], rtol=1e-9, atol=1e-12):
            return None
    return found


def _by_rows(group: Group, logits: Logits) -> Tensor:
    """[G, T] s[n], summed over the matrix of logits."""
    sums = torch.zeros(group.queries.shape[1], group.length, dtype=torch.float64, device=group.keys.device)
    pairs = torch.zeros_like(sums)
    for scores in logit_rows(group, logits):
        seen = scores > -torch.inf
        sums[:, : scores.shape[2]] += sum_by_distance(scores.masked_fill(~seen, 0.0))
        pairs[:, : scores.shape[2]] += sum_by_distance(seen.double())
    return sums / pairs


def _queries_per_distance(mask: Window | TopKMask | Blocks | Segments | None, total: int) -> Tensor:
    """[T] queries that see the key at each distance."""
    distances = torch.arange(total, dtype=torch.float64)
    left = total - distances
    if isinstance(mask, Window):
        return torch.where(distances < mask.size, left, left.clamp_max(mask.sinks))
    if isinstance(mask, Blocks) and mask.size < total:
        size = mask.size
        # Beyond a block, only queries at place n - size or later in their block see the key, from the second block on.
        inside = distances - size
        far = (total // size - 1) * (size - inside) + (total % size - inside).clamp_min(0)
        return torch.where(inside <= 0, left, torch.where(inside < size, far, 0.0))
    return left


# Ranges of distances


@dataclass(frozen=True)
class _Stretch:
    """A region at distances from `begin` to `end` (excluded), for queries with i mod step = rest."""

    region: Region
    begin: int
    end: float
    step: int = 1
    rest: int = 0


def _stretches(remap: Remapping | None) -> Iterator[_Stretch]:
    found = regions_of(remap)
    if isinstance(remap, Remap):
        # `Remap.regions` has the near region first.
        yield _Stretch(found[0], 0, remap.window)
        yield _Stretch(found[1], remap.window, math.inf)
    elif isinstance(remap, Stairs):
        each, begin = iter(found), 0
        for number, (count, step) in enumerate(remap.steps):
            end = math.inf if number == len(remap.steps) - 1 else begin + count * step
            for rest in range(step):
                yield _Stretch(next(each), begin, end, step, rest)
            begin += count * step
    else:
        yield _Stretch(found[0], 0, math.inf)


def _by_stretches(group: Group, attention: Attention, decay: Tensor | None) -> Tensor:
    """[G, T] sums at each distance: over all keys inside the window, over the sinks beyond it."""
    total, mask = group.length, attention.mask
    size, sinks = (mask.size, mask.sinks) if isinstance(mask, Window) else (total, 0)
    sums = torch.zeros(group.queries.shape[1], total, dtype=torch.float64, device=group.keys.device)
    places = torch.arange(total, device=sums.device)[:, None]
    for stretch in _stretches(attention.remap):
        end = int(min(stretch.end, total))
        near, far = slice(stretch.begin, min(end, size)), slice(max(stretch.begin, size), end)
        asking = _rotate_group(group, group.queries, stretch.region.query)
        # Stairs have a rotation for each remainder of i: the other queries are zeros and add nothing.
        asking = asking * (places % stretch.step == stretch.rest) if stretch.step > 1 else asking
        known = _rotate_group(group, group.keys, stretch.region.key)
        if near.start < near.stop:
            sums[:, near] += _block_sums(asking, known, total, 0, decay)[:, near]
        # Beyond the window only the first keys are seen: the others are zeros.
        if sinks and far.start < far.stop:
            sums[:, far] += _block_sums(asking, known * (places < sinks), total, 0, decay)[:, far]
    return sums


def _rotate_group(group: Group, vectors: Tensor, places: Places) -> Tensor:
    positions = places(np.arange(group.length))
    return group.rotate(vectors, torch.from_numpy(positions).to(vectors.device))


# Blocks


def _by_blocks(group: Group, rule: Blocks | Chunks, decay: Tensor | None) -> Tensor:
    """[G, T] sums at each distance over keys of the own block, the one before, and, for chunks, all older ones."""
    total = group.length
    size = min(rule.size, total)
    own, before, older, key = chunked.block_positions(rule)
    known = _rotate_group(group, group.keys, key)
    sums = _block_sums(_rotate_group(group, group.queries, own), known, size, 0, decay)
    sums += _block_sums(_rotate_group(group, group.queries, before), known, size, 1, decay)
    if older is not None:
        asking = _rotate_group(group, group.queries, older)
        sums += _block_sums(asking, known, total, 0, decay)
        for back in (0, 1):  # older keys: all keys, less those of the own block and the one before
            sums -= _block_sums(asking, known, size, back, decay)
    return sums


def _block_sums(queries: Tensor, keys: Tensor, size: int, back: int, decay: Tensor | None) -> Tensor:
    """[G, T] sums of q(i) . k(j) at each distance, with j `back` blocks of `size` tokens before the block of i."""
    total = keys.shape[2]
    blocks = math.ceil(total / size)
    sums = torch.zeros(queries.shape[1], total, dtype=torch.float64, device=keys.device)
    if back >= blocks:
        return sums
    asking, known = (fold_blocks(F.pad(x, (0, 0, 0, blocks * size - total)), blocks) for x in (queries, keys))
    # Two blocks of `size` tokens, `back` blocks apart, have 2 size - 1 distances; the padding adds zeros only.
    first = back * size - (size - 1)
    begin, end = max(0, first), min(total, first + 2 * size - 1)
    lags = _correlation(asking[back:], known[: blocks - back], decay, first)
    sums[:, begin:end] = lags[:, begin - first : end - first]
    return sums


def _correlation(queries: Tensor, keys: Tensor, decay: Tensor | None, first: int) -> Tensor:
    """[G, 2T - 1] sums of q(i) . k(j) at i - j from -(T - 1) to T - 1, over N pairs of blocks.

    Args:
        queries: [N, G, T, D].
        keys: [N, 1, T, D].
        decay: of each pair of dimensions, at distances that begin at `first`.
        first: distance between tokens in the first sum.
    """
    from scipy.fft import next_fast_len  # slow to import; every hf run imports this module, and few need it

    count, heads, width, dims = queries.shape
    # At least 2 T - 1 places: fewer, and the circular transform would add the ends onto the begins.
    size = next_fast_len(2 * width - 1, real=True)

    def spectrum(some: slice) -> Tensor:
        left: Tensor = torch.fft.rfft(queries[..., some].mT, size)
        right: Tensor = torch.fft.rfft(keys[..., some].mT, size)
        return (left * right.conj()).sum((0, 2))

    def lags(spectrum: Tensor) -> Tensor:
        # The transform is circular: negative lags stand at its end.
        around = torch.fft.irfft(spectrum, size)
        return torch.cat([around[:, size - width + 1 :], around[:, :width]], dim=1)

    if decay is None:
        # Without a decay all dimensions have one factor, so their spectra are added before the one inverse transform.
        step = max(1, MAX_FOURIER_NUMBERS // (count * heads * size))
        whole = spectrum(slice(0, step))
        for start in range(step, dims, step):
            whole += spectrum(slice(start, start + step))
        return lags(whole)
    assert dims == 2 * len(decay), f"{len(decay)} pairs of {dims} dimensions"
    # Negative distances are cut off by the caller; unclamped, e^(rate distance) would overflow there.
    distances = torch.arange(first, first + 2.0 * width - 1, dtype=torch.float64, device=queries.device).clamp_min(0)
    sums = torch.zeros(heads, 2 * width - 1, dtype=torch.float64, device=queries.device)
    for pair, rate in enumerate(decay.tolist()):
        # Dimensions p and p + D/2 fade alike, each pair at its own rate: an inverse transform for each pair.
        sums += lags(spectrum(slice(pair, None, len(decay)))) * (rate * distances).exp()
    return sums
