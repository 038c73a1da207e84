"""What a method's distances and mask come to, as one matrix."""

from typing import Any

import numpy as np

from lexbench import Model
from lexbench.core.attention import Floats, seen_distances
from lexbench.methods.composition import Method


def distances(method: Method, model: Model, length: int) -> Floats:
    """[length, length] what stands in place of i - j, -1 where the query does not see the key."""
    attention = method.attention(model, length)
    positions = np.arange(length)
    rel = (positions[:, None] - positions[None, :]).astype(np.float64)
    seen = rel if attention.remap is None else seen_distances(attention.remap, positions, positions)
    allowed = rel >= 0 if attention.mask is None else (rel >= 0) & attention.mask.allowed(positions, positions)
    return np.where(allowed, seen, -1)


def plain(length: int) -> list[list[int]]:
    """The model's own distances."""
    return [[i - j if j <= i else -1 for j in range(length)] for i in range(length)]


def trained_on(tokens: int, **facts: Any) -> Model:
    """A small rotary model that knows so many tokens."""
    return Model(name="known", trained_length=tokens, head_dim=8, rope_base=10_000.0, **facts)
