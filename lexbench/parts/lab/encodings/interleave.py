"""Layers with and without positions in turn: RNoPE, iRoPE (SmolLM3; Llama 4; Yang et al. 2025, arXiv 2501.18795)."""

from lexbench.core.errors import ConfigError
from lexbench.parts.lab.encodings.base import Encoding
from lexbench.parts.lab.encodings.wrappers import HOOKS_OF_ALL_LAYERS, EncodingWrapper, UnrotatedLayer


class Interleave(EncodingWrapper):
    """Every k-th layer has no positions, the others those of another encoding.

        layer l, counted from 1, has none where l mod k = 0

    as transformers counts `no_rope_layer_interval`: with k = 4, layers 4, 8, 12 and so on. Layers without positions
    find content at any distance, layers with positions know the order. SmolLM3 and Llama 4 have k = 4 over RoPE;
    Llama 4's windows and temperatures are not part of this.

    Args:
        over: the encoding of the other layers.
        every: k, at least 2.
    """

    excludes = HOOKS_OF_ALL_LAYERS

    def __init__(self, over: Encoding, every: int = 4) -> None:
        super().__init__(over)
        if every < 2:
            raise ConfigError(
                f"interleave's every must be at least 2, got {every}: SmolLM3 has 4; for all layers, nope"
            )
        self.every = every

    def at(self, layer: int) -> Encoding:
        """The inner encoding; without positions in every k-th layer."""
        inner = self.over.at(layer)
        return inner if (layer + 1) % self.every else UnrotatedLayer(inner)
