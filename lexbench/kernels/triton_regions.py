"""Keys of several regions in one Triton kernel, for CUDA: each block of keys meets the queries that are rotated for it.

`near_far` and `chunked` compute the same by many calls without masks. Here a program of the kernel goes over the keys
that a block of queries sees, from the oldest on, and sums them up in one online softmax (as FlashAttention, arXiv
2307.08691): no parts are merged, and no scores are kept. Where a region ends it takes up the queries as they are
rotated for the next one. Only blocks at an edge, of a region or of the text, ask each pair for its distance.

    near and far    keys before the window, the window
    chunks          keys before the last two chunks, the chunk before, the own chunk
    blocks          the block before, the own block

Most pairs of a long text lie far from the diagonal, all in one region. Where PyTorch has a faster kernel for plain
causal attention, that computes this triangle, and a program here begins with what it found.
"""

from collections.abc import Iterator, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from lexbench.core.attention import Blocks, Chunks, PositionMap
from lexbench.kernels import chunked, flash
from lexbench.kernels.flash import PartialAttention
from lexbench.kernels.heads import Rotate
from lexbench.kernels.near_far import Sides, far_keys_of, far_queries_of
from lexbench.kernels.spans import rotate_to_line
from lexbench.kernels.triton_launch import launch_first_fitting
from lexbench.kernels.triton_softmax import add_range

MIN_BLOCK_QUERIES = 16
"""Fewest queries that fill a block."""
MIN_TRIANGLE_KEYS = 4096
"""Fewest keys of the far triangle for which another kernel is called."""
TRIANGLE_STEP_KEYS = 1024
"""The triangle is a multiple of so many keys: cuDNN plans 0.4 s for each new size."""
LOG2_E = 1.4426950408889634


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    rule: Sides | Blocks | Chunks,
    rotate: Rotate,
    scaling: float,
    sinks: Tensor | None = None,
) -> Tensor | None:
    """The result of `near_far.attend` or `chunked.attend`, with the same arguments.

    None for few queries, for float64, and where no block fits into the GPU's shared memory.
    """
    if queries.dtype == torch.float64 or queries.shape[2] < MIN_BLOCK_QUERIES:
        return None
    if isinstance(rule, Sides):
        rotated = _rotate_sides(queries, keys, rule, rotate)
    else:
        rotated = _rotate_blocks(queries, keys, rule, rotate)
    far, reach = None, keys.shape[2] + 1
    if queries.shape[2] == keys.shape[2] and _sees_all_far_keys(rule):
        far, reach = _attend_to_triangle(rotated[2], rotated[4], values, rule, scaling)
    return attend_rotated(rotated, values, rule, scaling, sinks, far, reach)


