"""Cut queries into spans, so that blocks of equal size become a batch and memory stays small."""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor

from lexbench.core.attention import Floats, PositionMap, Positions
from lexbench.kernels.heads import Rotate

MAX_CPU_SPAN_QUERIES = 2048
"""Largest number of queries in a span, on a CPU."""


def max_span_queries(device: torch.device) -> int:
    """Largest number of queries in a span: a GPU needs more work in each launch of a kernel."""
    return MAX_CPU_SPAN_QUERIES if device.type == "cpu" else 8 * MAX_CPU_SPAN_QUERIES


def cut_into_spans(first: int, end: int, size: int, rows: int) -> Iterator[tuple[int, int]]:
    """Cut [first, end) into spans, each inside one block of `size`, or several whole blocks after block 0."""
    start = first
    while start < end:
        # Block 0 stands alone: it has no block before it, and a batch of blocks is one call with one shape.
        blocks = min(rows, end - start) // size if start and start % size == 0 else 0
        stop = start + blocks * size if blocks else min(end, start - start % size + size, start + rows)
        yield start, stop
        start = stop


def fold_blocks(vectors: Tensor, count: int) -> Tensor:
    """[B, H, count T, D] as [B count, H, T, D], a view where B is 1."""
    batch, heads, rows, width = vectors.shape
    return vectors.reshape(batch, heads, count, rows // count, width).transpose(1, 2).flatten(0, 1)


def unfold_blocks(vectors: Tensor, count: int) -> Tensor:
    """[B count, H, T, ...] as [B, H, count T, ...]: `fold_blocks` undone."""
    return vectors.reshape(-1, count, *vectors.shape[1:]).transpose(1, 2).flatten(2, 3)


@lru_cache(maxsize=256)
def mapped_positions(line: Callable[[Positions], Floats], start: int, stop: int, device: torch.device) -> Tensor:
    """[stop - start] rotary positions of the tokens from `start` on; the tensor is kept for all layers."""
    # Kept from a pass in inference mode, the tensor could not be used in a later one that needs gradients.
    with torch.inference_mode(False):
        return torch.from_numpy(np.asarray(line(np.arange(start, stop)))).to(device)


def rotate_to_line(vectors: Tensor, line: Callable[[Positions], Floats], start: int, rotate: Rotate) -> Tensor:
    """Rotate vectors of the tokens from `start` on to the positions of the line."""
    return rotate(vectors, mapped_positions(line, start, start + vectors.shape[2], vectors.device))


def is_constant(line: Callable[[Positions], Floats]) -> TypeGuard[PositionMap]:
    """Whether a line gives all tokens one position: keys may stay unrotated, and queries turn relative to them."""
    return isinstance(line, PositionMap) and np.isinf(line.divisor)


def position_tensor(start: int, stop: int, device: torch.device) -> Tensor:
    """[stop - start] positions of the tokens from `start` on, whole numbers."""
    return mapped_positions(_as_they_are, start, stop, device)


def _as_they_are(positions: Positions) -> Any:
    return positions
