"""Positional encodings that a model is trained with: part of a model, never a method."""

import torch
from torch import Tensor, nn


class Encoding(nn.Module):
    """The hooks through which positions enter the decoder; each does nothing unless an encoding overrides it.

    Shapes: B batch, H heads, T tokens, D head_dim. `positions` is [T], float64, possibly fractional.
    """

    def embed(self, embedded: Tensor, positions: Tensor) -> Tensor:
        """[B, T, width] token embeddings before the first layer."""
        return embedded

    def rotate(self, vectors: Tensor, positions: Tensor) -> Tensor:
        """[B, H, T, D] queries or keys, each with its position."""
        return vectors

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor | None:
        """[H, Tq, Tk] added to the logits, or None."""
        return None


def angles(inv_freq: Tensor, positions: Tensor) -> Tensor:
    """[T, pairs] rotation angles in float64, whatever dtype the network runs in."""
    return positions.to(torch.float64)[:, None] * inv_freq.to(torch.float64)
