"""CAPE: continuous augmented positional embeddings (Likhomanenko et al. 2021, arXiv 2106.03143)."""

import math
from types import MappingProxyType

import torch
from torch import Generator, Tensor

from lexbench.core.errors import ConfigError
from lexbench.parts.lab.encodings.base import Encoding
from lexbench.parts.lab.encodings.wrappers import RandomPositions


class Cape(RandomPositions):
    """Centred positions; in training they are shifted, jittered and stretched at random.

        n' = (n - (N - 1) / 2 + Delta + epsilon_n) lambda,   N tokens of the text
        Delta ~ U(-global_shift, global_shift) and ln lambda ~ U(-ln global_scale, ln global_scale), for each text;
        epsilon_n ~ U(-local_shift, local_shift) for each token

    The inner encoding is the sinusoidal one, which takes any real position. `dape` is another work, whose preprint was
    called CAPE, too.

    In the authors' code all three ranges are off by default. The defaults here are those of the most used port for
    text, converted to the paper's ranges: the port draws epsilon from half of its range, so its `max_local_shift=1.0`
    is 0.5 here. The paper centres positions by their mean, so that a stretch moves both ends, not only the far one. At
    use N is the text's final length, known before the text begins, so that it is the same with a cache; but the same
    beginning of two texts of different lengths has different positions. centred=false begins at 0 at any length.

    Args:
        over: the inner encoding; in training its positions are fractional.
        global_shift: tokens, from 0.
        local_shift: tokens, 0 to 0.5: above 0.5, tokens could change their order.
        global_scale: the largest stretch, from 1.
        centred: whether 0 is the middle of the text.
    """

    before = MappingProxyType({"centred": False})

    def __init__(
        self,
        over: Encoding,
        global_shift: float = 5.0,
        local_shift: float = 0.5,
        global_scale: float = 1.03,
        centred: bool = True,
    ) -> None:
        super().__init__(over)
        if over.counts:
            raise ConfigError(
                f"cape needs an encoding that takes fractional positions, {over.name} takes whole ones: over=sinusoidal"
            )
        if global_shift < 0:
            raise ConfigError(f"cape needs a global_shift from 0, got {global_shift}: 5 is usual for text")
        if not 0 <= local_shift <= 0.5:
            raise ConfigError(
                f"cape needs a local_shift from 0 to 0.5, got {local_shift}: tokens would change their order"
            )
        if global_scale < 1:
            raise ConfigError(f"cape needs a global_scale from 1, got {global_scale}: 1.03 is usual for text")
        self.centred = centred
        # The stretch is drawn in the logarithm, so that widening and narrowing are equally likely.
        self.global_shift, self.local_shift, self.stretch = global_shift, local_shift, math.log(global_scale)

    @property
    def used(self) -> Encoding:
        """The inner encoding where positions are 0, 1, 2, ... at use; else this one."""
        return self if self.centred else self.over.used

    def positions(self, tokens: Tensor, length: int, generator: Generator | None = None) -> Tensor:
        """Positions: [T] at use, [B, T] in training."""
        # The mean of 0 .. N - 1 is (N - 1) / 2.
        plain = self.over.positions(tokens, length, generator) - ((length - 1) / 2 if self.centred else 0.0)
        return plain if generator is None else self.draw_positions(plain, tokens, generator)

    def draw_positions(self, plain: Tensor, tokens: Tensor, generator: Generator) -> Tensor:
        """[B, T] shifted, jittered and stretched."""
        texts, count = tokens.shape
        shift = _draw_between(self.global_shift, (texts, 1), generator).to(plain)
        jitter = _draw_between(self.local_shift, (texts, count), generator).to(plain)
        stretch = _draw_between(self.stretch, (texts, 1), generator).to(plain).exp()
        return (plain + shift + jitter) * stretch


def _draw_between(limit: float, size: tuple[int, int], generator: Generator) -> Tensor:
    """Uniform from -limit to limit."""
    drawn = torch.rand(size, generator=generator, device=generator.device, dtype=torch.float64)
    return (2 * drawn - 1) * limit
