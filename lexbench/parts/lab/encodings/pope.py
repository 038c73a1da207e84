"""PoPE: polar coordinate position embedding (Gopalakrishnan et al. 2025, arXiv 2509.10534)."""

import math

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from lexbench.kernels.heads import Rotate
from lexbench.parts.lab.encodings.base import Encoding, insert_head_axis, rotation_angles


class Pope(Encoding):
    """Content is the length of each dimension, never below 0, and position alone its angle.

        logit(i, j) = sum_c softplus(q_ic) softplus(k_jc) cos((i - j) theta_c - delta_c) / sqrt(d)
        theta_c = base^(-c / d),  c = 0 .. d - 1,   delta in [-2 pi, 0], learned for each key head

    RoPE turns pairs of dimensions, whose content adds an angle of its own; here each dimension has its frequency, twice
    as many. Written as plain products, vectors have 2 d dimensions: [m cos, m sin]. Source: the paper's abstract and an
    implementation of it (PoPE-pytorch, read, not run), whose delta begins at 0 and is clamped as here.

    Args:
        head_dim: d, dimensions of a head.
        kv_heads: key heads.
        base: of the frequencies.
    """

    shared = False
    frequencies: Tensor

    def __init__(self, head_dim: int, kv_heads: int, base: float = 10000.0) -> None:
        super().__init__()
        exponents = -torch.arange(head_dim, dtype=torch.float64) / head_dim
        self.register_buffer("frequencies", base**exponents, persistent=False)
        self.phase = nn.Parameter(torch.zeros(kv_heads, head_dim))

    def initialise(self, generator: Generator) -> None:
        """Begin with phases of 0, as the implementation does."""
        nn.init.zeros_(self.phase)

    def constrain(self) -> None:
        """Clamp the phases to [-2 pi, 0]."""
        self.phase.data.clamp_(-2 * math.pi, 0.0)

    def qk(
        self, queries: Tensor, keys: Tensor, query_positions: Tensor, key_positions: Tensor, rotate: Rotate
    ) -> tuple[Tensor, Tensor]:
        """Queries [B, H, Q, 2 D] and keys [B, KV, K, 2 D] whose plain products are the scores before scaling."""
        phase = self.phase[:, None].to(torch.float64)
        asking = insert_head_axis(rotation_angles(self.frequencies, query_positions))
        known = insert_head_axis(rotation_angles(self.frequencies, key_positions)) + phase
        return _from_polar(queries, asking), _from_polar(keys, known)


def _from_polar(vectors: Tensor, angles: Tensor) -> Tensor:
    lengths = F.softplus(vectors)
    return torch.cat([lengths * angles.cos().to(lengths.dtype), lengths * angles.sin().to(lengths.dtype)], dim=-1)
