"""ALiBi: attention with linear biases (Press et al. 2022, arXiv 2108.12409)."""

import torch
from torch import Tensor

from lexbench.core.errors import ConfigError
from lexbench.parts.lab.encodings.base import Encoding, relative_positions


class Alibi(Encoding):
    """Bias -m_h (i - j) on the logits of head h, and nothing else.

        m_h = 2^(-8h / H), h = 1 .. H

    where H is a power of two; else the slopes of the next lower power of two, then every second slope of its double.

    Args:
        heads: H, query heads.
    """

    slopes: Tensor

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.register_buffer("slopes", torch.tensor(head_slopes(heads), dtype=torch.float64), persistent=False)

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """[H, Q, K] float64, or [B, H, Q, K] where positions have a batch axis."""
        return -self.slopes[:, None, None] * relative_positions(query_positions, key_positions)


def head_slopes(heads: int) -> list[float]:
    """[heads] m_h; ConfigError below 1 head."""
    if heads < 1:
        raise ConfigError(f"alibi needs at least 1 head, got {heads}")
    # The largest power of two up to H. The further heads take slopes 1, 3, 5, .. of twice as many, as in the released
    # code.
    power = 1 << (heads.bit_length() - 1)
    own = [2 ** (-8 * head / power) for head in range(1, power + 1)]
    return own + [2 ** (-4 * head / power) for head in range(1, 2 * (heads - power), 2)]
