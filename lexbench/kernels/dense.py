"""Attention under every slot of an Attention, by its definition: the kernel that all others are compared with."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lexbench.attention import Attention, Positions

Rotate = Callable[[Tensor, Tensor], Tensor]
"""(vectors [B, H, T, D], positions [T] float64) -> vectors, each turned by its position; scale included."""
SLOTS = ("query_scale", "remap", "mask", "bias")


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    query_positions: Tensor,
    attention: Attention,
    rotate: Rotate,
    scaling: float,
    chunk: int | None = None,
) -> Tensor:
    """Causal attention of rotated queries and keys, grouped-query aware.

    Softmax runs in float32 (float64 for float64 inputs) whatever the dtype. Memory is O(chunk K) beside the inputs.

    Args:
        queries: [B, H, Q, D], not rotated.
        keys: [B, KV, K, D], not rotated, at positions 0..K-1; H is a multiple of KV.
        values: [B, KV, K, D].
        query_positions: [Q] whole numbers below K, rising by one.
        attention: its query_scale, remap, mask and bias; frequencies and scale are `rotate`'s, layers the caller's.
        rotate: turns vectors by their positions.
        scaling: of the logits, usually head_dim^-0.5.
        chunk: queries at a time; None: all.

    Returns:
        [B, H, Q, D] in the dtype of the queries.
    """
    key_positions = torch.arange(keys.shape[2], device=keys.device)
    near_queries = _scaled(rotate(queries, query_positions.double()), attention, query_positions)
    near_keys = rotate(keys, key_positions.double())
    if not any(getattr(attention, slot) is not None for slot in SLOTS) and len(query_positions) == len(key_positions):
        return F.scaled_dot_product_attention(
            near_queries, near_keys, values, is_causal=True, scale=scaling, enable_gqa=True
        )
    far_queries = far_keys = None
    if attention.remap is not None:
        turned = rotate(queries, _mapped(attention.remap.query, query_positions))
        far_queries = _scaled(turned, attention, query_positions)
        far_keys = rotate(keys, _mapped(attention.remap.key, key_positions))

    outputs = []
    step = chunk or len(query_positions)
    for begin in range(0, len(query_positions), step):
        part = slice(begin, begin + step)
        positions = query_positions[part]
        seen = int(positions[-1]) + 1  # later keys are masked for all of these queries
        logits = _logits(near_queries[:, :, part], near_keys[:, :, :seen])
        distance = positions[:, None] - key_positions[None, :seen]
        if attention.remap is not None and far_queries is not None and far_keys is not None:
            far = _logits(far_queries[:, :, part], far_keys[:, :, :seen])
            logits = torch.where(distance < attention.remap.window, logits, far)
        logits = logits * scaling
        if attention.bias is not None:
            logits = logits + _tensor(attention.bias(_numpy(positions), _numpy(key_positions[:seen])), logits)
        allowed = distance >= 0
        if attention.mask is not None:
            permitted = attention.mask.allowed(_numpy(positions), _numpy(key_positions[:seen]))
            allowed = allowed & torch.from_numpy(permitted).to(allowed.device)
        weights = logits.masked_fill(~allowed, -torch.inf).softmax(dim=-1)
        outputs.append(_weighted(weights, values[:, :, :seen]))
    return torch.cat(outputs, dim=2).to(queries.dtype)


def _scaled(queries: Tensor, attention: Attention, positions: Tensor) -> Tensor:
    if attention.query_scale is None:
        return queries
    return queries * _tensor(attention.query_scale(_numpy(positions)), queries)[:, None]


def _mapped(line: Callable[[Positions], np.ndarray], positions: Tensor) -> Tensor:
    return torch.from_numpy(line(_numpy(positions))).to(positions.device)


def _logits(queries: Tensor, keys: Tensor) -> Tensor:
    """[B, H, Q, K] products in float32 or better; each group of queries meets its one key head."""
    wide = torch.promote_types(queries.dtype, torch.float32)
    grouped = queries.to(wide).unflatten(1, (keys.shape[1], -1))
    return (grouped @ keys.to(wide)[:, :, None].transpose(-1, -2)).flatten(1, 2)


def _weighted(weights: Tensor, values: Tensor) -> Tensor:
    """[B, H, Q, D] sums of values."""
    grouped = weights.unflatten(1, (values.shape[1], -1))
    return (grouped @ values.to(weights.dtype)[:, :, None]).flatten(1, 2)


def _numpy(positions: Tensor) -> Positions:
    return np.asarray(positions.cpu().numpy(), dtype=np.int64)


def _tensor(values: np.ndarray, like: Tensor) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(device=like.device, dtype=like.dtype)
