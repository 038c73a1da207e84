"""Near and far keys in two calls of FlexAttention (arXiv 2412.05496), whatever the length, window and batch.

`near_far` computes the same by many calls without masks, which a CPU does fastest. A GPU waits for launches there; here
the keys that a query sees are told by blocks of 128 x 128 positions: all of a block, none of it, or by distance. ReRoPE
rotates near and far queries and keys in two ways, so one product cannot serve both, and the calls are merged by their
log-sum-exp. On a GPU the calls are compiled; a CPU computes all scores at once, for tests.
"""

import functools
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from lexbench.core.attention import Line
from lexbench.encodings.base import Rotate
from lexbench.kernels.flash import Part
from lexbench.kernels.near_far import Far, far_keys_of, far_queries_of
from lexbench.kernels.spans import turned

# FlexAttention's own default.
BLOCK = 128
# dynamic: else each length compiles a kernel of its own.
COMPILED: Any = torch.compile(flex_attention, dynamic=True)


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    window: int,
    far: Far,
    rotate: Rotate,
    scaling: float,
    sinks: Tensor | None = None,
) -> Tensor:
    """The result of `near_far.attend`, with the same arguments."""
    asked, total = queries.shape[2], keys.shape[2]
    first, count = total - asked, max(0, min(far.count, total - window))
    near_queries, near_keys = turned(queries, Line(), first, rotate), turned(keys, Line(), 0, rotate)
    part = _call(near_queries, near_keys, values, _seen(asked, total, first, 0, window, queries.device), scaling)
    if count and total > window:
        far_queries = far_queries_of(queries, far, first, rotate)
        seen = _seen(asked, count, first, window, total + 1, queries.device)
        part.add(
            slice(None),
            _call(far_queries, far_keys_of(keys[:, :, :count], far, rotate), values[:, :, :count], seen, scaling),
        )
    return part.with_sinks(sinks).out


def _call(queries: Tensor, keys: Tensor, values: Tensor, seen: BlockMask, scaling: float) -> Part:
    """Attention over the keys seen; a query that sees none has out 0 and lse -inf, which a merge ignores."""
    attention: Any = flex_attention if queries.device.type == "cpu" else COMPILED
    given = {"block_mask": seen, "scale": scaling, "enable_gqa": queries.shape[1] != keys.shape[1]}
    out, more = attention(queries, keys, values, **given, return_aux=AuxRequest(lse=True))
    precise = torch.promote_types(queries.dtype, torch.float32)
    return Part(out.to(precise), more.lse.to(precise))


@functools.lru_cache(maxsize=64)
def _seen(asked: int, total: int, first: int, least: int, end: int, device: torch.device) -> BlockMask:
    """Queries first + i see keys j of `total` with least <= first + i - j < end."""
    from_start = torch.arange(0, asked, BLOCK)[:, None] + first, torch.arange(0, total, BLOCK)[None]
    to_end = (from_start[0] + BLOCK - 1).clamp(max=first + asked - 1), (from_start[1] + BLOCK - 1).clamp(max=total - 1)
    # Distances of the nearest and the farthest pair of a block tell all of its pairs.
    nearest, farthest = from_start[0] - to_end[1], to_end[0] - from_start[1]
    # A block that the text's end cuts is told pair by pair, as the kernel runs over all of its 128 x 128 places.
    whole = (to_end[0] - from_start[0] == BLOCK - 1) & (to_end[1] - from_start[1] == BLOCK - 1)
    every = (nearest >= least) & (farthest < end) & whole
    some = (farthest >= least) & (nearest < end) & ~every
    # Bounds as tensors: as numbers, each length and window would be compiled anew.
    where, nearest_seen, end_seen = (torch.tensor(number, device=device) for number in (first, least, end))

    def within(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        distance = query + where - key
        return (distance >= nearest_seen) & (distance < end_seen)

    (some_count, some_at), (every_count, every_at) = (_lists(blocks.to(device)) for blocks in (some, every))
    return BlockMask.from_kv_blocks(
        some_count,
        some_at,
        every_count,
        every_at,
        BLOCK_SIZE=BLOCK,
        mask_mod=within,
        seq_lengths=(asked, total),
        compute_q_blocks=False,
    )


def _lists(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """[1, 1, Q] numbers of key blocks of each query block, and [1, 1, Q, K] their indices first."""
    # The kernel reads the first count of these indices.
    order = blocks.int().argsort(dim=1, descending=True, stable=True).int()
    return blocks.sum(1, dtype=torch.int32)[None, None], order[None, None]
