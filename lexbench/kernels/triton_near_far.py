"""Near and far keys in one Triton kernel, for CUDA: each block of keys meets the queries that are rotated for it.

`near_far` computes the same by many calls without masks. Here a program of the kernel reads a block of queries in both
rotations, goes over its far keys with one and over its near keys with the other, and sums up both in one online softmax
(as FlashAttention, arXiv 2307.08691): no parts are merged, and no scores are kept. Only blocks at an edge, of the
window or of the text, ask each pair for its distance.
"""

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from lexbench.core.attention import PositionMap
from lexbench.kernels import near_far
from lexbench.kernels.heads import Rotate
from lexbench.kernels.near_far import Sides, far_keys_of, far_queries_of
from lexbench.kernels.spans import rotate_to_line
from lexbench.kernels.triton_launch import launch_first_fitting

MIN_BLOCK_QUERIES = 16
"""Fewest queries that fill a block."""
LOG2_E = 1.4426950408889634


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    rule: Sides,
    rotate: Rotate,
    scaling: float,
    sinks: Tensor | None = None,
) -> Tensor:
    """The result of `near_far.attend`, with the same arguments.

    By it for few queries, for float32 on a GPU, and where no block fits into the GPU's shared memory.
    """
    (heads, asked, width), (groups, total) = queries.shape[1:], keys.shape[1:3]
    # Tensor cores round float32, and exact products without them are slow and take minutes to compile.
    if (
        asked < MIN_BLOCK_QUERIES
        or queries.dtype == torch.float64
        or (queries.is_cuda and queries.dtype == torch.float32)
    ):
        return near_far.attend(queries, keys, values, rule, rotate, scaling, sinks)
    first, count = total - asked, rule.far(total)
    near_queries, near_keys = (
        rotate_to_line(queries, PositionMap(), first, rotate),
        rotate_to_line(keys, PositionMap(), 0, rotate),
    )
    far_queries, far_keys = near_queries, near_keys
    if count:
        far_queries = far_queries_of(queries, rule, first, rotate)
        far_keys = far_keys_of(keys[:, :, :count], rule, rotate)
    output = torch.empty_like(near_queries, memory_format=torch.contiguous_format)
    vectors = near_queries, far_queries, near_keys, far_keys, values, output
    given = [x[0] if x.stride(3) == 1 else x[0].contiguous() for x in vectors]
    padded = max(16, triton.next_power_of_2(width))

    def launch(rows: int, columns: int, warps: int, stages: int) -> None:
        _kernel[triton.cdiv(asked, rows), heads](
            *given,
            near_queries if sinks is None else sinks.float(),
            *(stride for x in given for stride in x.stride()[:2]),
            heads // groups,
            asked,
            total,
            rule.window,
            count,
            width,
            # Logits in bits: e^x = 2^(x log2 e), and exp2 is one instruction.
            scaling * LOG2_E,
            SINKS=sinks is not None,
            EVEN=width == padded,
            ROWS=rows,
            COLUMNS=columns,
            WIDTH=padded,
            num_warps=warps,
            num_stages=stages,
        )

    with torch.cuda.device_of(queries):  # layers may be spread over several
        fits = launch_first_fitting(launch, _sizes(padded * queries.element_size(), _shared_bytes(queries)))
    return output if fits else near_far.attend(queries, keys, values, rule, rotate, scaling, sinks)


def _shared_bytes(x: Tensor) -> int:
    """Shared memory that a program may use on a tensor's GPU; the least of recent ones where it is not told."""
    about = torch.cuda.get_device_properties(x.device) if x.is_cuda else None
    return int(getattr(about, "shared_memory_per_block_optin", 99 << 10))


def _sizes(row_bytes: int, shared_bytes: int) -> Iterator[tuple[int, int, int, int]]:
    """Sizes to try: queries and keys of a block, warps, stages of loads; all should fit into shared memory.

    A block of queries, and one of keys and one of values for each stage. The first is the fastest of those tried on an
    H200, for heads of 128 dimensions and for heads of 64; the others need less memory.
    """
    sizes = [(128, 128, 8, 3), (128, 64, 8, 3), (128, 64, 8, 2), (64, 64, 4, 2), (64, 32, 4, 2), (32, 32, 4, 1)]
    if row_bytes <= 128:
        sizes = [(128, 64, 4, 3), (128, 64, 4, 2), (64, 32, 4, 2)]
    for rows, columns, warps, stages in sizes:
        if (rows + 2 * stages * columns) * row_bytes <= shared_bytes:
            yield rows, columns, warps, stages


