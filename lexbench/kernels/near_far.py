"""A near window and far keys: ReRoPE, Leaky ReRoPE, Self-Extend, DPE, STRING, Jet-Long, windows, lambda masks.

A query sees the last `window` keys (its own included) at plain positions: the near side. Of the first `count` keys it
sees those before its window, rotated to query(i) and key(j): the far side. All parts are calls without a mask:

    far     queries from `window` on see a causal triangle of far keys; from window + count on, a rectangle
    near    each block of queries sees a causal shape in its last query's window, and a mirrored triangle before it

The parts are merged by their log-sum-exp (`flash.PartialAttention`).

With keys at one constant position c (ReRoPE; in LM-Infinite the first keys), queries are rotated by R(query(i) - c)
instead, and far keys stay unrotated. One token over a cache is computed by `decode`, which rotates no key twice.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from lexbench.core.attention import Attention, Bands, Floats, PositionMap, Positions, Remap, Window
from lexbench.kernels import flash
from lexbench.kernels.flash import PartialAttention
from lexbench.kernels.heads import Rotate
from lexbench.kernels.rotations import scale_of
from lexbench.kernels.spans import is_constant, max_span_queries, rotate_to_line, unfold_blocks

MAX_NEAR_BLOCK_QUERIES = 128
"""Largest block of queries on the near side; each query costs scores for the window and for one more block."""


@dataclass(frozen=True)
class Sides:
    """A near window, and the positions to which queries and keys are rotated for the far keys before it."""

    window: int
    count: int | None
    """Number of first keys that queries see beyond their window; 0: the window alone; None: all."""
    query: PositionMap | Bands
    key: PositionMap | Bands

    def far(self, total: int) -> int:
        """Number of keys, of `total`, that are far for the last query."""
        before = max(0, total - self.window)
        return before if self.count is None else min(self.count, before)


def sides(attention: Attention) -> Sides | None:
    """The near and the far side of an Attention without bias; None where it has others."""
    plain = PositionMap()
    match attention.remap, attention.mask:
        case None, Window(size, sinks):
            return Sides(size, sinks, plain, plain)
        case Remap(window, query, key), None:
            return Sides(window, None, query, key)
        # LM-Infinite: there is one edge between near and far. With other sizes the mask's would cut through a region.
        case Remap(window, query, key), Window(size, sinks) if size == window:
            return Sides(window, sinks, query, key)
    return None


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    rule: Sides,
    rotate: Rotate,
    scaling: float,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attend as `dense.attend`, with queries already multiplied by query_scale; keys with i - j < window are near.

    B is 1: `fast` makes one text of a batch, with the heads of all.
    """
    total, window = keys.shape[2], rule.window
    first, count = total - queries.shape[2], rule.far(total)
    far_keys, far_values = keys[:, :, :count], values[:, :, :count]
    if count:
        far_keys = far_keys_of(far_keys, rule, rotate)
    output = torch.empty(*queries.shape[:3], values.shape[3], dtype=queries.dtype, device=queries.device)
    for start, stop in _cuts(first, total, window, max_span_queries(queries.device)):
        # One key more than the first query sees: `_attend_near` cuts its windows and triangles from there on.
        span_queries, begin = queries[:, :, start - first : stop - first], max(0, start - window)
        near_keys = rotate_to_line(keys[:, :, begin:stop], PositionMap(), begin, rotate)
        part = _attend_near(
            rotate_to_line(span_queries, PositionMap(), start, rotate),
            near_keys,
            values[:, :, begin:stop],
            window,
            scaling,
        )
        # Queries before position `window` have all keys in their window.
        beyond = max(start, window)
        if count and beyond < stop:
            far_queries = far_queries_of(span_queries[:, :, beyond - start :], rule, beyond, rotate)
            _add_far(part, far_queries, far_keys, far_values, beyond - window, scaling)
        output[:, :, start - first : stop - first] = part.with_sinks(sinks).out
    return output


