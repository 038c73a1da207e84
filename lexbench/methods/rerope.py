"""ReRoPE: rectified rotary positions."""

import math
from dataclasses import dataclass
from typing import ClassVar

from lexbench.core.attention import Attention, PositionMap, Remap
from lexbench.core.model import Model
from lexbench.methods.distances import check_count, check_rotary


@dataclass(frozen=True)
class Rerope:
    """Use one distance for all keys beyond the window (Su 2023, kexue.fm/archives/9708).

        distance = min(i - j, w)

    Near keys keep their distances. For all other keys, the query is at position w and the key at 0. No distance is
    above w, so any length stays in the trained range.

    The window may be anything up to the trained length L; the article finds the best between L/4 and L/2, hence the
    default. Its published numbers include clipped log n scaling, which is the method `log_n`. The distances are
    exact for any frequencies, also in a model that scales them itself.

    Args:
        window: w in tokens, at least 1; None: half the trained length.
    """

    family: ClassVar[str] = "grouped distances"

    window: int | None = None

    def __post_init__(self) -> None:
        check_count("rerope's window", self.window, "take 1/4 to 1/2 of the trained length")

    def attention(self, model: Model, length: int) -> Attention:
        """The rectified remap, the same at every length; Refused where the model has no rotary positions."""
        check_rotary(model)
        window = self.window or max(1, model.trained_length // 2)
        # divisor=inf is a constant position: keys at 0, so that a kernel may leave far keys unrotated.
        constant = PositionMap(divisor=math.inf)
        return Attention(remap=Remap(window=window, query=PositionMap(divisor=math.inf, offset=window), key=constant))
