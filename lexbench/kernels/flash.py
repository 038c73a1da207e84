"""PyTorch's fused attention with its log-sum-exp, and the merge of parts that saw different keys (online softmax).

    lse(i) = ln sum_j e^logit(i, j)
    out = (e^lse_1 out_1 + e^lse_2 out_2) / (e^lse_1 + e^lse_2)

for parts 1 and 2 of the keys. Three shapes suffice for all kernels here, and none needs a mask: all keys, a causal
triangle, and its mirror image. No row may be without keys: the fused kernels return out 0 and lse 0 for it, but a merge
would need lse -inf.
"""

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend

_aten = torch.ops.aten
# torch.mm and torch.bmm take `out_dtype` from 2.8 on.
HAS_MIXED_PRECISION_PRODUCTS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 8)
"""Whether products of halves may have float32 results on CUDA."""
HEAD_DIM = 256
"""Largest head dimension of the flash kernel for CUDA."""


class PartialAttention(NamedTuple):
    """Attention of queries over a part of the keys."""

    out: Tensor
    """[B, H, Q, D] outputs; float32, or float64 for float64 inputs."""
    lse: Tensor
    """[B, H, Q] log-sum-exp of the logits, in nats; dtype as `out`."""

    def add(self, rows: slice, other: "PartialAttention") -> None:
        """Merge further keys into some of the rows, in place."""
        out, lse = self.out[:, :, rows], self.lse[:, :, rows]
        # e^lse_2 / (e^lse_1 + e^lse_2) = sigmoid(lse_2 - lse_1), which cannot overflow.
        out.lerp_(other.out, (other.lse - lse).sigmoid()[..., None])
        torch.logaddexp(lse, other.lse, out=lse)

    def with_sinks(self, sinks: Tensor | None) -> "PartialAttention":
        """The part with a logit [H] for each head that takes weight and adds no value; in place."""
        if sinks is not None:
            # out e^lse / (e^lse + e^sink): the sink is a key without a value.
            self.out.mul_((self.lse - sinks.to(self.lse)[:, None]).sigmoid()[..., None])
        return self


def attend_to_all(
    queries: Tensor, keys: Tensor, values: Tensor, scaling: float, seen: Tensor | None = None
) -> PartialAttention:
    """Every query sees every key. Queries [B, H, Q, D], keys and values [B, KV, K, D], shared by H / KV heads.

    With `seen`, [B, K], queries of a text see these keys; one that sees none has an lse so low that a merge with
    another part leaves that one as it is.
    """
    if seen is None:
        return _call_fused_kernel(queries, keys, values, False, scaling)
    return _attend_masked(queries, keys, values, seen, scaling)


def attend_causally(queries: Tensor, keys: Tensor, values: Tensor, scaling: float) -> PartialAttention:
    """The queries are the last Q of K positions: query r sees key c where c - r <= K - Q."""
    n_queries, past = queries.shape[2], keys.shape[2] - queries.shape[2]
    assert past >= 0, f"{n_queries} queries cannot be the last of {keys.shape[2]} keys"
    if n_queries == 1:
        return attend_to_all(queries, keys, values, scaling)
    # A square triangle over the last Q keys; all queries see the earlier keys.
    part = _call_fused_kernel(queries, keys[:, :, past:], values[:, :, past:], True, scaling)
    if past:
        part.add(slice(None), attend_to_all(queries, keys[:, :, :past], values[:, :, :past], scaling))
    return part


def attend_by_cudnn(queries: Tensor, keys: Tensor, values: Tensor, scaling: float) -> PartialAttention | None:
    """Attend causally with as many queries as keys, in the dtype of the queries; None where PyTorch picks not cuDNN.

    B is 1. It plans for each size and each set of strides: those here do not depend on what surrounds the vectors.
    """
    if not queries.is_cuda:
        return None
    q, k, v = (_dense_text(x) for x in (queries, keys, values))
    picked = torch._fused_sdp_choice(q, k, v, None, 0.0, True, scale=scaling, enable_gqa=True)
    shape = queries.shape[1] // keys.shape[1], queries.shape[3]
    if picked != SDPBackend.CUDNN_ATTENTION.value or not _cudnn_agrees(queries.device, queries.dtype, *shape):
        return None
    return _by_cudnn(q, k, v, scaling)


def _dense_text(vectors: Tensor) -> Tensor:
    """[1, H, T, D] vectors whose strides are those of T tokens alone, copied where heads stand apart."""
    # [None] makes a new stride, of the one text or one head.
    text = vectors[0, 0][None] if vectors.shape[1] == 1 else vectors[0]
    return (text if text.stride(2) == 1 and text.stride(0) < text.stride(1) else text.contiguous())[None]


def _by_cudnn(q: Tensor, k: Tensor, v: Tensor, scaling: float) -> PartialAttention:
    out, lse, *_ = _aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, True, scale=scaling)
    return PartialAttention(out, lse.reshape(q.shape[:3]))  # [B, H, T, 1], or without the 1


@cache
def _cudnn_agrees(device: torch.device, dtype: torch.dtype, shared: int, width: int) -> bool:
    """Whether cuDNN gives attention and its log-sum-exp as defined, of heads that share a key head."""
    generator = torch.Generator(device).manual_seed(0)
    q, k, v = (
        torch.randn(1, heads, 256, width, generator=generator, device=device).to(dtype) for heads in (shared, 1, 1)
    )
    scaling = width**-0.5
    try:
        out, lse = _by_cudnn(q, k, v, scaling)
    except RuntimeError:  # of cuDNN, for shapes that it has no plan for
        return False
    exact, sums = _by_definition(q.double(), k.double(), v.double(), True, scaling)
    return float((out - exact).norm() / exact.norm()) < 1e-2 and float((lse - sums).abs().max()) < 1e-2