Rotated = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""Queries for near keys, for the block before and for far keys, which the last ones may be alone; near and far keys."""


def _rotate_sides(queries: Tensor, keys: Tensor, rule: Sides, rotate: Rotate) -> Rotated:
    """A near window has no block before."""
    total, plain = keys.shape[2], PositionMap()
    first, count = total - queries.shape[2], rule.far(total)
    near = rotate_to_line(queries, plain, first, rotate), rotate_to_line(keys, plain, 0, rotate)
    far = near
    if count:
        begin = max(first, rule.window)  # earlier queries have no far keys
        far = (
            far_queries_of(queries[:, :, begin - first :], rule, begin, rotate),
            far_keys_of(keys[:, :, :count], rule, rotate),
        )
    return near[0], near[0], far[0], near[1], far[1]


def _rotate_blocks(queries: Tensor, keys: Tensor, rule: Blocks | Chunks, rotate: Rotate) -> Rotated:
    own, before, older, key = chunked.block_positions(rule)
    total = keys.shape[2]
    first = total - queries.shape[2]
    near, known = rotate_to_line(queries, own, first, rotate), rotate_to_line(keys, key, 0, rotate)
    back = near if before is own else rotate_to_line(queries, before, first, rotate)
    begin, far = max(first, 2 * rule.size), back  # earlier queries have no older keys
    if older is not None and begin < total:
        far = rotate_to_line(queries[:, :, begin - first :], older, begin, rotate)
    return near, back, far, known, known


def attend_rotated(
    rotated: Rotated,
    values: Tensor,
    rule: Sides | Blocks | Chunks,
    scaling: float,
    sinks: Tensor | None,
    far: PartialAttention | None,
    reach: int,
) -> Tensor | None:
    """Attention [1, H, Q, D] of queries that are rotated; None where no block fits into the GPU's shared memory.

    Part `far` holds the keys at least `reach` tokens back; it begins with the query at position `reach`.
    """
    near_queries, near_keys = rotated[0], rotated[3]
    (heads, asked, width), (groups, total) = near_queries.shape[1:], near_keys.shape[1:3]
    is_sides = isinstance(rule, Sides)
    size = rule.window if isinstance(rule, Sides) else rule.size
    count = rule.far(total) if isinstance(rule, Sides) else total if isinstance(rule, Chunks) else 0
    output = torch.empty_like(near_queries, memory_format=torch.contiguous_format)
    vectors = *rotated, values, output, output if far is None else far.out
    given = [x[0] if x.stride(3) == 1 else x[0].contiguous() for x in vectors]
    padded, first = max(16, triton.next_power_of_2(width)), total - asked

    def launch(rows: int, columns: int, warps: int, stages: int) -> None:
        blocks = triton.cdiv(asked, rows)
        if not is_sides:  # a program's queries are of one block
            blocks = ((total - 1) // size - first // size + 1) * triton.cdiv(size, rows)
        _kernel[blocks, heads](
            *given,
            output if far is None else far.lse.contiguous(),
            output if sinks is None else sinks.float(),
            *(stride for x in given for stride in x.stride()[:2]),
            heads // groups,
            asked,
            total,
            total - rotated[2].shape[2],
            size,
            count,
            reach,
            width,
            # Logits in bits: e^x = 2^(x log2 e), and exp2 is one instruction.
            scaling * LOG2_E,
            SIDES=is_sides,
            BEGUN=far is not None,
            SINKS=sinks is not None,
            EVEN=width == padded,
            ROWS=rows,
            COLUMNS=columns,
            WIDTH=padded,
            num_warps=warps,
            num_stages=stages,
        )

    sizes = _sizes(padded * values.element_size(), _shared_bytes(values))
    with torch.cuda.device_of(values):  # layers may be spread over several
        return output if launch_first_fitting(launch, sizes) else None


def _sees_all_far_keys(rule: Sides | Blocks | Chunks) -> bool:
    return rule.count is None if isinstance(rule, Sides) else isinstance(rule, Chunks)


def _attend_to_triangle(
    queries: Tensor, keys: Tensor, values: Tensor, rule: Sides | Blocks | Chunks, scaling: float
) -> tuple[PartialAttention | None, int]:
    """Attention to keys at least `reach` tokens back, of queries from position `reach` on, and that distance.

    None where no faster kernel is known: the distance is then beyond the text.
    """
    total = values.shape[2]
    least = rule.window if isinstance(rule, Sides) else 2 * rule.size  # all pairs so far apart are in the far region
    count = max(0, total - least) // TRIANGLE_STEP_KEYS * TRIANGLE_STEP_KEYS
    found, reach = None, total - count
    if count >= MIN_TRIANGLE_KEYS:
        asking = queries[:, :, queries.shape[2] - count :]
        found = flash.attend_by_cudnn(asking, keys[:, :, :count], values[:, :, :count], scaling)
    return found, total + 1 if found is None else reach


def _shared_bytes(x: Tensor) -> int:
    """Shared memory that a program may use on a tensor's GPU; the least of recent ones where it is not told."""
    about = torch.cuda.get_device_properties(x.device) if x.is_cuda else None
    return int(getattr(about, "shared_memory_per_block_optin", 99 << 10))


def _sizes(row_bytes: int, shared_bytes: int) -> Iterator[tuple[int, int, int, int]]:
    """Sizes to try: queries and keys of a block, warps, stages of loads; all should fit into shared memory.

    A block of queries, and one of keys and one of values for each stage. The first is the fastest of those tried on an
    H200, for heads of 128 dimensions and for heads of 64; the others need less memory.
    """
    sizes: Sequence[tuple[int, int, int, int]]
    sizes = [(128, 128, 8, 3), (128, 64, 8, 3), (128, 64, 8, 2), (64, 64, 4, 2), (64, 32, 4, 2), (32, 32, 4, 1)]
    if row_bytes <= 128:
        sizes = [(128, 64, 4, 3), (128, 64, 4, 2), (64, 32, 4, 2)]
    for rows, columns, warps, stages in sizes:
        if (rows + 2 * stages * columns) * row_bytes <= shared_bytes:
            yield rows, columns, warps, stages


