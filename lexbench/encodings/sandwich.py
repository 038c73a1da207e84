"""Sandwich: products of sinusoidal positions with one another, as a bias (Chi et al. 2023, arXiv 2212.10356)."""

import torch
from torch import Tensor

from lexbench.encodings.base import Encoding, of_distance


class Sandwich(Encoding):
    """Bias of the distance without learned weights; it falls fastest in the first head.

        b_h = (sum_{k=1..D/2} cos((i - j) 10000^(-2k/D)) - D/2) / (8h / H),   h = 1 .. H

    Of (x_i + p_i) . (x_j + p_j) with sinusoidal p it keeps p_i . p_j, shifted to 0 at distance 0. That is what NVIDIA's
    NeMo computes; there the sum begins at k = 1, while sinusoidal positions begin at k = 0. In the paper D need not be
    the width of the network; which D it used is not verified here, NeMo uses head_dim.

    Args:
        heads: H, query heads.
        head_dim: dimensions of a head.
        dimension: D, even; None: head_dim.
    """

    halves: Tensor
    slopes: Tensor

    def __init__(self, heads: int, head_dim: int, dimension: int | None = None) -> None:
        super().__init__()
        size = head_dim if dimension is None else dimension
        if size < 2 or size % 2:
            raise ValueError(f"sandwich needs an even dimension of at least 2, got {size}: e.g. dimension=128")
        order = torch.arange(1, size // 2 + 1, dtype=torch.float64)
        self.register_buffer("halves", 10000 ** (-2 * order / size) / 2, persistent=False)
        self.register_buffer(
            "slopes", heads / (8 * torch.arange(1.0, heads + 1, dtype=torch.float64)), persistent=False
        )

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """[H, Q, K] float64, or [B, H, Q, K] where positions have a batch axis."""
        return of_distance(self.scores, query_positions, key_positions)

    def scores(self, distances: Tensor) -> Tensor:
        """[H, N] float64 at distances [N]; cos x - 1 = -2 sin^2(x / 2) loses no digits near 0."""
        waves = (distances.to(torch.float64)[:, None] * self.halves).sin().square().sum(1)
        return -2 * self.slopes[:, None] * waves
