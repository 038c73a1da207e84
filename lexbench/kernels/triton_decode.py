"""Attention of one token of each text over ranges of keys in Triton kernels; ends of ranges are read on the device.

All ranges of a text, one behind the other, are cut into pieces, so that one text fills the GPU (as Flash-Decoding,
pytorch.org/blog/flash-decoding): each program reads the keys of a piece for all heads that share them, and a second
kernel merges the pieces by their log-sum-exp, with sinks.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from lexbench.kernels.triton_launch import launch_first_fitting
from lexbench.kernels.triton_softmax import add_keys

LOG2_E = 1.4426950408889634
BLOCK_KEYS_AND_STAGES = ((64, 3), (32, 2), (16, 1))
"""Keys that a program reads at once, and stages of loads."""
MAX_PIECES = 64
"""Most pieces of a text."""
MAX_RANGES = 3
"""Most ranges of one launch."""
PROGRAMS_PER_PROCESSOR = 2
"""Programs that a multiprocessor surely holds at once, 72 kB each: with more, the last of them might run alone."""


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
        MAX_PIECES,
        triton.cdiv(columns, 2 * BLOCK_KEYS_AND_STAGES[0][0]),
        max(1, PROGRAMS_PER_PROCESSOR * _processors(values) // (batch * groups)),
    )
    launches = [ranges[first : first + MAX_RANGES] for first in range(0, len(ranges), MAX_RANGES)]
    count = pieces * len(launches)
    parts = values.new_empty(count, batch, heads, width, dtype=torch.float32)
    lse = values.new_empty(count, batch, heads, dtype=torch.float32)
    output = ranges[0][0].new_empty(batch, heads, 1, width)
    with torch.cuda.device_of(values):  # layers may be spread over several
        for number, given in enumerate(launches):
            filled = [*given, *[given[0]] * (MAX_RANGES - len(given))]
            vectors = [[_with_dense_rows(x) for x in each] for each in zip(*filled, strict=True)]
            content = _with_dense_rows(values)
            arguments = (
                *(x for each in vectors for x in each),
                *(content, parts, lse),
                *(x for q in vectors[0] for x in q.stride()[:2]),
                *(x for k in vectors[1] for x in k.stride()[:3]),
                *content.stride()[:3],
                # Logits in bits: e^x = 2^(x log2 e), and exp2 is one instruction.
                *(number * pieces, heads, width, scaling * LOG2_E),
            )
            launch = partial(_launch, (pieces, groups, batch), arguments, len(given), shared, padded)
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


def _with_dense_rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _launch(
    grid: tuple[int, ...], arguments: Sequence[Any], count: int, shared: int, padded: int, columns: int, stages: int
) -> None:
    _piece[grid](
        *arguments,
        COUNT=count,
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
    q_0, q_1, q_2, k_0, k_1, k_2, begin_0, begin_1, begin_2, end_0, end_1, end_2, v, parts, lse,
    q_0_text, q_0_head, q_1_text, q_1_head, q_2_text, q_2_head,
    k_0_text, k_0_head, k_0_row, k_1_text, k_1_head, k_1_row, k_2_text, k_2_head, k_2_row,
    v_text, v_head, v_row, first, heads, width, scale,
    COUNT: tl.constexpr, SHARED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """A piece of the keys of `COUNT` ranges of one text, for the `SHARED` heads of one key head."""
    piece, group, text = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    low_0, size_0 = _ends(begin_0, end_0, text)
    low_1, size_1, low_2, size_2 = low_0, 0, low_0, 0
    if COUNT > 1:
        low_1, size_1 = _ends(begin_1, end_1, text)
    if COUNT > 2:
        low_2, size_2 = _ends(begin_2, end_2, text)
    total = size_0 + size_1 + size_2
    size = tl.cdiv(tl.cdiv(total, tl.num_programs(0)), COLUMNS) * COLUMNS
    start = piece * size
    stop = tl.minimum(start + size, total)
    rows, dims = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    v += text * v_text + group * v_head
    top = tl.full([ROWS], -1e30, tl.float32)
    weight = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, WIDTH], tl.float32)
    mixed, top, weight = _add_part(
        mixed, top, weight, q_0 + text * q_0_text + group * SHARED * q_0_head, q_0_head,
        k_0 + text * k_0_text + group * k_0_head, k_0_row, v, v_row, low_0, start, tl.minimum(stop, size_0),
        scale, width, SHARED, ROWS, COLUMNS, WIDTH,
    )  # fmt: skip
    if COUNT > 1:
        mixed, top, weight = _add_part(
            mixed, top, weight, q_1 + text * q_1_text + group * SHARED * q_1_head, q_1_head,
            k_1 + text * k_1_text + group * k_1_head, k_1_row, v, v_row, low_1, start - size_0,
            tl.minimum(stop - size_0, size_1), scale, width, SHARED, ROWS, COLUMNS, WIDTH,
        )  # fmt: skip
    if COUNT > 2:
        before = size_0 + size_1
        mixed, top, weight = _add_part(
            mixed, top, weight, q_2 + text * q_2_text + group * SHARED * q_2_head, q_2_head,
            k_2 + text * k_2_text + group * k_2_head, k_2_row, v, v_row, low_2, start - before,
            tl.minimum(stop - before, size_2), scale, width, SHARED, ROWS, COLUMNS, WIDTH,
        )  # fmt: skip
    some = weight > 0
    real = (rows < SHARED)[:, None] & (dims < width)[None, :]
    at = ((first + piece) * tl.num_programs(2) + text) * heads + group * SHARED + rows
    mixed = mixed / tl.where(some, weight, 1.0)[:, None]
    tl.store(parts + at[:, None] * width + dims[None, :], mixed, mask=real)
    tl.store(lse + at, tl.where(some, top + tl.log2(weight), -1e30), mask=rows < SHARED)


@triton.jit
def _ends(begin, end, text):
    """First key of a range of a text, and the number of its keys."""
    low = tl.load(begin + text).to(tl.int32)
    return low, tl.maximum(0, tl.load(end + text).to(tl.int32) - low)


@triton.jit
def _add_part(
    mixed, top, weight, q, q_head, k, k_row, v, v_row, low, start, stop, scale, width,
    SHARED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Add the keys of a range from its number `start`, or from its first key `low` on, to number `stop` (excluded)."""
    rows, dims = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    begin, end = low + tl.maximum(start, 0), low + stop
    real = (rows < SHARED)[:, None] & (dims < width)[None, :]
    asking = tl.load(q + rows[:, None] * q_head + dims[None, :], mask=real, other=0.0)
    here = tl.zeros([ROWS], tl.int32) + end - 1
    return add_keys(
        mixed, top, weight, asking, k, k_row, v, v_row, here, begin, end, end, 0, end, scale, width,
        True, False, COLUMNS, WIDTH,
    )  # fmt: skip


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
