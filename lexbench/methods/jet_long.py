"""Jet-Long: far positions by groups that grow with the length."""

from dataclasses import dataclass
from typing import ClassVar

from lexbench.core.attention import Attention, PositionMap, Remap
from lexbench.core.model import Model
from lexbench.methods.distances import check_count, check_rotary


@dataclass(frozen=True)
class JetLong:
    """Keep near distances; give far keys positions by groups, as small as the length allows (arXiv 2607.07740).

        distance = i - j where i - j <= w0, else floor(i / G) - floor(j / G),  G = max(1, ceil(length / L))

    Within the trained length L, G is 1 and nothing changes. Unlike Self-Extend there is no shift, so that beyond the
    window distances fall back to about w0 / G.

    Args:
        window: w0 in tokens, at least 1; None: the paper's 2048, at most half the trained length.
        group: G in tokens, at least 1; None: length / trained_length, rounded up.
    """

    family: ClassVar[str] = "chunks"
    per_text: ClassVar[bool] = True

    window: int | None = None
    group: int | None = None

    def __post_init__(self) -> None:
        check_count("jet_long's window", self.window, "the paper takes 2048")
        check_count("jet_long's group", self.group, "leave it out to fit the length")

    def attention(self, model: Model, length: int) -> Attention:
        """The grouped remap; Refused where the model has no rotary positions."""
        check_rotary(model)
        window = self.window or min(2048, max(1, model.trained_length // 2))
        # G = ceil(length / L), in whole numbers.
        group = self.group or max(1, -(-length // model.trained_length))
        grouped = PositionMap(divisor=group, floor=True)
        # The paper's near side is i - j <= w0; a Remap's is i - j < window.
        return Attention(remap=Remap(window=window + 1, query=grouped, key=grouped))
