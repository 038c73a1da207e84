"""HWFA2: windows in most layers, and full layers that become ReRoPE at use (Su 2023, kexue.fm/archives/9731)."""

import math

from lexbench.core.attention import Attention, PositionMap, Remap, Window
from lexbench.core.errors import ConfigError
from lexbench.parts.lab.encodings.base import Encoding
from lexbench.parts.lab.encodings.wrappers import EncodingWrapper, LayerWithSlots


class Hwfa2(EncodingWrapper):
    """All layers have RoPE; f of them see all keys, the others w. At use, distances in the full layers end at r.

        full layers at index floor(k layers / (f + 1)), k = 1 .. f, counted from 0
        full layers in training: distance = i - j;  at use: min(i - j, r), ReRoPE

    The article trains 24 layers on N = 512 tokens; best is f = 2, w = 64, with r = 256. Its log n scale is the method
    `log_n`.

    Args:
        over: an encoding whose distances can be remapped: rope.
        layers: of the network.
        trained_length: N in tokens.
        full: f, layers without a window, 1 to layers.
        window: w in tokens; None: an eighth of the trained length.
        rerope: r in tokens, at least 1; None: half the trained length.
    """

    excludes = frozenset({"positions"})

    def __init__(
        self,
        over: Encoding,
        layers: int,
        trained_length: int,
        full: int = 2,
        window: int | None = None,
        rerope: int | None = None,
    ) -> None:
        super().__init__(over)
        if not over.remaps:
            raise ConfigError(f"hwfa2 needs distances that can be remapped, those of {over.name} cannot: over=rope")
        if not 1 <= full <= layers:
            raise ConfigError(f"hwfa2's full must be from 1 to {layers} layers, got {full}: the article takes 2 of 24")
        # One full layer stands in the middle, two at a third and two thirds.
        self.full = frozenset(number * layers // (full + 1) for number in range(1, full + 1))
        self.window = Window(max(1, trained_length // 8) if window is None else window)
        reach = max(1, trained_length // 2) if rerope is None else rerope
        constant = PositionMap(divisor=math.inf)
        # Query at r, key at 0 for all keys beyond the window r: distance r, as in the method `rerope`.
        self.remap = Remap(window=reach, query=PositionMap(divisor=math.inf, offset=reach), key=constant)

    def at(self, layer: int) -> Encoding:
        """The inner encoding with a window; a full layer without one, at use with the remap."""
        inner = self.over.at(layer)
        if layer not in self.full:
            return LayerWithSlots(inner, Attention(mask=self.window), self.name)
        # ReRoPE at use only: trained with it, a model does not extrapolate (Su, kexue.fm/archives/9948).
        return inner if self.training else LayerWithSlots(inner, Attention(remap=self.remap), self.name)