def attend_anticausally(queries: Tensor, keys: Tensor, values: Tensor, scaling: float) -> PartialAttention:
    """Attend with as many queries as keys; query r sees key c where c >= r: a causal triangle in reversed order."""
    # In reversed order c >= r is c' <= r'.
    out, lse = _call_fused_kernel(queries.flip(2), keys.flip(2), values.flip(2), True, scaling)
    return PartialAttention(out.flip(2), lse.flip(2))


def _call_fused_kernel(
    queries: Tensor, keys: Tensor, values: Tensor, is_causal: bool, scaling: float
) -> PartialAttention:
    """Call the kernel for device and dtype. Causal calls must be square: kernels align other triangles differently."""
    n_queries, precise = queries.shape[2], torch.promote_types(queries.dtype, torch.float32)
    assert not is_causal or n_queries == keys.shape[2], f"{n_queries} queries and {keys.shape[2]} keys are not square"
    q, k, v = (x if x.stride(3) == 1 else x.contiguous() for x in (queries, keys, values))
    # These operators are private, but F.scaled_dot_product_attention calls them and drops the log-sum-exp.
    if q.device.type == "cpu":
        out, lse = _aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, is_causal, scale=scaling)
    elif q.device.type == "cuda" and q.dtype != torch.float64:
        out, lse = _on_cuda(q, k, v, is_causal, scaling)
    else:
        out, lse = _by_definition(q, k, v, is_causal, scaling)
    return PartialAttention(out.to(precise), lse.to(precise))


def _on_cuda(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scaling: float) -> tuple[Tensor, Tensor]:
    """Flash for half precision, else the memory-efficient kernel, which has no shared key heads and pads lse."""
    n_queries, width = q.shape[2], v.shape[3]
    if width % 8:  # both kernels need a multiple of 8; zeros change no product
        q, k, v = (F.pad(x, (0, -width % 8)) for x in (q, k, v))
    # Flash needs compute capability 8.0, half precision, and heads of at most 256 dimensions.
    ampere = torch.cuda.get_device_capability(q.device) >= (8, 0)
    if ampere and q.dtype != torch.float32 and q.shape[3] <= HEAD_DIM:
        out, lse, *_ = _aten._scaled_dot_product_flash_attention(q, k, v, 0.0, is_causal, scale=scaling)
    else:
        # The memory-efficient kernel wants a key head for each query head.
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
        out, lse, *_ = _aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, is_causal, scale=scaling)
    return out[..., :width], lse[..., :n_queries]


def _attend_masked(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scaling: float) -> PartialAttention:
    """Attention with keys that are not seen, at finite logits: no kernel has to know rows without keys."""
    precise = torch.promote_types(q.dtype, torch.float32)
    # Finite: a row without keys then has a finite lse, so low that the sigmoid of a merge gives its part weight 0. Half
    # of the lowest number, so that a logit added to it does not overflow.
    unseen = torch.finfo(q.dtype).min / 2
    if _device(q) == "cpu":
        mask = torch.zeros(seen.shape, dtype=q.dtype).masked_fill_(~seen, unseen)
        mask = mask[:, None, None].expand(-1, 1, q.shape[2], -1)
        q, k, v = (x if x.stride(3) == 1 else x.contiguous() for x in (q, k, v))
        out, lse = _aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, False, attn_mask=mask, scale=scaling)
        return PartialAttention(out.to(precise), lse.to(precise))
    batch, heads, n_queries, width = q.shape
    groups = k.shape[1]
    asking = q.reshape(batch * groups, heads // groups * n_queries, width)
    logits = scaling * matmul_in_float32(asking, k.flatten(0, 1).mT)
    hidden = (~seen)[:, None].expand(-1, groups, -1).reshape(batch * groups, 1, -1)
    logits.masked_fill_(hidden, unseen)
    lse = logits.logsumexp(-1)
    out = matmul_in_float32((logits - lse[..., None]).exp().to(v.dtype), v.flatten(0, 1))
    return PartialAttention(out.reshape(batch, heads, n_queries, v.shape[3]), lse.reshape(batch, heads, n_queries))


def _device(x: Tensor) -> str:
    return x.device.type


def matmul_in_float32(one: Tensor, two: Tensor) -> Tensor:
    """[N, Q, K] product of [N, Q, D] and [N, D, K] in float32, or float64 for float64; of halves without copies."""
    precise = torch.promote_types(one.dtype, torch.float32)
    if one.dtype == precise:
        return one @ two
    if HAS_MIXED_PRECISION_PRODUCTS and one.is_cuda:
        return torch.bmm(one, two, out_dtype=precise)
    return one.to(precise) @ two.to(precise)


def _by_definition(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scaling: float) -> tuple[Tensor, Tensor]:
    """All scores at once, where there is no fused kernel."""
    batch, _, n_queries, width = q.shape
    logits = scaling * q.reshape(batch, k.shape[1], -1, n_queries, width) @ k[:, :, None].mT
    if is_causal:
        # Strictly above the diagonal: later keys.
        logits += torch.full_like(logits[0, 0, 0], -torch.inf).triu_(1)
    lse = logits.logsumexp(-1)
    return ((logits - lse[..., None]).exp() @ v[:, :, None]).flatten(1, 2), lse.flatten(1, 2)
