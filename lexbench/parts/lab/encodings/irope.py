"""iRoPE: layers with chunks and RoPE, and layers without positions that see all (Llama 4, Meta 2025)."""

from lexbench.core.attention import Attention, Segments, StepScale
from lexbench.core.errors import ConfigError
from lexbench.parts.lab.encodings.base import Encoding
from lexbench.parts.lab.encodings.wrappers import HOOKS_OF_ALL_LAYERS, EncodingWrapper, LayerWithSlots, UnrotatedLayer


class Irope(EncodingWrapper):
    """Every k-th layer sees all keys without positions, at a temperature; the others see their own chunk, with RoPE.

        layer l, counted from 1, where l mod k = 0:  logit(i, j) = t(i) q_i . k_j / sqrt(d)
                                                     t(i) = 1 + a ln(floor((i + 1) / c) + 1)
        other layers:  RoPE, and keys of the same chunk of c tokens alone

    That is transformers' Llama 4: `no_rope_layers` with k = 4, `attention_chunk_size` c = 8192, `floor_scale` c,
    `attn_scale` a = 0.1. RoPE never sees a distance of c or more. The temperature is 1 up to token c - 1. Llama 4 Scout
    trains on 262,144 tokens, 32 chunks; here c follows the trained length as L / 4, so that a short row has several
    chunks of some length. Its norm of queries and keys is left out: over={name: qk_norm}. `interleave` has the layers
    without chunks and temperature.

    Args:
        over: the encoding of the layers with positions.
        layers: of the network.
        trained_length: L in tokens.
        every: k, from 2 to the number of layers; None: Llama 4's 4, or all layers where these are fewer.
        chunk: c in tokens; None: L / 4, rounded up.
        temperature: a, at least 0.
    """

    excludes = HOOKS_OF_ALL_LAYERS

    def __init__(
        self,
        over: Encoding,
        layers: int,
        trained_length: int,
        every: int | None = None,
        chunk: int | None = None,
        temperature: float = 0.1,
    ) -> None:
        super().__init__(over)
        # A decoder of fewer than 4 layers would have none without positions.
        every = max(2, min(4, layers)) if every is None else every
        if not 2 <= every <= layers:
            raise ConfigError(
                f"irope's every must be from 2 to {layers} layers, got {every}: Llama 4 has 4; for all layers, nope"
            )
        self.every = every
        size = -(-trained_length // 4) if chunk is None else chunk
        self.chunks, self.steps = Segments(size), StepScale(size, temperature)

    def at(self, layer: int) -> Encoding:
        """The inner encoding within chunks; in every k-th layer none, with the temperature."""
        inner = self.over.at(layer)
        if (layer + 1) % self.every:
            return LayerWithSlots(inner, Attention(mask=self.chunks), self.name)
        return LayerWithSlots(UnrotatedLayer(inner), Attention(query_scale=self.steps), self.name)
