"""Lambda mask: a window and the first tokens, at limited distances."""

import math
from dataclasses import dataclass

from lexbench.core.attention import Attention, Line, Remap, Window
from lexbench.core.model import Model
from lexbench.methods.distances import check_count, check_rotary


@dataclass(frozen=True)
class LambdaMask:
    """Each query sees its last W keys and the first g, those never further than W (LM-Infinite, arXiv 2308.16137).

        masked unless i - j < W or j < g;  distance = min(i - j, W)

    The paper's W is the trained length, so that the distance of the first tokens is one above the trained ones.
    The paper's optional attention to a few keys in the middle is left out.

    Args:
        window: W in tokens, at least 1; None: the trained length.
        sinks: g in tokens, at least 0.
    """

    window: int | None = None
    sinks: int = 10

    def __post_init__(self) -> None:
        check_count("lambda_mask's window", self.window, "leave it out for the trained length")
        check_count("lambda_mask's sinks", self.sinks, "its authors take 10", least=0)

    def attention(self, model: Model, length: int) -> Attention:
        """Mask and remap, the same at every length; Refused where the model has no rotary positions."""
        check_rotary(model)
        window = self.window or model.trained_length
        far = Line(divisor=math.inf, offset=window)
        remap = Remap(window=window, query=far, key=Line(divisor=math.inf))
        return Attention(remap=remap, mask=Window(size=window, sinks=self.sinks))
