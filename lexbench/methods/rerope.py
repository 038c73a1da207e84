"""ReRoPE: rectified rotary positions."""

import math
from dataclasses import dataclass

from lexbench.core.attention import Attention, Line, Remap
from lexbench.core.model import Model
from lexbench.methods.distances import check_count, check_rotary


@dataclass(frozen=True)
class Rerope:
    """No distance beyond the window is told from another (Su 2023, kexue.fm/archives/9708).

        distance = min(i - j, w)

    Near keys are seen where they are; queries look at all others from position w, those keys being at 0. Since no
    distance above w is ever used, any length stays within what was trained.

    The window may be anything up to the trained length L; the article finds the best between L/4 and L/2, hence the
    default. Its published numbers include clipped log n scaling, which is the method `log_n` and no part of this one.
    The distances are exact whatever the frequencies are, also in a model that scales them itself.

    Args:
        window: w in tokens, at least 1; None: half the trained length.
    """

    window: int | None = None

    def __post_init__(self) -> None:
        check_count("rerope's window", self.window, "take 1/4 to 1/2 of the trained length")

    def attention(self, model: Model, length: int) -> Attention:
        """The rectified remap, the same at every length; Refused where the model has no rotary positions."""
        check_rotary(model)
        window = self.window or max(1, model.trained_length // 2)
        constant = Line(divisor=math.inf)
        return Attention(remap=Remap(window=window, query=Line(divisor=math.inf, offset=window), key=constant))
