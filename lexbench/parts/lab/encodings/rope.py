"""Rotary position embedding (RoFormer, Su et al. 2021, arXiv 2104.09864)."""

from lexbench.parts.lab.encodings.base import RotaryEncoding, rope_frequencies


class Rope(RotaryEncoding):
    """Pair (p, p + d/2) of a head's vector at position t rotates by t * inv_freq[p]; the half layout of Llama.

    Args:
        head_dim: d, dimensions of a head.
        base: b in inv_freq[p] = b^(-2p/d).
    """

    def __init__(self, head_dim: int, base: float = 10000.0) -> None:
        super().__init__(rope_frequencies(head_dim, base), base)
