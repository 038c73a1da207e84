"""ChunkLlama: dual chunk attention as its authors released it."""

import math
from dataclasses import dataclass
from typing import ClassVar

from lexbench.core.attention import Attention, Chunks
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.methods.distances import check_rotary
from lexbench.methods.rotary import check_attention_factor


@dataclass(frozen=True)
class Chunkllama:
    """Dual chunk attention (arXiv 2402.17463) with the chunks and the attention scale of its released code.

        s = floor(3L/4) - floor(L/8),  keys at j mod s
        queries see their own chunk from i mod s, the one before from min(i mod s + s, floor(3L/4)), older ones from
        floor(3L/4);  cos and sin times 0.05 ln(length / L) + 1, never below 1

    The paper (`dca`) has chunks of 3L/4, distances up to L - 1, and no scale; its tables were measured without one.
    Here no distance is above 3L/4, and the model changes from 5L/8 tokens on. The scale follows the cell's length; in
    the code it follows the longest input so far.

    Args:
        attention_factor: scale of cos and sin, above 0; 1: none, as in the paper; None: 0.05 ln(length / L) + 1.
    """

    family: ClassVar[str] = "chunks"

    attention_factor: float | None = None

    def __post_init__(self) -> None:
        check_attention_factor("chunkllama", self.attention_factor, "0.05 ln s + 1")

    def attention(self, model: Model, length: int) -> Attention:
        """Chunks and scale; Refused without rotary positions, or where the scale would replace the model's own."""
        check_rotary(model)
        factor = self.attention_factor
        if factor is None:
            factor = 0.05 * math.log(max(1.0, length / model.trained_length)) + 1
        if factor != 1 and model.rope_scaling is not None:
            raise Refused(
                f"{model.name} already scales its rotation, chunkllama would replace that by {factor:.4g}: "
                "give attention_factor=1"
            )
        # 3L/4 is the released code's chunk_size, from which it takes a local_window of L/8: for L = 4096, 3072 and
        # chunks of 2560.
        limit = max(1, 3 * model.trained_length // 4)
        chunks = Chunks(size=max(1, limit - model.trained_length // 8), limit=limit)
        return Attention(remap=chunks, scale=None if factor == 1 else factor)
