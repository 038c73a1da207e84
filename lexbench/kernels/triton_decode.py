"""Attention of one token of each text over ranges of keys in Triton kernels; ends of ranges are read on the device.

A range is cut into pieces, so that one text fills the GPU (as Flash-Decoding, pytorch.org/blog/flash-decoding): each
program reads the keys of a piece for all heads that share them, and a second kernel merges the pieces of all ranges by
their log-sum-exp, with sinks.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from lexbench.kernels.triton_launch import launch_first_fitting

LOG2_E = 1.4426950408889634
BLOCK_KEYS_AND_STAGES = ((64, 3), (32, 2), (16, 1))
"""Keys that a program reads at once, and stages of loads."""
MAX_RANGE_PIECES = 64
"""Most pieces of a range."""


def attend(
    ranges: Sequence[tuple[Tensor, Tensor, Tensor, Tensor]],
    values: Tensor,
    scaling: float,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention of one token of each text over some ranges of its keys, which do not overlap.

    Args:
        ranges: of each, queries [B, H, 1, D] and keys [B, KV, K, D], rotated for it, and its begin and end (excluded)
            [B] among the K columns, whole numbers on the device.
        values: [B, KV, K, D].
        scaling: factor on the logits.
        sinks: [H] logits that take weight and add no value.

    Returns:
        [B, H, 1, D] in the dtype of the queries.
    """
    batch, heads, _, width = ranges[0][0].shape
    groups, columns = values.shape[1:3]
    shared, padded = heads // groups, max(16, triton.next_power_of_2(width))
    pieces = min(
        MAX_RANGE_PIECES,
        triton.cdiv(columns, 2 * BLOCK_KEYS_AND_STAGES[0][0]),
        triton.cdiv(2 * _processors(values), batch * groups),
    )
    count = pieces * len(ranges)
    parts = values.new_empty(count, batch, heads, width, dtype=torch.float32)
    lse = values.new_empty(count, batch, heads, dtype=torch.float32)
    output = ranges[0][0].new_empty(batch, heads, 1, width)
    with torch.cuda.device_of(values):  # layers may be spread over several
        for number, (queries, keys, begin, end) in enumerate(ranges):
            given = [x if x.stride(3) == 1 else x.contiguous() for x in (queries, keys, values)]
            arguments = (
                *(*given, begin, end, parts, lse),
                *(*given[0].stride()[:2], *given[1].stride()[:3], *given[2].stride()[:3]),
                # Logits in bits: e^x = 2^(x log2 e), and exp2 is one instruction.
                *(number * pieces, heads, width, scaling * LOG2_E),
            )
            launch = partial(_launch, (pieces, groups, batch), arguments, shared, padded)
            if not launch_first_fitting(launch, BLOCK_KEYS_AND_STAGES):
                raise RuntimeError(f"no block of keys of {width} dimensions fits into the GPU's shared memory")
        _merge_pieces[heads, batch](
            parts,
            lse,
            lse if sinks is None else sinks.float(),
            output,
            count,
            width,
            SINKS=sinks is not None,
            PARTS=triton.next_power_of_2(count),
            WIDTH=padded,
        )
    return output


def _launch(
    grid: tuple[int, ...], arguments: Sequence[Any], shared: int, padded: int, columns: int, stages: int
) -> None:
    _piece[grid](
        *arguments,
        SHARED=shared,
        ROWS=max(16, triton.next_power_of_2(shared)),
        COLUMNS=columns,
        WIDTH=padded,
        num_warps=4,
        num_stages=stages,
    )


def _processors(x: Tensor) -> int:
    """Multiprocessors of a tensor's GPU; 1 where Triton's interpreter runs."""
    return torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 1


@triton.jit(do_not_specialize=("first", "heads"))
def _piece(
    q,
    k,
    v,
    begin,
    end,
    parts,
    lse,
    q_text,
    q_head,
    k_text,
    k_head,
    k_row,
    v_text,
    v_head,
    v_row,
    first,
    heads,
    width,
    scale,
    SHARED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """A piece of a range of one text, for the `SHARED` heads of one key head."""
    piece, group, text = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    low, high = tl.load(begin + text).to(tl.int32), tl.load(end + text).to(tl.int32)
    size = tl.cdiv(tl.cdiv(tl.maximum(0, high - low), tl.num_programs(0)), COLUMNS) * COLUMNS
    start = low + piece * size
    stop = tl.minimum(start + size, high)
    rows, dims = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    real = (rows < SHARED)[:, None] & (dims < width)[None, :]
    asking = tl.load(
        q + text * q_text + (group * SHARED + rows)[:, None] * q_head + dims[None, :], mask=real, other=0.0
    )
    k += text * k_text + group * k_head
    v += text * v_text + group * v_head
    top = tl.full([ROWS], -1e30, tl.float32)
    weight = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, WIDTH], tl.float32)
    for place in range(start, stop, COLUMNS):
        there = place + tl.arange(0, COLUMNS)
        held = (there < stop)[:, None] & (dims < width)[None, :]
        keys = tl.load(k + there[:, None].to(tl.int64) * k_row + dims[None, :], mask=held, other=0.0)
        values = tl.load(v + there[:, None].to(tl.int64) * v_row + dims[None, :], mask=held, other=0.0)
        products = tl.dot(asking, tl.trans(keys), input_precision="ieee")
        products = tl.where((there < stop)[None, :], products, float("-inf"))
        # Online softmax: what was summed so far is scaled down when a larger logit comes.
        higher = tl.maximum(top, tl.max(products, 1) * scale)
        weights = tl.exp2(products * scale - higher[:, None])
        faded = tl.exp2(top - higher)
        mixed = mixed * faded[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        weight, top = weight * faded + tl.sum(weights, 1), higher
    some = weight > 0
    at = ((first + piece) * tl.num_programs(2) + text) * heads + group * SHARED + rows
    mixed = mixed / tl.where(some, weight, 1.0)[:, None]
    tl.store(parts + at[:, None] * width + dims[None, :], mixed, mask=real)
    tl.store(lse + at, tl.where(some, top + tl.log2(weight), -1e30), mask=rows < SHARED)


@triton.jit(do_not_specialize=("count",))
def _merge_pieces(
    parts,
    lse,
    sinks,
    out,
    count,
    width,
    SINKS: tl.constexpr,
    PARTS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """All pieces of one head of a text."""
    head, text = tl.program_id(0), tl.program_id(1).to(tl.int64)
    heads, texts = tl.num_programs(0), tl.num_programs(1)
    pieces, dims = tl.arange(0, PARTS), tl.arange(0, WIDTH)
    at = (pieces * texts + text) * heads + head
    seen = tl.load(lse + at, mask=pieces < count, other=-1e30)
    top, sink = tl.max(seen, 0), 0.0
    if SINKS:
        # log2 e once more as a number: a kernel reads no global that is not a constexpr.
        sink = tl.load(sinks + head) * 1.4426950408889634
        top = tl.maximum(top, sink)
    weights = tl.exp2(seen - top)
    total = tl.sum(weights, 0)
    if SINKS:
        total += tl.exp2(sink - top)
    held = (pieces < count)[:, None] & (dims < width)[None, :]
    mixed = tl.load(parts + at[:, None] * width + dims[None, :], mask=held, other=0.0)
    mixed = tl.sum(mixed * weights[:, None], 0) / total
    tl.store(out + (text * heads + head) * width + dims, mixed.to(out.dtype.element_ty), mask=dims < width)
