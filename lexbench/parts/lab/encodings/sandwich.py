"""Sandwich: products of sinusoidal positions with one another, as a bias (Chi et al. 2023, arXiv 2212.10356)."""

from types import MappingProxyType

import torch
from torch import Tensor

from lexbench.core.errors import ConfigError
from lexbench.parts.lab.encodings.base import Encoding, bias_by_distance


class Sandwich(Encoding):
    """Bias of the distance without learned weights; it falls fastest in the first head.

        b_h = (sum_{k=0..D/2-1} cos((i - j) 10000^(-2k/D)) - D/2) / (8h / H),   h = 1 .. H

    Of (x_i + p_i) . (x_j + p_j) with sinusoidal p of D dimensions it keeps p_i . p_j, shifted to 0 at distance 0. D is
    a number of its own, 128 whatever the network and the trained length: it sets the bias's depth, D/2 nats times the
    share of waves that are out of phase. A smaller D, such as NeMo's head_dim, is shallower by as much. NVIDIA's NeMo
    also begins the sum at k = 1 (`first`), while sinusoidal positions begin at k = 0. Not verified: D = 128 was not
    checked against the paper's text.

    Args:
        heads: H, query heads.
        head_dim: dimensions of a head.
        dimension: D, even; None: head_dim.
        first: k at which the sum begins.
    """

    before = MappingProxyType({"first": 1})
    halves: Tensor
    slopes: Tensor

    def __init__(self, heads: int, head_dim: int, dimension: int | None = 128, first: int = 0) -> None:
        super().__init__()
        size = head_dim if dimension is None else dimension
        if size < 2 or size % 2:
            raise ConfigError(f"sandwich needs an even dimension of at least 2, got {size}: e.g. dimension=128")
        if first not in (0, 1):
            raise ConfigError(f"sandwich's first must be 0 or 1, got {first}: the paper begins at 0, NeMo at 1")
        order = torch.arange(first, first + size // 2, dtype=torch.float64)
        # Half of each frequency: `scores` writes cos x - 1 by sin(x / 2).
        self.register_buffer("halves", 10000 ** (-2 * order / size) / 2, persistent=False)
        self.register_buffer(
            "slopes", heads / (8 * torch.arange(1.0, heads + 1, dtype=torch.float64)), persistent=False
        )

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """[H, Q, K] float64, or [B, H, Q, K] where positions have a batch axis."""
        return bias_by_distance(self.bias_at_distances, query_positions, key_positions)

    def bias_at_distances(self, distances: Tensor) -> Tensor:
        """[H, N] float64 at distances [N]; cos x - 1 = -2 sin^2(x / 2) loses no digits near 0."""
        waves = (distances.to(torch.float64)[:, None] * self.halves).sin().square().sum(1)
        return -2 * self.slopes[:, None] * waves
