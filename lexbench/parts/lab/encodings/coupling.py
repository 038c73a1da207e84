"""Position coupling: places of digits, and nothing else (Cho et al. 2024, arXiv 2405.20671)."""

import torch
from torch import Tensor

from lexbench.parts.lab.encodings.wrappers import DigitPlaces


class Coupling(DigitPlaces):
    """Digits of one power of ten share a learned position, which is added to the token embedding.

        x_n = embedding(n) + table[place(n) + delta],   place 1 of units, 2 of tens, ..; 0 of a sign behind a number
        delta ~ U{0 .. offsets - 1} in training, one for each text; 0 at use;  other tokens have no position

    So each token of a result, and the sign before it, stands one place below the digits to add next. The model knows no
    other positions: the inner encoding is `nope`. In the paper's sums the first digit is the highest, and a sign,
    behind the units, has the place below them; the result is written units first, and its places go backwards. A
    causal model that is told nothing else cannot know a digit's power of ten before the number ends. So here all
    numbers are written units first, as in the task `addition`.

    Args:
        over: nope, as in the paper, or an encoding beside it.
        width: of the network.
        digits: as in Abacus.
        size: rows of the table.
        offsets: number of values of delta; the released code draws one so that the longest sum fits.
        deviation: of the initial token embeddings, and so of the table; a training states its own.
    """

    def _position_shift(self, tokens: Tensor) -> Tensor | int:
        if self._drawn is None:
            return 0
        # A draw for the batch and a sum over the text: pieces of a batch have the same ones, and a text's is uniform.
        weights = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
        return (self._drawn + (tokens * weights).sum(1, keepdim=True)) % self.offsets

    def _digit_places(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        place, digits = super()._digit_places(tokens)
        behind = torch.cat([torch.zeros_like(digits[:, :1]), digits[:, :-1]], dim=1)
        return torch.where(digits, place + 1, 0), digits | behind
