"""Blocks of keys: block-causal attention, and dual chunk attention, where positions restart in each chunk.

A query sees the keys of its own block up to itself, all keys of the block before, and, in dual chunk attention, all
older keys. Whole blocks form a batch: one call for causal triangles (own block), one for full squares (block before),
and one per block for older keys. The parts are merged by their log-sum-exp (`flash.PartialAttention`).

One token over a cache is computed by `decode`, which rotates no key twice.
"""

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from lexbench.core.attention import Blocks, Chunks, Floats, PositionMap, Positions
from lexbench.kernels import flash
from lexbench.kernels.flash import PartialAttention
from lexbench.kernels.heads import Rotate
from lexbench.kernels.spans import cut_into_spans, fold_blocks, max_span_queries, rotate_to_line, unfold_blocks

Places = Callable[[Positions], Floats]
"""Function from [n] positions of tokens to [n] positions to rotate to, or [n, bands]."""


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    rule: Blocks | Chunks,
    rotate: Rotate,
    scaling: float,
    sinks: Tensor | None = None,
) -> Tensor:
    """Compute what `dense.attend` does, with queries already multiplied by their query_scale."""
    size, total = rule.size, keys.shape[2]
    first = total - queries.shape[2]
    own, before, older, key = block_positions(rule)
    begin = 0 if older else max(0, (first // size - 1) * size)  # the first key that any query sees
    # Only queries have other positions for other blocks (2402.17463, eq. 2-8): one rotation of the keys serves all
    # calls.
    keys, values = rotate_to_line(keys[:, :, begin:], key, begin, rotate), values[:, :, begin:]
    output = torch.empty(*queries.shape[:3], values.shape[3], dtype=queries.dtype, device=queries.device)
    for start, stop in cut_into_spans(first, total, size, max_span_queries(queries.device)):
        span_queries, place = queries[:, :, start - first : stop - first], start // size * size - begin
        # A span is a part of one block, or several whole blocks.
        blocks, end = max(1, (stop - start) // size), stop - begin
        near = rotate_to_line(span_queries, own, start, rotate)
        k, v = (fold_blocks(x[:, :, place:end], blocks) for x in (keys, values))
        part = flash.attend_causally(fold_blocks(near, blocks), k, v, scaling)
        # Block 0 has no block before it; `cut_into_spans` never puts it into a span with others.
        if place:
            # Under a mask of blocks a query has one position, under chunks another one for the block before.
            back = near if before is own else rotate_to_line(span_queries, before, start, rotate)
            seen = slice(place - size, place - size + blocks * size)
            k, v = (fold_blocks(x[:, :, seen], blocks) for x in (keys, values))
            part.add(slice(None), flash.attend_to_all(fold_blocks(back, blocks), k, v, scaling))
        part = PartialAttention(unfold_blocks(part.out, blocks), unfold_blocks(part.lse, blocks))
        # Queries of blocks 0 and 1 have no older keys.
        if older and stop > 2 * size:
            far = rotate_to_line(span_queries, older, start, rotate)
            _add_older(part, far, keys, values, (place - size, size, blocks), scaling)
        output[:, :, start - first : stop - first] = part.with_sinks(sinks).out
    return output


# Cached for identity, not for speed: `mapped_positions` and `DecodeStep` know these functions again as keys.
@lru_cache(maxsize=64)
def block_positions(rule: Blocks | Chunks) -> tuple[Places, Places, Places | None, Places]:
    """Positions of queries for keys of their own block, of the block before, of older ones (None: unseen); of keys."""
    if isinstance(rule, Blocks):
        # A mask of blocks leaves positions alone; keys older than the block before are not seen.
        plain = PositionMap()
        return plain, plain, None, plain
    own, before, older = rule.regions()
    return own.query, before.query, older.query, own.key


def _add_older(
    part: PartialAttention, queries: Tensor, keys: Tensor, values: Tensor, where: tuple[int, int, int], scaling: float
) -> None:
    """Merge older keys: those before `end` for the first block of queries, `size` more for each further block."""
    end, size, blocks = where
    rows = queries.shape[2] // blocks
    for block in range(blocks):
        seen = end + block * size
        if seen > 0:
            mine = slice(block * rows, (block + 1) * rows)
            part.add(mine, flash.attend_to_all(queries[:, :, mine], keys[:, :, :seen], values[:, :, :seen], scaling))
