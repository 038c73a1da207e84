"""Support of the processor for products of half precision."""

from typing import Any

import torch


def half_matmul_is_slow(dtype: torch.dtype) -> bool:
    """Whether torch multiplies matrices of this dtype in a plain loop here, as on processors without AVX-512."""
    known = {torch.bfloat16: "_is_mkldnn_bf16_supported", torch.float16: "_is_mkldnn_fp16_supported"}
    library: Any = torch.backends.mkldnn
    return dtype in known and library.is_available() and not getattr(torch.ops.mkldnn, known[dtype])()