@triton.jit(do_not_specialize=("shared", "asked", "total", "window", "count"))
def _kernel(
    near_q,
    far_q,
    near_k,
    far_k,
    v,
    out,
    sinks,
    near_q_head,
    near_q_row,
    far_q_head,
    far_q_row,
    near_k_head,
    near_k_row,
    far_k_head,
    far_k_row,
    v_head,
    v_row,
    out_head,
    out_row,
    shared,
    asked,
    total,
    window,
    count,
    width,
    scale,
    SINKS: tl.constexpr,
    EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """A block of queries of one head; `shared` heads share a key head. Logits are in bits: powers of 2 are faster."""
    begin = (tl.num_programs(0) - 1 - tl.program_id(0)) * ROWS  # the longest first
    head = tl.program_id(1).to(tl.int64)
    group = head // shared
    rows, dims = begin + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    here = total - asked + rows
    low, high = total - asked + begin, total - asked + tl.minimum(begin + ROWS, asked) - 1  # first and last position
    held = (rows < asked)[:, None] & (dims < width)[None, :]
    # Not -inf: a row whose first blocks hide all keys would subtract -inf from -inf.
    top = tl.full([ROWS], -1e30, tl.float32)
    weight = tl.zeros([ROWS], tl.float32)
    if SINKS:
        # log2 e once more as a number: a kernel reads no global that is not a constexpr. A sink is a first key without
        # value.
        top = tl.zeros([ROWS], tl.float32) + tl.load(sinks + head) * 1.4426950408889634
        weight = tl.full([ROWS], 1.0, tl.float32)
    mixed = tl.zeros([ROWS, WIDTH], tl.float32)
    v += group * v_head
    away = rows.to(tl.int64)  # a row's numbers from the first: of 64 heads of 128, 262,144 rows have 2^31

    # Far keys: first those that every row of the block sees, then the edge, where each pair is asked.
    q = tl.load(far_q + head * far_q_head + away[:, None] * far_q_row + dims[None, :], mask=held, other=0.0)
    k = far_k + group * far_k_head
    every = tl.maximum(tl.minimum(count, low - window + 1), 0) // COLUMNS * COLUMNS
    end = tl.minimum(count, high - window + 1)
    mixed, top, weight = _add_keys(
        mixed, top, weight, q, k, far_k_row, v, v_row, here, 0, every, window, total, count, scale, width,
        False, EVEN, COLUMNS, WIDTH,
    )  # fmt: skip
    mixed, top, weight = _add_keys(
        mixed, top, weight, q, k, far_k_row, v, v_row, here, every, end, window, total, count, scale, width,
        True, EVEN, COLUMNS, WIDTH,
    )  # fmt: skip

    # Near keys: the window's edge, then blocks that all rows see, then the diagonal.
    q = tl.load(near_q + head * near_q_head + away[:, None] * near_q_row + dims[None, :], mask=held, other=0.0)
    k = near_k + group * near_k_head
    start, end = tl.maximum(0, low - window + 1) // COLUMNS * COLUMNS, high + 1
    inside = tl.minimum(tl.cdiv(tl.maximum(0, high - window + 1), COLUMNS) * COLUMNS, end)
    until = tl.maximum(inside, (low + 1) // COLUMNS * COLUMNS)
    mixed, top, weight = _add_keys(
        mixed, top, weight, q, k, near_k_row, v, v_row, here, start, inside, 0, window, total, scale, width,
        True, EVEN, COLUMNS, WIDTH,
    )  # fmt: skip
    mixed, top, weight = _add_keys(
        mixed, top, weight, q, k, near_k_row, v, v_row, here, inside, until, 0, window, total, scale, width,
        False, EVEN, COLUMNS, WIDTH,
    )  # fmt: skip
    mixed, top, weight = _add_keys(
        mixed, top, weight, q, k, near_k_row, v, v_row, here, until, end, 0, window, total, scale, width,
        True, EVEN, COLUMNS, WIDTH,
    )  # fmt: skip

    mixed = mixed / weight[:, None]
    tl.store(out + head * out_head + away[:, None] * out_row + dims[None, :], mixed.to(out.dtype.element_ty), mask=held)


@triton.jit
def _add_keys(
    mixed, top, weight, q, k, k_row, v, v_row, here, begin, end, least, beyond, last, scale, width,
    EDGE: tl.constexpr, EVEN: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Add keys from `begin` to `end`; at an edge, those before `last` with least <= i - j < beyond alone."""
    dims = tl.arange(0, WIDTH)
    for place in range(begin, end, COLUMNS):
        there = place + tl.arange(0, COLUMNS)
        offset = there[:, None].to(tl.int64)
        # Blocks inside need no mask, so their loads are whole lines.
        if EVEN and not EDGE:
            keys = tl.load(k + offset * k_row + dims[None, :])
            values = tl.load(v + offset * v_row + dims[None, :])
        else:
            held = (there < last)[:, None] & (dims < width)[None, :]
            keys = tl.load(k + offset * k_row + dims[None, :], mask=held, other=0.0)
            values = tl.load(v + offset * v_row + dims[None, :], mask=held, other=0.0)
        products = tl.dot(q, tl.trans(keys), input_precision="ieee")
        if EDGE:
            apart = here[:, None] - there[None, :]
            seen = (apart >= least) & (apart < beyond) & (there < last)[None, :]
            products = tl.where(seen, products, float("-inf"))
        # Online softmax: what was summed so far is scaled down when a larger logit comes.
        higher = tl.maximum(top, tl.max(products, 1) * scale)
        weights = tl.exp2(products * scale - higher[:, None])
        faded = tl.exp2(top - higher)
        mixed = mixed * faded[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        weight, top = weight * faded + tl.sum(weights, 1), higher
    return mixed, top, weight
