"""Dual chunk attention, as its paper has it."""

from dataclasses import dataclass
from typing import ClassVar

from lexbench.core.attention import Attention, Chunks
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.methods.distances import check_count, check_rotary


@dataclass(frozen=True)
class Dca:
    """Restart positions every s tokens, and see older chunks at larger distances (An et al. 2024, arXiv 2402.17463).

        keys at j mod s;  queries see their own chunk from i mod s, the one before from min(i mod s + s, c - 1),
        all older ones from c - 1  (eq. 2-8, c the trained length)

    No distance is above c - 1, and the last w = c - s keys always keep their true distance. The released code computes
    other distances and rescales attention: that is `chunkllama`.

    Args:
        chunk: s in tokens, at least 1 and below c; None: 3c/4, the paper's choice.
    """

    family: ClassVar[str] = "chunks"

    chunk: int | None = None

    def __post_init__(self) -> None:
        check_count("dca's chunk", self.chunk, "take 3/4 of the trained length")

    def attention(self, model: Model, length: int) -> Attention:
        """The chunks, the same at every length; Refused without rotary positions, or where the chunk is too long."""
        check_rotary(model)
        # c - 1 of the paper: the largest distance that training has seen.
        limit = model.trained_length - 1
        chunk = self.chunk or max(1, 3 * model.trained_length // 4)
        if chunk > limit:
            raise Refused(
                f"dca's chunk must be below the {model.trained_length} tokens that {model.name} knows, got {chunk}: "
                "take 3/4 of it"
            )
        return Attention(remap=Chunks(size=chunk, limit=limit))
