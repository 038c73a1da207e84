"""A near window and far keys: ReRoPE, Leaky ReRoPE, Self-Extend, STRING, Jet-Long, sliding windows, lambda masks.

A query sees the `window` keys up to its own as the model does, and of the first `count` keys those that are no longer
in its window as far ones, rotated at query(i) and key(j). Counted from query `window` on, the far keys form a plain
causal triangle, and from window + count on a rectangle: one call on shifted queries each. The near ones form the
causal triangle of each block of `window` keys, and of the block before its mirror image.

Decoding one token rotates `window` keys for the near side, and every far key unless key(j) is constant: a constant
rotation is the query's, R(query(i) - c), and the keys stay as they came. A cache that would rotate nothing again holds
keys rotated at j, and for the far side: the same where key is the identity (STRING, StreamingLLM), un-rotated ones
where it is constant (ReRoPE; of LM-Infinite the first ones), those at key(j) elsewhere (Leaky ReRoPE, Self-Extend).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lexbench.core.attention import Line
from lexbench.kernels import flash
from lexbench.kernels.dense import Rotate
from lexbench.kernels.flash import Part
from lexbench.kernels.spans import ROWS, unfold

BLOCK = 128
"""Queries of the near side that are answered together, at most: beside the window, they cost as many scores again."""


@dataclass(frozen=True)
class Far:
    """The far side."""

    count: int
    """Of the keys, the first ones, that are seen far; 0: a window alone."""
    query: Line
    key: Line


def attend(
    queries: Tensor, keys: Tensor, values: Tensor, window: int, far: Far, rotate: Rotate, scaling: float
) -> Tensor:
    """As `dense.attend`, with queries already times their query_scale; near where i - j < window, far beyond."""
    total = keys.shape[2]
    first = total - queries.shape[2]
    count = max(0, min(far.count, total - window))
    far_keys, far_values = keys[:, :, :count], values[:, :, :count]
    if count and not math.isinf(far.key.divisor):
        far_keys = turned(far_keys, far.key, 0, rotate)
    output = torch.empty(*queries.shape[:3], values.shape[3], dtype=queries.dtype, device=queries.device)
    for start, stop in _cuts(first, total, window):
        asked, begin = queries[:, :, start - first : stop - first], max(0, start - window)
        near_keys = turned(keys[:, :, begin:stop], Line(), begin, rotate)
        part = _near(turned(asked, Line(), start, rotate), near_keys, values[:, :, begin:stop], window, scaling)
        beyond = max(start, window)
        if count and beyond < stop:
            far_queries = _far_queries(asked[:, :, beyond - start :], far, beyond, rotate)
            _add_far(part, far_queries, far_keys, far_values, beyond - window, scaling)
        output[:, :, start - first : stop - first] = part.out
    return output


def turned(vectors: Tensor, line: Line, start: int, rotate: Rotate) -> Tensor:
    """Vectors of positions `start` and following, rotated at the line's."""
    positions = line(np.arange(start, start + vectors.shape[2]))
    return rotate(vectors, torch.from_numpy(positions).to(vectors.device))


def _cuts(first: int, end: int, window: int) -> Iterator[tuple[int, int]]:
    """Cuts [first, end) into spans: inside the first window, then whole blocks of the near side, then what is left."""
    start, block = first, min(window, BLOCK)
    while start < end:
        whole = min(ROWS, end - start) // block * block
        stop = min(end, window, start + ROWS) if start < window else start + whole if whole else end
        yield start, stop
        start = stop


def _near(queries: Tensor, keys: Tensor, values: Tensor, window: int, scaling: float) -> Part:
    """One span; before its own keys there are `window` earlier ones, or all there are."""
    batch, _, asked, _ = queries.shape
    if keys.shape[2] - asked < window:
        return flash.causal(queries, keys, values, scaling)
    if batch > 1:
        each = zip(*(x.tensor_split(batch) for x in (queries, keys, values)), strict=True)
        parts = [_near(q, k, v, window, scaling) for q, k, v in each]
        return Part(torch.cat([part.out for part in parts]), torch.cat([part.lse for part in parts]))
    block = min(window, BLOCK, asked)
    q = _blocks(queries, block, block)
    k, v = (_blocks(x[:, :, block:], window, block) for x in (keys, values))
    part = flash.causal(q, k, v, scaling)
    if block > 1:
        k, v = (_blocks(x[:, :, :asked], block, block)[:, :, 1:] for x in (keys, values))
        part.add(slice(block - 1), flash.anticausal(q[:, :, :-1], k, v, scaling))
    return Part(unfold(part.out, len(q)), unfold(part.lse, len(q)))


def _blocks(vectors: Tensor, rows: int, step: int) -> Tensor:
    """[1, H, T, D] as a view [N, H, rows, D] of stretches that begin `step` apart."""
    return vectors[0].unfold(1, rows, step).permute(1, 0, 3, 2)


def _far_queries(queries: Tensor, far: Far, start: int, rotate: Rotate) -> Tensor:
    """Rotated for the far side; keys of one position bring neither their rotation nor the scale of cos and sin."""
    if not math.isinf(far.key.divisor):
        return turned(queries, far.query, start, rotate)
    positions = np.arange(start, start + queries.shape[2])
    apart = torch.from_numpy(far.query(positions) - far.key(positions)).to(queries.device)
    one = queries.new_ones(1, queries.shape[1], 1, queries.shape[3])
    return rotate(queries, apart) * rotate(one, apart.new_zeros(1))


def _add_far(part: Part, queries: Tensor, keys: Tensor, values: Tensor, place: int, scaling: float) -> None:
    """Adds to the part's last rows; the first of them sees key `place` last, each later one a key more."""
    asked, count = queries.shape[2], keys.shape[2]
    before = part.lse.shape[2] - asked
    rows = min(asked, max(0, count - place))
    if rows:
        seen = place + rows
        triangle = flash.causal(queries[:, :, :rows], keys[:, :, :seen], values[:, :, :seen], scaling)
        part.add(slice(before, before + rows), triangle)
    if rows < asked:
        part.add(slice(before + rows, None), flash.full(queries[:, :, rows:], keys, values, scaling))
