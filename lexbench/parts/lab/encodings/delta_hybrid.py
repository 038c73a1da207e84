"""Gated delta layers with every k-th of attention: Qwen3-Next's layout (transformers' `full_attention_interval`)."""

from torch import Generator, nn

from lexbench.core.attention import Attention
from lexbench.core.errors import ConfigError
from lexbench.kernels.heads import Rotate
from lexbench.parts.lab.encodings.base import Encoding
from lexbench.parts.lab.encodings.gated_delta import GatedDelta
from lexbench.parts.lab.encodings.wrappers import EncodingWrapper


class DeltaLayer(GatedDelta):
    """A gated delta layer among layers of attention: what a method changes there has no effect here."""

    remaps = True

    def rotation(self, attention: Attention) -> Rotate:
        """No rotation, whatever the Attention has."""
        return self.rotate

    @property
    def name(self) -> str:
        """Name of the layout."""
        return "delta_hybrid"


class DeltaHybrid(EncodingWrapper):
    """Every k-th layer has attention, under another encoding; the others have the gated delta rule.

        layer l, counted from 1, has attention where l mod k = 0

    so k = 4 are three layers of `gated_delta` to one of attention. Over nope no layer has positions: the order comes
    from the states alone. A method acts on the layers of attention alone, 1 of 4, and attention is probed there.

    Args:
        over: the encoding of the layers of attention: rope or nope.
        head_dim: dimensions of a head.
        heads: query heads.
        kv_heads: key heads.
        width: of the network.
        layers: of the network.
        every: k, from 2 to the number of layers; None: Qwen3-Next's 4, or all layers where these are fewer.
        kernel: tokens of the convolutions of a delta layer.
    """

    def __init__(
        self,
        over: Encoding,
        head_dim: int,
        heads: int,
        kv_heads: int,
        width: int,
        layers: int,
        every: int | None = None,
        kernel: int = 4,
    ) -> None:
        super().__init__(over)
        # A decoder of fewer than 4 layers would have none with attention.
        every = max(2, min(4, layers)) if every is None else every
        if not 2 <= every <= layers:
            raise ConfigError(
                f"delta_hybrid's every must be from 2 to {layers} layers, got {every}: Qwen3-Next has 4; for all "
                "layers, gated_delta"
            )
        numbers = [number for number in range(layers) if (number + 1) % every]
        self.deltas = nn.ModuleDict(
            {str(number): DeltaLayer(head_dim, heads, kv_heads, width, kernel) for number in numbers}
        )

    def initialise(self, generator: Generator) -> None:
        """Draw the weights of the inner encoding, then those of each delta layer."""
        for each in (self.over, *self.deltas.values()):
            assert isinstance(each, Encoding)
            each.initialise(generator)

    def at(self, layer: int) -> Encoding:
        """The inner encoding in every k-th layer, else a gated delta layer."""
        if str(layer) not in self.deltas:
            return self.over.at(layer)
        found = self.deltas[str(layer)]
        assert isinstance(found, Encoding)
        return found
