"""Sinusoidal positions, added to the token embeddings (Vaswani et al. 2017, arXiv 1706.03762)."""

import torch
from torch import Tensor

from lexbench.encodings.base import Encoding, angles, frequencies

LAYOUTS = ("interleaved", "halves")


class Sinusoidal(Encoding):
    """Add a vector of sines and cosines of the position n to the token embedding, once, before the first layer.

        PE(n)[2p] = sin(n theta_p),  PE(n)[2p + 1] = cos(n theta_p),  theta_p = base^(-2p / width)
        stream(n) = sqrt(width) embedding(n) + PE(n)

    That is the paper's layout, `interleaved`; `halves` is [all sines | all cosines], as in much code. Both have the
    paper's frequencies: tensor2tensor and fairseq divide by width / 2 - 1 in the exponent, where the paper divides by
    width / 2. The position may be a fraction.

    Args:
        width: of the embedding; even.
        base: of the frequencies; wavelengths go from 2 pi to almost 2 pi base tokens.
        layout: interleaved or halves.
        scaled: whether token embeddings are multiplied by sqrt(width) first, as in the paper.
    """

    inv_freq: Tensor

    def __init__(self, width: int, base: float = 10000.0, layout: str = "interleaved", scaled: bool = True) -> None:
        super().__init__()
        if width % 2:
            raise ValueError(f"sinusoidal needs an even width, got {width}: a sine and a cosine for each frequency")
        if base <= 0:
            raise ValueError(f"sinusoidal needs a base above 0, got {base}: 10000 is the paper's")
        if layout not in LAYOUTS:
            raise ValueError(f"sinusoidal layout must be interleaved or halves, got {layout!r}: choose one")
        self.layout = layout
        self.factor = width**0.5 if scaled else 1.0
        self.register_buffer("inv_freq", frequencies(width, base), persistent=False)

    def embed(self, embedded: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
        """[B, T, width]; sines and cosines are computed in float64."""
        return embedded * self.factor + self.waves(positions).to(embedded.dtype)

    def waves(self, positions: Tensor) -> Tensor:
        """[..., T, width] PE, float64."""
        turn = angles(self.inv_freq, positions)
        sines, cosines = turn.sin(), turn.cos()
        if self.layout == "halves":
            return torch.cat([sines, cosines], dim=-1)
        return torch.stack([sines, cosines], dim=-1).flatten(-2)
