"""SHAPE: absolute positions that are shifted at random in training (Kiyono et al. 2021, arXiv 2109.05644)."""

import torch
from torch import Generator, Tensor

from lexbench.encodings.base import Encoding
from lexbench.encodings.wrappers import Drawn


class Shape(Drawn):
    """Positions n + delta in training, one delta ~ U{0 .. K - 1} for each text; plain positions n at use.

    So the model learns not to care where a text begins; positions beyond trained_length + K - 1 stay unseen. At use
    the paper says delta = 0, which is taken; the released code's path for evaluation begins at K. The paper's encoding
    beneath is the sinusoidal one; one that knows distances alone is not changed by a shift.

    Args:
        over: the encoding that takes the positions.
        trained_length: tokens.
        offsets: K, tokens; 500 in the released code.
    """

    def __init__(self, over: Encoding, trained_length: int, offsets: int = 500) -> None:
        super().__init__(over)
        if offsets < 1:
            raise ValueError(f"shape needs at least 1 offset, got {offsets}: 500 is the authors'")
        if over.longest is not None and over.longest < (needed := trained_length + offsets - 1):
            raise ValueError(
                f"shape shifts {trained_length} tokens over {needed} positions, {over.name} has {over.longest}: "
                "raise its size or lower offsets"
            )
        self.offsets = offsets

    def drawn(self, plain: Tensor, tokens: Tensor, generator: Generator) -> Tensor:
        """[B, T]."""
        shift = torch.randint(self.offsets, (len(tokens), 1), generator=generator, device=generator.device)
        return plain + shift.to(plain)
