"""Rotate vectors in one Triton kernel, for CUDA: PyTorch needs five, each of which reads and writes all of them."""

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_PROGRAM_NUMBERS = 4096
"""Numbers that a program rotates at most."""


def rotate_pairs(vectors: Tensor, cos: Tensor, sin: Tensor, halves: bool, offset: int) -> Tensor:
    """Vectors [B, H, T, D] with pair (x, y) of each turned to (x cos - y sin, y cos + x sin), in float32.

    Args:
        vectors: of any strides.
        cos: [1 or B, T, pairs].
        sin: like `cos`.
        halves: pair p stands at dimensions (p, p + pairs), else at (2 p, 2 p + 1).
        offset: first rotated dimension; those before, and those behind the last pair, stay.
    """
    batch, heads, tokens, width = vectors.shape
    pairs = cos.shape[-1]
    vectors = vectors if vectors.stride(3) == 1 else vectors.contiguous()
    # Laid out as PyTorch's own sum of such vectors would be.
    found = torch.empty_like(vectors) if width == 2 * pairs else vectors.clone()
    padded = triton.next_power_of_2(pairs)
    rows = max(1, min(triton.next_power_of_2(tokens), MAX_PROGRAM_NUMBERS // padded))
    with torch.cuda.device_of(vectors):  # layers may be spread over several
        _kernel[triton.cdiv(tokens, rows), heads, batch](
            vectors,
            found,
            cos,
            sin,
            *vectors.stride()[:3],
            *found.stride()[:3],
            cos.stride(0) if len(cos) > 1 else 0,
            *cos.stride()[1:],
            sin.stride(0) if len(sin) > 1 else 0,
            *sin.stride()[1:],
            tokens,
            offset,
            PAIRS=pairs,
            HALVES=halves,
            ROWS=rows,
            PADDED=padded,
        )
    return found


@triton.jit(do_not_specialize=("tokens", "offset"))
def _kernel(
    x,
    out,
    cos,
    sin,
    x_text,
    x_head,
    x_row,
    out_text,
    out_head,
    out_row,
    cos_text,
    cos_row,
    cos_pair,
    sin_text,
    sin_row,
    sin_pair,
    tokens,
    offset,
    PAIRS: tl.constexpr,
    HALVES: tl.constexpr,
    ROWS: tl.constexpr,
    PADDED: tl.constexpr,
):
    """Some tokens of one head of a text."""
    head, text = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    pairs = tl.arange(0, PADDED)
    held = (rows < tokens)[:, None] & (pairs < PAIRS)[None, :]
    first = offset + (pairs if HALVES else 2 * pairs)
    apart = PAIRS if HALVES else 1
    c = tl.load(cos + text * cos_text + rows[:, None] * cos_row + pairs[None, :] * cos_pair, mask=held, other=0.0)
    s = tl.load(sin + text * sin_text + rows[:, None] * sin_row + pairs[None, :] * sin_pair, mask=held, other=0.0)
    c, s = c.to(tl.float32), s.to(tl.float32)
    at = x + text * x_text + head * x_head + rows[:, None] * x_row + first[None, :]
    one = tl.load(at, mask=held, other=0.0).to(tl.float32)
    two = tl.load(at + apart, mask=held, other=0.0).to(tl.float32)
    to = out + text * out_text + head * out_head + rows[:, None] * out_row + first[None, :]
    tl.store(to, (one * c - two * s).to(out.dtype.element_ty), mask=held)
    tl.store(to + apart, (two * c + one * s).to(out.dtype.element_ty), mask=held)
