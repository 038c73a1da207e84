"""Blocks of keys: block-causal attention, and dual chunk attention, where positions begin anew in each chunk.

A query sees the keys of its own block up to itself, all of the block before, and, in dual chunk attention, all older
ones. Whole blocks are a batch: one call on triangles, one on rectangles, and one for each block's older keys.

Decoding one token rotates every key that is seen. A cache that would rotate nothing again holds keys rotated at j for
block-causal attention, and at j mod size, nothing else, for dual chunk attention.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from lexbench.core.attention import Blocks, Chunks, Floats, Line, Positions
from lexbench.kernels import flash
from lexbench.kernels.dense import Rotate
from lexbench.kernels.flash import Part
from lexbench.kernels.spans import fold, spans, unfold

Places = Callable[[Positions], Floats]
"""[n] positions to [n] positions at which to rotate."""


def attend(
    queries: Tensor, keys: Tensor, values: Tensor, rule: Blocks | Chunks, rotate: Rotate, scaling: float
) -> Tensor:
    """As `dense.attend`, with queries already times their query_scale."""
    size, total = rule.size, keys.shape[2]
    first = total - queries.shape[2]
    own, before, older, key = views(rule)
    begin = 0 if older else max(0, (first // size - 1) * size)

    def turned(vectors: Tensor, places: Places, at: int) -> Tensor:
        positions = places(np.arange(at, at + vectors.shape[2]))
        return rotate(vectors, torch.from_numpy(positions).to(vectors.device))

    keys, values = turned(keys[:, :, begin:], key, begin), values[:, :, begin:]
    output = torch.empty(*queries.shape[:3], values.shape[3], dtype=queries.dtype, device=queries.device)
    for start, stop in spans(first, total, size):
        asked, place = queries[:, :, start - first : stop - first], start // size * size - begin
        blocks, end = max(1, (stop - start) // size), stop - begin
        near = turned(asked, own, start)
        k, v = (fold(x[:, :, place:end], blocks) for x in (keys, values))
        part = flash.causal(fold(near, blocks), k, v, scaling)
        if place:
            back = near if before is own else turned(asked, before, start)
            seen = slice(place - size, place - size + blocks * size)
            k, v = (fold(x[:, :, seen], blocks) for x in (keys, values))
            part.add(slice(None), flash.full(fold(back, blocks), k, v, scaling))
        part = Part(unfold(part.out, blocks), unfold(part.lse, blocks))
        if older and stop > 2 * size:
            _add_older(part, turned(asked, older, start), keys, values, (place - size, size, blocks), scaling)
        output[:, :, start - first : stop - first] = part.out
    return output


def views(rule: Blocks | Chunks) -> tuple[Places, Places, Places | None, Places]:
    """Where queries are rotated for their own block, the one before, and older ones, if those are seen; and keys."""
    if isinstance(rule, Blocks):
        plain = Line()
        return plain, plain, None, plain
    own, before, older = rule.regions()
    return own.query, before.query, older.query, own.key


def _add_older(
    part: Part, queries: Tensor, keys: Tensor, values: Tensor, where: tuple[int, int, int], scaling: float
) -> None:
    """The keys before `end`, and `size` more for each further one of so many blocks of queries."""
    end, size, blocks = where
    rows = queries.shape[2] // blocks
    for block in range(blocks):
        seen = end + block * size
        if seen > 0:
            mine = slice(block * rows, (block + 1) * rows)
            part.add(mine, flash.full(queries[:, :, mine], keys[:, :, :seen], values[:, :, :seen], scaling))
