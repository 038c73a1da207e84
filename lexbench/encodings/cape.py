"""CAPE: continuous augmented positional embeddings (Likhomanenko et al. 2021, arXiv 2106.03143)."""

import math

import torch
from torch import Generator, Tensor

from lexbench.encodings.base import Encoding
from lexbench.encodings.wrappers import Drawn


class Cape(Drawn):
    """Positions that are shifted, jittered and stretched at random in training; plain positions at use.

        n' = (n + Delta + epsilon_n) lambda
        Delta ~ U(-global_shift, global_shift) and ln lambda ~ U(-ln global_scale, ln global_scale), for each text;
        epsilon_n ~ U(-local_shift, local_shift) for each token

    The inner encoding is the sinusoidal one, which takes any real position. `dape` is another work, whose preprint was
    called CAPE, too.

    In the authors' code all three ranges are off by default. The defaults here are those of the most used port for
    text, converted to the paper's ranges: the port draws epsilon from half of its range, so its `max_local_shift=1.0`
    is 0.5 here. The paper centres positions by their mean; that is left out, because in causal text the input of a
    token must not depend on the number of tokens after it.

    Args:
        over: the inner encoding; in training its positions are fractional.
        global_shift: tokens, from 0.
        local_shift: tokens, 0 to 0.5: above 0.5, tokens could change their order.
        global_scale: the largest stretch, from 1.
    """

    def __init__(
        self, over: Encoding, global_shift: float = 5.0, local_shift: float = 0.5, global_scale: float = 1.03
    ) -> None:
        super().__init__(over)
        if over.counts:
            raise ValueError(
                f"cape needs an encoding that takes fractional positions, {over.name} takes whole ones: over=sinusoidal"
            )
        if global_shift < 0:
            raise ValueError(f"cape needs a global_shift from 0, got {global_shift}: 5 is usual for text")
        if not 0 <= local_shift <= 0.5:
            raise ValueError(
                f"cape needs a local_shift from 0 to 0.5, got {local_shift}: tokens would change their order"
            )
        if global_scale < 1:
            raise ValueError(f"cape needs a global_scale from 1, got {global_scale}: 1.03 is usual for text")
        self.global_shift, self.local_shift, self.stretch = global_shift, local_shift, math.log(global_scale)

    def drawn(self, plain: Tensor, tokens: Tensor, generator: Generator) -> Tensor:
        """[B, T] shifted, jittered and stretched."""
        texts, count = tokens.shape
        shift = _between(self.global_shift, (texts, 1), generator).to(plain)
        jitter = _between(self.local_shift, (texts, count), generator).to(plain)
        stretch = _between(self.stretch, (texts, 1), generator).to(plain).exp()
        return (plain + shift + jitter) * stretch


def _between(limit: float, size: tuple[int, int], generator: Generator) -> Tensor:
    """Uniform from -limit to limit."""
    drawn = torch.rand(size, generator=generator, device=generator.device, dtype=torch.float64)
    return (2 * drawn - 1) * limit
