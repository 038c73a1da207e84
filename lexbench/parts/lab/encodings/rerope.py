"""Training with ReRoPE's distances (Su 2023, kexue.fm/archives/9708, names the remap)."""

import math

from lexbench.core.attention import Attention, PositionMap, Remap
from lexbench.core.errors import ConfigError
from lexbench.parts.lab.encodings.base import Encoding
from lexbench.parts.lab.encodings.wrappers import EncodingWrapper


class Rerope(EncodingWrapper):
    """All keys beyond a window have one distance, in training and at use.

        distance = min(i - j, w)

    The method of the same name is for models trained without it; this is the control of Su's articles: to have trained
    with it. `inverse_leaky_rerope` has far distances in training alone.

    Args:
        over: an encoding whose distances can be remapped: rope.
        trained_length: L in tokens.
        window: w in tokens, at least 1; None: L/2, the method's.
    """

    excludes = frozenset({"positions"})

    def __init__(self, over: Encoding, trained_length: int, window: int | None = None) -> None:
        super().__init__(over)
        if not over.remaps:
            raise ConfigError(f"rerope needs distances that can be remapped, those of {over.name} cannot: over=rope")
        self.window = max(1, trained_length // 2) if window is None else window
        if self.window < 1:
            raise ConfigError(f"rerope's window must be at least 1 token, got {window}: leave it out for half of L")
        far = PositionMap(divisor=math.inf, offset=self.window)
        self.remap = Remap(window=self.window, query=far, key=PositionMap(divisor=math.inf))

    @property
    def attention(self) -> Attention:
        """The remap."""
        return self.over.attention.merge_with(Attention(remap=self.remap))
