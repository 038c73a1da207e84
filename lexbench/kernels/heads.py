"""Pieces of all kernels: the form of a rotation, and products in which several query heads share a key head."""

from collections.abc import Callable

from torch import Tensor

Rotate = Callable[[Tensor, Tensor], Tensor]
"""(vectors [B, H, T, D], positions [T], possibly fractional) -> vectors there, times the scale of cos and sin.

Kernels ask with positions [T, bands] where a remap has bands of pairs (`lexbench.kernels.rotations.per_band`)."""


def multiply_per_group(rows: Tensor, columns: Tensor) -> Tensor:
    """Multiply [B, H, R, M] by [B, KV, M, N], H / KV heads for each key head, without copying key heads."""
    batch, heads, count, inner = rows.shape
    # The query heads of one key head become its rows: one product a key head.
    grouped = rows.reshape(batch, columns.shape[1], -1, inner)
    return (grouped @ columns).reshape(batch, heads, count, columns.shape[3])