@triton.jit(do_not_specialize=("shared", "asked", "total", "far_first", "size", "count", "reach"))
def _kernel(
    near_q, back_q, far_q, near_k, far_k, v, out, begun, begun_lse, sinks,
    near_q_head, near_q_row, back_q_head, back_q_row, far_q_head, far_q_row, near_k_head, near_k_row,
    far_k_head, far_k_row, v_head, v_row, out_head, out_row, begun_head, begun_row,
    shared, asked, total, far_first, size, count, reach, width, scale,
    SIDES: tl.constexpr, BEGUN: tl.constexpr, SINKS: tl.constexpr, EVEN: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """A block of queries of one head; `shared` heads share a key head. Logits are in bits: powers of 2 are faster.

    With `BEGUN`, keys at least `reach` tokens back are in `begun` and its log-sum-exp in nats, whose first row is the
    query at position `reach`.
    """
    first, number = total - asked, tl.num_programs(0) - 1 - tl.program_id(0)  # the longest first
    head = tl.program_id(1).to(tl.int64)
    group = head // shared
    own = 0  # first position of the own block
    if SIDES:
        begin = first + number * ROWS
        end = tl.minimum(begin + ROWS, total)
    else:
        tiles = tl.cdiv(size, ROWS)
        own = (first // size + number // tiles) * size
        begin = own + number % tiles * ROWS
        end = tl.minimum(tl.minimum(begin + ROWS, own + size), total)
    if begin >= end or end <= first:
        return
    rows, dims = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    here = begin + rows
    low, high = begin, end - 1  # first and last position
    held = ((here >= first) & (here < end))[:, None] & (dims < width)[None, :]
    # A row's numbers from the first: of 64 heads of 128, 262,144 rows have 2^31.
    away = (begin - first).to(tl.int64)
    # Not -inf: a row whose first blocks hide all keys would subtract -inf from -inf.
    top = tl.full([ROWS], -1e30, tl.float32)
    weight = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, WIDTH], tl.float32)
    if BEGUN:
        # log2 e once more as a number: a kernel reads no global that is not a constexpr.
        old = (here >= reach) & (here < end)
        row = (begin - reach).to(tl.int64)
        sums = tl.load(begun_lse + head * (total - reach) + row + rows, mask=old, other=-1e30)
        top = tl.maximum(sums * 1.4426950408889634, -1e30)
        weight = tl.where(old, 1.0, 0.0)
        at = begun + head * begun_head + row * begun_row + rows[:, None] * begun_row + dims[None, :]
        mixed = tl.load(at, mask=old[:, None] & held, other=0.0).to(tl.float32)
    v += group * v_head

    # Far keys.
    at = (begin - far_first).to(tl.int64) * far_q_row + rows[:, None] * far_q_row + dims[None, :]
    q = tl.load(far_q + head * far_q_head + at, mask=held & (here >= far_first)[:, None], other=0.0)
    k = far_k + group * far_k_head
    if SIDES:
        least, last = size, count
    else:
        least, last = 0, tl.minimum(count, tl.maximum(own - size, 0))
    start = 0
    if BEGUN:
        start = tl.maximum(0, low - reach + 1)
    mixed, top, weight = add_range(
        mixed, top, weight, q, k, far_k_row, v, v_row, here, low, high, start, last, least, reach, scale, width,
        BEGUN, EVEN, COLUMNS, WIDTH,
    )  # fmt: skip
    if not SIDES:
        # The block before.
        at = away * back_q_row + rows[:, None] * back_q_row + dims[None, :]
        q = tl.load(back_q + head * back_q_head + at, mask=held, other=0.0)
        k = near_k + group * near_k_head
        mixed, top, weight = add_range(
            mixed, top, weight, q, k, near_k_row, v, v_row, here, low, high, tl.maximum(own - size, 0), own, 0, total,
            scale, width, False, EVEN, COLUMNS, WIDTH,
        )  # fmt: skip
    # The window, or the own block.
    at = away * near_q_row + rows[:, None] * near_q_row + dims[None, :]
    q = tl.load(near_q + head * near_q_head + at, mask=held, other=0.0)
    k = near_k + group * near_k_head
    start = own
    if SIDES:
        start = tl.maximum(0, low - size + 1)
    mixed, top, weight = add_range(
        mixed, top, weight, q, k, near_k_row, v, v_row, here, low, high, start, total, 0, size, scale, width,
        SIDES, EVEN, COLUMNS, WIDTH,
    )  # fmt: skip

    if SINKS:  # a key without value
        weight += tl.exp2(tl.load(sinks + head) * 1.4426950408889634 - top)
    mixed = mixed / weight[:, None]
    to = out + head * out_head + away * out_row + rows[:, None] * out_row + dims[None, :]
    tl.store(to, mixed.to(out.dtype.element_ty), mask=held)
