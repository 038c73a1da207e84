"""Sinusoidal positions, added to the token embeddings (Vaswani et al. 2017, arXiv 1706.03762)."""

import math
from types import MappingProxyType

import torch
from torch import Tensor

from lexbench.core.errors import ConfigError
from lexbench.parts.lab.encodings.base import WEIGHT_DEVIATION, Encoding, rope_frequencies, rotation_angles

LAYOUT_NAMES = ("interleaved", "halves")


class Sinusoidal(Encoding):
    """Add a vector of sines and cosines of the position n to the token embedding, once, before the first layer.

        PE(n)[2p] = sin(n theta_p),  PE(n)[2p + 1] = cos(n theta_p),  theta_p = base^(-2p / width)
        stream(n) = s embedding(n) + PE(n),  s = sqrt(width) width^(-1/2) / deviation = 1 / deviation

    The paper's s is sqrt(width), and its embeddings begin with deviation width^(-1/2) (tensor2tensor), so that tokens
    enter with rms 1 beside waves of rms sqrt(1/2). Embeddings of this decoder begin with another deviation, 0.02 by
    default: with sqrt(width) alone, tokens of a small network would drown in the waves (rms 0.23 at a width of 128).
    Hence s is chosen for a `token_rms` of 1.

    That is the paper's layout, `interleaved`; `halves` is [all sines | all cosines], as in much code. Both have the
    paper's frequencies: tensor2tensor and fairseq divide by width / 2 - 1 in the exponent, where the paper divides by
    width / 2. The position may be a fraction.

    Args:
        width: of the embedding; even.
        base: of the frequencies; wavelengths go from 2 pi to almost 2 pi base tokens.
        layout: interleaved or halves.
        scaled: whether token embeddings are multiplied by s first.
        token_rms: rms with which tokens enter before training, s = token_rms / deviation; None: s = sqrt(width).
        deviation: of the initial token embeddings; a training states its own.
    """

    before = MappingProxyType({"token_rms": None})
    inv_freq: Tensor

    def __init__(
        self,
        width: int,
        base: float = 10000.0,
        layout: str = "interleaved",
        scaled: bool = True,
        token_rms: float | None = 1.0,
        deviation: float = WEIGHT_DEVIATION,
    ) -> None:
        super().__init__()
        if width % 2:
            raise ConfigError(f"sinusoidal needs an even width, got {width}: a sine and a cosine for each frequency")
        if layout not in LAYOUT_NAMES:
            raise ConfigError(f"sinusoidal layout must be interleaved or halves, got {layout!r}: choose one")
        if token_rms is not None and not 0 < token_rms < math.inf:
            raise ConfigError(f"sinusoidal token_rms must be finite and above 0, got {token_rms}: the paper has 1")
        self.layout = layout
        self.factor = (width**0.5 if token_rms is None else token_rms / deviation) if scaled else 1.0
        self.register_buffer("inv_freq", rope_frequencies(width, base), persistent=False)

    def embed(self, embedded: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
        """[B, T, width]; sines and cosines are computed in float64."""
        return embedded * self.factor + self.sines_and_cosines(positions).to(embedded.dtype)

    def sines_and_cosines(self, positions: Tensor) -> Tensor:
        """[..., T, width] PE, float64."""
        turn = rotation_angles(self.inv_freq, positions)
        sines, cosines = turn.sin(), turn.cos()
        if self.layout == "halves":
            return torch.cat([sines, cosines], dim=-1)
        return torch.stack([sines, cosines], dim=-1).flatten(-2)
