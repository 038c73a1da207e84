"""RMSNorm (arXiv 1910.07467, eq. 4) in one Triton kernel, for CUDA: transformers' code of it calls eight."""

import torch
import triton
import triton.language as tl
from torch import Tensor


def rms_norm(vectors: Tensor, weight: Tensor, eps: float, from_one: bool = False, rounded: bool = False) -> Tensor:
    """Vectors [..., D] over the root of their mean square, times the weight, computed in float32.

    Args:
        vectors: in half precision.
        weight: [D] in the same dtype.
        eps: added to the mean square.
        from_one: the factors are 1 + weight, as in Gemma.
        rounded: round to the dtype of the vectors before the weight too, as Llama does.
    """
    rows = vectors.contiguous()
    found, width = torch.empty_like(rows), rows.shape[-1]
    padded = triton.next_power_of_2(width)
    with torch.cuda.device_of(vectors):  # layers may be spread over several
        _kernel[(rows.numel() // width,)](
            rows,
            weight,
            found,
            width,
            eps,
            FROM_ONE=from_one,
            ROUNDED=rounded,
            PADDED=padded,
            # Eight numbers a thread are one load.
            num_warps=min(16, max(1, padded // 256)),
        )
    return found


@triton.jit
def _kernel(x, weight, out, width, eps, FROM_ONE: tl.constexpr, ROUNDED: tl.constexpr, PADDED: tl.constexpr):
    """Normalise one vector; a program for each."""
    dims = tl.arange(0, PADDED)
    held, begin = dims < width, tl.program_id(0).to(tl.int64) * width
    numbers = tl.load(x + begin + dims, mask=held, other=0.0).to(tl.float32)
    factors = tl.load(weight + dims, mask=held, other=0.0).to(tl.float32)
    if FROM_ONE:
        factors += 1.0
    numbers *= tl.rsqrt(tl.sum(numbers * numbers, 0) / width + eps)
    if ROUNDED:
        numbers = numbers.to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + begin + dims, (numbers * factors).to(out.dtype.element_ty), mask=held)
