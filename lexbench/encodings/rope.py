"""Rotary position embedding (RoFormer, Su et al. 2021, arXiv 2104.09864)."""

import torch
from torch import Tensor

from lexbench.encodings import Encoding, angles, turned


class Rope(Encoding):
    """Pair (p, p + d/2) of a head's vector at position t turns by t * inv_freq[p]; the half layout of Llama.

    Args:
        head_dim: d, dimensions of a head.
        base: b in inv_freq[p] = b^(-2p/d).
    """

    inv_freq: Tensor

    def __init__(self, head_dim: int, base: float = 10000.0) -> None:
        super().__init__()
        pairs = torch.arange(0, head_dim, 2, dtype=torch.float64)
        self.register_buffer("inv_freq", base ** (-pairs / head_dim), persistent=False)
        self.base = base
        self.scale = 1.0

    def rotate(self, vectors: Tensor, positions: Tensor) -> Tensor:
        """[B, H, T, D] turned; cos and sin are made in float64."""
        return turned(vectors, angles(self.inv_freq, positions), self.scale)
