"""xPos: rotations whose pairs fade with the distance, the slow ones least (Sun et al. 2022, arXiv 2212.10554)."""

from types import MappingProxyType

import torch
from torch import Tensor

from lexbench.core.errors import ConfigError
from lexbench.parts.lab.encodings.base import RotaryEncoding, rope_frequencies


class Xpos(RotaryEncoding):
    """RoPE in the half layout, where the part of pair p in a logit is multiplied by zeta_p^((i - j) / B).

        zeta_p = (p / (d/2) + gamma) / (1 + gamma),   B = 512

    B and gamma are the paper's, which trains with L = 1024. Folders trained before 2026-11-29 have B = L / 2, which
    they keep: scale_base=null.
    The paper's Algorithm 1 omits B; its text and its authors' code (torchscale) have it. That code pairs
    dimensions 2p and 2p + 1; to use weights of one layout in the other, reorder their dimensions. With d = 8,
    zeta is 0.2857, 0.4643, 0.6429, 0.8214. It was made for blockwise causal attention (method `bca`) beyond the
    trained length.

    The paper's table 4 leaves out parts of it: rotated=false is its "w/o rotation", and scalar=true its scalar zeta
    (section 4.4.1), gamma / (1 + gamma) in all pairs. The third row, printed as zeta = 0, is RoPE, zeta = 1.

    Args:
        head_dim: d, dimensions of a head.
        trained_length: L in tokens.
        base: b of the angles b^(-2p/d).
        gamma: above 0; the larger, the less pairs decay.
        scale_base: B, tokens after which the factor of pair p is zeta_p; None: half the trained length.
        rotated: whether pairs rotate; otherwise they only fade.
        scalar: whether all pairs fade as pair 0, the fastest.
    """

    remaps = False  # the decay of a remapped distance is not defined
    before = MappingProxyType({"scale_base": None})
    fading: Tensor

    def __init__(
        self,
        head_dim: int,
        trained_length: int,
        base: float = 10000.0,
        gamma: float = 0.4,
        scale_base: float | None = 512.0,
        rotated: bool = True,
        scalar: bool = False,
    ) -> None:
        super().__init__(rope_frequencies(head_dim, base) * rotated, base if rotated else None)
        scale_base = trained_length / 2 if scale_base is None else scale_base
        if not (gamma > 0 and scale_base > 0):
            raise ConfigError(f"xpos needs gamma and scale_base above 0, got {gamma} and {scale_base}: 0.4 and 512")
        pairs = torch.arange(0, head_dim, 2, dtype=torch.float64)
        # (2p / d + gamma) / (1 + gamma): `pairs` counts dimensions 0, 2, 4, ..
        zeta = (pairs * (not scalar) / head_dim + gamma) / (1 + gamma)
        # zeta^((i - j) / B) = e^((i - j) ln zeta / B): the logarithm is what `Encoding.qk` and the statistics multiply
        # by.
        self.register_buffer("fading", zeta.log() / scale_base, persistent=False)

    @property
    def decay(self) -> Tensor:
        """[d / 2] ln zeta_p / B, below 0."""
        return self.fading
