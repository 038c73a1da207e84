"""Complex word embeddings, whose phases turn with the position (Wang et al. 2020, arXiv 1912.12333)."""

import torch
from torch import Tensor, nn

from lexbench.core.errors import ConfigError
from lexbench.parts.lab.encodings.base import Encoding, rope_frequencies


class Complex(Encoding):
    """Rotate pair k of a token's embedding by its position times a learned frequency of that token.

        f(w, n)_k = r_(w,k) e^(i (omega_(w,k) n + phi_(w,k))),  k = 0 .. width / 2 - 1

    The token embedding is read as [Re | Im]: its pair (k, k + width/2) is r e^(i phi), so that amplitude and initial
    phase are the ordinary embedding. omega is a table [vocabulary, width / 2] of learned frequencies, radians per
    token, that begins at base^(-2k / width) for every word: vocabulary * width / 2 weights more. The released code
    drops the initial phases phi (an embedding is r alone there); here they are kept. Its frequencies begin elsewhere,
    too: of C complex numbers at 10000^(-2 floor(k/2) / C) in the language model, two of each, and at 10000^(-2k / C),
    down to 10^-8, in classification.

    This is the paper's embedding, not its network. The released Transformers (read, not run) send real and imaginary
    parts one after the other through the same real matrices and feed-forward layers. The parts meet in the attention,

        weights = softmax of |q . k| / sqrt(d),   q . k = sum_k q_k k_k, complex and not conjugated

    (the language model adds a modulus for content and one for distance), and in its output, |h| / 1.5. Here an ordinary
    decoder gets the real parts, then the imaginary ones, in one vector: its matrices mix both parts from the first
    layer on, and its logits are real products, of which Re(q . conj k) is one. That network would be another decoder,
    with two streams in every layer and cache; an encoding has hooks for positions only.

    Args:
        vocabulary: words.
        width: of the embedding; even.
        base: of the frequencies at the beginning.
    """

    def __init__(self, vocabulary: int, width: int, base: float = 10000.0) -> None:
        super().__init__()
        if width % 2:
            raise ConfigError(f"complex needs an even width, got {width}: real and imaginary parts")
        self.frequency = nn.Parameter(rope_frequencies(width, base).float().repeat(vocabulary, 1))

    def embed(self, embedded: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
        """[B, T, width]; angles, cosines and sines are computed in float64."""
        turn = self.frequency[tokens].to(torch.float64) * positions.to(torch.float64)[..., None]
        cos, sin = turn.cos().to(embedded.dtype), turn.sin().to(embedded.dtype)
        real, imaginary = embedded.chunk(2, dim=-1)
        return torch.cat([real * cos - imaginary * sin, imaginary * cos + real * sin], dim=-1)
