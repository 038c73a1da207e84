"""HWFA: hybrid of window and full attention (Su 2023, kexue.fm/archives/9603)."""

from lexbench.core.attention import Attention, LogScale, Window
from lexbench.core.errors import ConfigError
from lexbench.parts.lab.encodings.base import Encoding
from lexbench.parts.lab.encodings.wrappers import HOOKS_OF_ALL_LAYERS, EncodingWrapper, LayerWithSlots, UnrotatedLayer

MAX_WINDOWS_SHARE = 0.75
"""Alpha: share of the trained length that all windows together may reach."""


class Hwfa(EncodingWrapper):
    """All layers but the last have RoPE and a window w; the last sees all keys, without positions, logits times log n.

        windows reach (w - 1)(layers - 1) + 1 <= alpha N,  alpha = 3/4, w as large as that allows
        last layer: logit(i, j) = ln(i + 1) / ln(N) q_i . k_j / sqrt(d)

    So no layer sees a distance that training lacks. The article's run of 24 layers with N = 512 has w = 16,
    where the rule gives 17. Window layers need no more than w tokens of cache.

    It takes no method that sets a mask or a scale of queries; other angles act in the window layers only.

    Args:
        over: the encoding of the window layers: rope.
        layers: of the network, at least 2.
        trained_length: N in tokens, at least 2.
        window: w in tokens, the query's own included; None: by the rule.
    """

    excludes = HOOKS_OF_ALL_LAYERS

    def __init__(self, over: Encoding, layers: int, trained_length: int, window: int | None = None) -> None:
        super().__init__(over)
        if layers < 2:
            raise ConfigError(
                f"hwfa needs a layer with a window before the last one, got {layers} in all: raise layers"
            )
        # (w - 1)(layers - 1) + 1 <= alpha N, solved for the largest whole w.
        fitting = int((MAX_WINDOWS_SHARE * trained_length - 1) // (layers - 1)) + 1
        if window is None and fitting < 2:
            raise ConfigError(
                f"hwfa's windows of 2 tokens in {layers} layers reach more than {MAX_WINDOWS_SHARE:g} of "
                f"{trained_length} trained "
                "tokens: give window, or raise the trained length"
            )
        self.window = Window(fitting if window is None else window)
        self.scale = LogScale(trained_length, clip=False)
        self.layers = layers

    def at(self, layer: int) -> Encoding:
        """The inner encoding with a window; in the last layer, without window and positions."""
        inner = self.over.at(layer)
        if layer < self.layers - 1:
            return LayerWithSlots(inner, Attention(mask=self.window), self.name)
        return LayerWithSlots(UnrotatedLayer(inner), Attention(query_scale=self.scale), self.name)
