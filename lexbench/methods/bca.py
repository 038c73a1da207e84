"""Blockwise causal attention."""

from dataclasses import dataclass
from typing import ClassVar

from lexbench.core.attention import Attention, Blocks
from lexbench.core.model import Model
from lexbench.methods.distances import check_count


@dataclass(frozen=True)
class Bca:
    """Each query sees its own block and the whole one before (Sun et al. 2022, arXiv 2212.10554, section 2.3).

        masked unless floor(i / B) - floor(j / B) <= 1

    With blocks of half the trained length L no distance reaches L; a query sees 3L/4 keys on average. It was made for
    xPos and works with any encoding.

    Args:
        block: B in tokens, at least 1; None: half the trained length.
    """

    family: ClassVar[str] = "keys seen"

    block: int | None = None

    def __post_init__(self) -> None:
        check_count("bca's block", self.block, "leave it out for half the trained length")

    def attention(self, model: Model, length: int) -> Attention:
        """The blocks, the same at every length, for any model."""
        # Two blocks of L / 2 hold all keys that a query sees: no distance reaches L.
        return Attention(mask=Blocks(size=self.block or max(1, model.trained_length // 2)))
