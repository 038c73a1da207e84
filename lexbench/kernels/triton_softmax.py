"""Online softmax over ranges of keys, as a part of Triton kernels (FlashAttention, arXiv 2307.08691)."""

import triton
import triton.language as tl


@triton.jit
def add_range(
    mixed, top, weight, q, k, k_row, v, v_row, here, low, high, begin, last, least, beyond, scale, width,
    SLOPED: tl.constexpr, EVEN: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Add keys from `begin` to `last` with least <= i - j < beyond, which is asked of pairs at the edges alone.

    With `SLOPED`, the first keys are seen by the first queries of the block alone; else by all.
    """
    end = tl.minimum(last, high - least + 1)
    inside = begin
    if SLOPED:
        # Whole blocks, up to the first key that the last query sees.
        inside += tl.cdiv(tl.maximum(high - beyond + 1 - begin, 0), COLUMNS) * COLUMNS
        mixed, top, weight = add_keys(
            mixed, top, weight, q, k, k_row, v, v_row, here, begin, tl.minimum(inside, end), last, least, beyond, scale,
            width, True, EVEN, COLUMNS, WIDTH,
        )  # fmt: skip
    until = inside + tl.maximum(tl.minimum(last, low - least + 1) - inside, 0) // COLUMNS * COLUMNS
    mixed, top, weight = add_keys(
        mixed, top, weight, q, k, k_row, v, v_row, here, inside, until, last, least, beyond, scale, width,
        False, EVEN, COLUMNS, WIDTH,
    )  # fmt: skip
    return add_keys(
        mixed, top, weight, q, k, k_row, v, v_row, here, until, end, last, least, beyond, scale, width,
        True, EVEN, COLUMNS, WIDTH,
    )  # fmt: skip


@triton.jit
def add_keys(
    mixed, top, weight, q, k, k_row, v, v_row, here, begin, end, last, least, beyond, scale, width,
    EDGE: tl.constexpr, EVEN: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Add blocks of keys from `begin` to `end`; at an edge, those before `last` with least <= i - j < beyond alone."""
    columns, dims = tl.arange(0, COLUMNS), tl.arange(0, WIDTH)
    lowest = here - beyond + 1
    count = tl.maximum(tl.minimum(last, here - least + 1) - lowest, 0).to(tl.uint32)
    for place in range(begin, end, COLUMNS):
        there = place + columns
        # One long number for a block: a row's is one more multiplication, of each thread for each of its rows.
        base = tl.cast(place, tl.int64)
        at_k = k + base * k_row + columns[:, None] * k_row + dims[None, :]
        at_v = v + base * v_row + columns[:, None] * v_row + dims[None, :]
        # Blocks inside need no mask, so their loads are whole lines.
        if EVEN and not EDGE:
            keys, values = tl.load(at_k), tl.load(at_v)
        else:
            held = (there < last)[:, None] & (dims < width)[None, :]
            keys, values = tl.load(at_k, mask=held, other=0.0), tl.load(at_v, mask=held, other=0.0)
        products = tl.dot(q, tl.trans(keys), input_precision="ieee")
        if EDGE:
            # As numbers without sign those before the lowest are large: one comparison of a pair tells both ends.
            seen = (there[None, :] - lowest[:, None]).to(tl.uint32) < count[:, None]
            products = tl.where(seen, products, float("-inf"))
        # Online softmax: what was summed so far is scaled down when a larger logit comes.
        higher = tl.maximum(top, tl.max(products, 1) * scale)
        weights = tl.exp2(products * scale - higher[:, None])
        faded = tl.exp2(top - higher)
        mixed = tl.dot(weights.to(values.dtype), values, mixed * faded[:, None], input_precision="ieee")
        weight, top = weight * faded + tl.sum(weights, 1), higher
    return mixed, top, weight
