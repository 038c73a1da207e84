"""SHAPE: absolute positions that are shifted at random in training (Kiyono et al. 2021, arXiv 2109.05644)."""

import torch
from torch import Generator, Tensor

from lexbench.core.errors import ConfigError
from lexbench.parts.lab.encodings.base import Encoding
from lexbench.parts.lab.encodings.wrappers import RandomPositions


class Shape(RandomPositions):
    """Positions n + delta in training, one delta ~ U{0 .. K - 1} for each text; plain positions n at use.

    So the model learns to ignore where a text begins; positions from trained_length + K - 1 on stay unseen. At use
    delta = 0, as the paper says; the released code evaluates from position K on. The paper's inner encoding is the
    sinusoidal one; a shift does not change encodings of distances alone.

    Args:
        over: the inner encoding.
        trained_length: tokens.
        offsets: K, tokens; 500 in the released code.
    """

    def __init__(self, over: Encoding, trained_length: int, offsets: int = 500) -> None:
        super().__init__(over)
        if offsets < 1:
            raise ConfigError(f"shape needs at least 1 offset, got {offsets}: 500 is the authors'")
        if over.longest is not None and over.longest < (needed := trained_length + offsets - 1):
            raise ConfigError(
                f"shape needs {needed} positions for {trained_length} tokens, {over.name} has {over.longest}: "
                "raise its size or lower offsets"
            )
        self.offsets = offsets

    def draw_positions(self, plain: Tensor, tokens: Tensor, generator: Generator) -> Tensor:
        """[B, T] shifted."""
        shift = torch.randint(self.offsets, (len(tokens), 1), generator=generator, device=generator.device)
        return plain + shift.to(plain)