def _cuts(first: int, end: int, window: int, rows: int) -> Iterator[tuple[int, int]]:
    """Cut [first, end) into spans: inside the first window, then whole blocks of the near side, then the rest."""
    start, block = first, min(window, MAX_NEAR_BLOCK_QUERIES)
    while start < end:
        whole = min(rows, end - start) // block * block
        stop = min(end, window, start + rows) if start < window else start + whole if whole else end
        yield start, stop
        start = stop


def _attend_near(queries: Tensor, keys: Tensor, values: Tensor, window: int, scaling: float) -> PartialAttention:
    """Near side of one span; its keys are preceded by `window` earlier keys, or by all that exist."""
    n_queries = queries.shape[2]
    # The span begins in the first window: its queries see all keys up to themselves.
    if keys.shape[2] - n_queries < window:
        return flash.attend_causally(queries, keys, values, scaling)
    # Of the keys in the window of a block's last query, each query sees those up to its own: a causal shape. Of the
    # keys before them, query r of the block sees the last block - 1 - r: a mirrored triangle.
    block = min(window, MAX_NEAR_BLOCK_QUERIES, n_queries)
    q = _strided_blocks(queries, block, block)
    k, v = (_strided_blocks(x[:, :, block:], window, block) for x in (keys, values))
    part = flash.attend_causally(q, k, v, scaling)
    # The first of these keys is `window` tokens before its block's first query, just out of sight: hence [1:]. The last
    # query's window has no key before the causal shape: hence [:-1].
    if block > 1:
        k, v = (_strided_blocks(x[:, :, :n_queries], block, block)[:, :, 1:] for x in (keys, values))
        part.add(slice(block - 1), flash.attend_anticausally(q[:, :, :-1], k, v, scaling))
    return PartialAttention(unfold_blocks(part.out, len(q)), unfold_blocks(part.lse, len(q)))


def _strided_blocks(vectors: Tensor, rows: int, step: int) -> Tensor:
    """View [1, H, T, D] as [N, H, rows, D]: stretches of `rows`, which begin `step` apart."""
    return vectors[0].unfold(1, rows, step).permute(1, 0, 3, 2)


def far_keys_of(keys: Tensor, rule: Sides, rotate: Rotate) -> Tensor:
    """Keys rotated for the far side; unrotated where they are at one constant position."""
    return keys if is_constant(rule.key) else rotate_to_line(keys, rule.key, 0, rotate)


def far_queries_of(queries: Tensor, rule: Sides, start: int, rotate: Rotate) -> Tensor:
    """Queries rotated for the far side; with keys at one constant position, relative to it."""
    if not is_constant(rule.key):
        return rotate_to_line(queries, rule.query, start, rotate)
    # Far keys stay unrotated, and so lack the scale of cos and sin.
    return rotate_to_line(queries, _differences(rule.query, rule.key), start, rotate) * scale_of(rotate, queries)


# Cached for identity: `mapped_positions` knows the function again.
@lru_cache(maxsize=64)
def _differences(query: PositionMap | Bands, key: PositionMap | Bands) -> Callable[[Positions], Floats]:
    """Positions of queries relative to those of keys."""
    return lambda positions: query(positions) - key(positions)


def _add_far(part: PartialAttention, queries: Tensor, keys: Tensor, values: Tensor, place: int, scaling: float) -> None:
    """Merge far keys into the last rows of a part; the first of these rows sees keys up to `place`."""
    n_queries, count = queries.shape[2], keys.shape[2]
    before = part.lse.shape[2] - n_queries
    # From row count - place on, all far keys are more than a window away: a rectangle.
    rows = min(n_queries, max(0, count - place))
    if rows:
        seen = place + rows
        triangle = flash.attend_causally(queries[:, :, :rows], keys[:, :, :seen], values[:, :, :seen], scaling)
        part.add(slice(before, before + rows), triangle)
    if rows < n_queries:
        part.add(slice(before + rows, None), flash.attend_to_all(queries[:, :, rows:], keys, values, scaling))
