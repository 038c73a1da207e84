"""p-RoPE: RoPE whose slowest pairs do not rotate (Barbero et al. 2024, arXiv 2410.06205)."""

import torch

from lexbench.core.errors import ConfigError
from lexbench.parts.lab.encodings.base import RotaryEncoding, rope_frequencies


class PRope(RotaryEncoding):
    """The fastest pairs rotate as in RoPE; the others do not, and carry meaning at any distance.

        inv_freq[p] = b^(-2p/d) where p < floor(share d/2), else 0

    The denominator stays d, as in transformers' rope type `proportional`; under its other types a partial rotation
    divides by the dimensions that rotate. 0.75 is best in the paper; Gemma 4 has 0.25 in its global layers.

    Args:
        head_dim: d, dimensions of a head.
        base: b of the angles.
        share: of the pairs that rotate, 0 (none: NoPE) to 1 (all: RoPE).
    """

    def __init__(self, head_dim: int, base: float = 10000.0, share: float = 0.75) -> None:
        if not 0 <= share <= 1:
            raise ConfigError(f"p_rope's share must be from 0 to 1, got {share}: the paper takes 0.75")
        plain = rope_frequencies(head_dim, base)
        # int() as transformers' `proportional`: a share of a pair does not rotate.
        super().__init__(plain * (torch.arange(len(plain)) < int(share * head_dim // 2)))
