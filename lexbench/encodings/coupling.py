"""Position coupling: places of digits, and nothing else (Cho et al. 2024, arXiv 2405.20671)."""

import torch
from torch import Tensor

from lexbench.encodings.wrappers import DigitPlaces


class Coupling(DigitPlaces):
    """Digits of one power of ten share a learned position, which is added to the token embedding.

        x_n = embedding(n) + table[place(n) + delta],   place as in Abacus; the sign behind a number of k digits has k
        delta ~ U{0 .. offsets - 1} in training, one for each batch; 0 at use;  other tokens have no position

    The model knows no other positions, so the inner encoding is `nope`. In the paper's sums the first digit is the
    highest, and a sign has the place below the units; the result is written units first, and its places go backwards.
    A causal model that is told nothing else cannot know a digit's power of ten before the number ends. So here all
    numbers are written units first, as in the task `addition`: the same coupling, mirrored.

    Args:
        over: nope, as in the paper, or an encoding beside it.
        width: of the network.
        digits: as in Abacus.
        size: rows of the table.
        offsets: number of values of delta; the released code draws one for each text, so that the longest sum fits.
        deviation: of the initial token embeddings, and so of the table; a training states its own.
    """

    def _places(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        place, digits = super()._places(tokens)
        # Behind a digit, the place before plus 1: of a digit as before, of a sign the number's size.
        before = torch.cat([torch.full_like(place[:, :1], -1), place[:, :-1]], dim=1)
        behind = torch.cat([torch.zeros_like(digits[:, :1]), digits[:, :-1]], dim=1)
        return torch.where(behind, before + 1, place.clamp(min=0)), digits | behind
