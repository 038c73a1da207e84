"""InvLeaky ReRoPE: far distances trained, plain RoPE at use (Su 2023, kexue.fm/archives/9728)."""

import math

from lexbench.core.attention import Attention, PositionMap, Remap
from lexbench.core.errors import ConfigError
from lexbench.parts.lab.encodings.base import Encoding
from lexbench.parts.lab.encodings.wrappers import EncodingWrapper


class InverseLeakyRerope(EncodingWrapper):
    """In training, distances beyond a window grow in steps far above 1; at use they are plain.

        distance = i - j where i - j < w, else w + (i - j - w) / k,    k = 1 / (2 expansion)

    So texts of N tokens train distances up to w + (N - 1 - w) / k: with N = 512, w = 128 and k = 1/16, the article's,
    up to 6256. Longer texts then need no remap and no more time. Its second variant has rope's base at 80000:
    over={name: rope, base: 80000}.

    Args:
        over: an encoding whose distances can be remapped: rope.
        trained_length: N in tokens.
        expansion: length of texts at use, in trained lengths, at least 1/2; the article's k = 1/16 is 8.
        window: w in tokens, at least 1; None: a quarter of the trained length.
    """

    excludes = frozenset({"positions"})

    def __init__(self, over: Encoding, trained_length: int, expansion: float = 8.0, window: int | None = None) -> None:
        super().__init__(over)
        if not over.remaps:
            raise ConfigError(
                f"inverse_leaky_rerope needs distances that can be remapped, those of {over.name} cannot: over=rope"
            )
        if not 0.5 <= expansion < math.inf:
            raise ConfigError(
                f"inverse_leaky_rerope's expansion must be finite and at least 0.5, got {expansion}: "
                "the article takes 8"
            )
        self.window = max(1, trained_length // 4) if window is None else window
        slowdown = 1 / (2 * expansion)
        # (i / k + w - w / k) - j / k = w + (i - j - w) / k, equal to i - j at the window's end.
        query = PositionMap(divisor=slowdown, offset=self.window - self.window / slowdown)
        self.remap = Remap(window=self.window, query=query, key=PositionMap(divisor=slowdown))

    @property
    def attention(self) -> Attention:
        """The remap, in training."""
        own = Attention(remap=self.remap) if self.training else Attention()
        return self.over.attention.merge_with(own)

    @property
    def used(self) -> Encoding:
        """The inner encoding."""
        return self.over
