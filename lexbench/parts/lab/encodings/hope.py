"""HoPE: RoPE of high frequencies only (Chen et al. 2024, arXiv 2410.21216)."""

import math

from lexbench.parts.lab.encodings.base import RotaryEncoding, rope_frequencies


class Hope(RotaryEncoding):
    """Pairs with a full turn within the trained length L rotate as in RoPE; the others do not rotate.

        inv_freq[p] = b^(-2p/d) where that is at least 2 pi / L, else 0

    The paper finds that low-frequency components of RoPE cause the U-shaped attention of trained models, and replaces
    them by components without positions. Not verified: the threshold of one full turn within L follows a secondary
    description; it was not checked against the paper's text, and there is no released code.

    Args:
        head_dim: d, dimensions of a head.
        trained_length: L in tokens.
        base: b of the angles.
    """

    def __init__(self, head_dim: int, trained_length: int, base: float = 10000.0) -> None:
        plain = rope_frequencies(head_dim, base)
        # A frequency of 0 rotates by no angle at any position: the component without positions.
        super().__init__(plain * (plain >= 2 * math.pi / trained_length))
