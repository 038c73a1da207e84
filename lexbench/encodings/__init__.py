"""Positional encodings that a model is trained with: part of a model, never a method."""

import math

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

    @property
    def decay(self) -> Tensor | None:
        """[D / 2] by how much the logarithm of what pair (p, p + D/2) adds to a logit changes per token of distance.

        None: nothing decays. `rotate` leaves it to whoever makes the logits, who knows queries from keys: `meet`.
        """
        return None

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor | None:
        """[H, Tq, Tk] added to the logits, or None."""
        return None

    def meet(self, queries: Tensor, keys: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys of the same T tokens, rotated, and times what makes their plain dot product decay.

            e^(decay (i - j)) = e^(decay (i - c)) e^(-decay (j - c)),  c the middle of the positions

        Raises ValueError where T is too long for such factors in the vectors' dtype: with xPos's own parameters float16
        ends at 4,532 tokens, float32 and bfloat16 at 36,000.
        """
        queries, keys = self.rotate(queries, positions), self.rotate(keys, positions)
        if self.decay is None or not len(positions):
            return queries, keys
        places = positions.to(torch.float64)
        growth = (places - (places.min() + places.max()) / 2)[:, None] * torch.cat([self.decay, self.decay])
        # The product of two factors is above 1 where the key comes later: masked, but it must be finite.
        largest, limit = float(growth.abs().max()), math.log(torch.finfo(queries.dtype).max) / 2
        if largest > limit:
            raise ValueError(
                f"{type(self).__name__.lower()} over {len(positions)} tokens needs factors of e^{largest:.0f}, "
                f"{queries.dtype} has room for e^{limit:.0f}: take fewer tokens, or a dtype of larger range"
            )
        return queries * growth.exp().to(queries.dtype), keys * (-growth).exp().to(keys.dtype)


def angles(inv_freq: Tensor, positions: Tensor) -> Tensor:
    """[T, pairs] rotation angles in float64, whatever dtype the network runs in."""
    return positions.to(torch.float64)[:, None] * inv_freq.to(torch.float64)


def turned(vectors: Tensor, turn: Tensor, scale: float = 1.0) -> Tensor:
    """[B, H, T, D] vectors whose pairs (p, p + D/2) turn by angles [T, D / 2], times a scale; the half layout."""
    cos, sin = ((wave * scale).to(vectors.dtype) for wave in (turn.cos(), turn.sin()))
    first, second = vectors.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
