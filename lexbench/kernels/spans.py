"""Cut queries into spans, so that blocks of equal size become a batch and memory stays small."""

from collections.abc import Iterator

from torch import Tensor

ROWS = 2048
"""Largest number of queries in a span."""


def spans(first: int, end: int, size: int) -> Iterator[tuple[int, int]]:
    """Cut [first, end) into spans, each inside one block of `size`, or several whole blocks after block 0."""
    start = first
    while start < end:
        blocks = min(ROWS, end - start) // size if start and start % size == 0 else 0
        stop = start + blocks * size if blocks else min(end, start - start % size + size, start + ROWS)
        yield start, stop
        start = stop


def fold(vectors: Tensor, count: int) -> Tensor:
    """[B, H, count T, D] as [B count, H, T, D], a view where B is 1."""
    batch, heads, rows, width = vectors.shape
    return vectors.reshape(batch, heads, count, rows // count, width).transpose(1, 2).flatten(0, 1)


def unfold(vectors: Tensor, count: int) -> Tensor:
    """[B count, H, T, ...] as [B, H, count T, ...]: `fold` undone."""
    return vectors.reshape(-1, count, *vectors.shape[1:]).transpose(1, 2).flatten(2, 3)
