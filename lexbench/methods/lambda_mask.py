"""Lambda mask: a window and the first tokens, at limited distances."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from lexbench.core.attention import Attention, PositionMap, Remap, TopKMask, Window
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.methods.distances import check_count, check_rotary


@dataclass(frozen=True)
class LambdaMask:
    """Each query sees its last W keys and the first g, those never further than W (LM-Infinite, arXiv 2308.16137).

        masked unless i - j < W or j < g;  distance = min(i - j, W)

    The paper's W is the trained length, so that the distance of the first tokens is one above the trained ones.
    With `middle` each query of each head also sees the few keys between with the largest logits at distance W, in
    layers `middle_from` and later; the paper's appendix takes 5 of them for retrieval. Then scores of all keys are
    computed. The released code (read, not run) does so for the last query of each pass alone, at a distance of 2048
    where W is 4096, from its fifth layer on: middle_from=4.

    Args:
        window: W in tokens, at least 1; None: the trained length.
        sinks: g in tokens, at least 0.
        middle: keys between, at least 0.
        middle_from: first layer, counted from 0, with keys between.
    """

    family: ClassVar[str] = "keys seen"

    window: int | None = None
    sinks: int = 10
    middle: int = 0
    middle_from: int = 5

    def __post_init__(self) -> None:
        check_count("lambda_mask's window", self.window, "leave it out for the trained length")
        check_count("lambda_mask's sinks", self.sinks, "its authors take 10", least=0)
        check_count("lambda_mask's middle", self.middle, "its authors take 5", least=0)
        check_count("lambda_mask's middle_from", self.middle_from, "0 is the first layer", least=0)

    def attention(self, model: Model, length: int) -> Attention:
        """Mask and remap, the same at every length; Refused without rotary positions, or with too few layers."""
        check_rotary(model)
        window = self.window or model.trained_length
        # Far queries at position W, far keys at 0: every sink is at distance W, whatever the text's length.
        far = PositionMap(divisor=math.inf, offset=window)
        remap = Remap(window=window, query=far, key=PositionMap(divisor=math.inf))
        plain = Attention(remap=remap, mask=Window(size=window, sinks=self.sinks))
        if not self.middle:
            return plain
        if model.layers is None or model.layers <= self.middle_from:
            raise Refused(
                f"lambda_mask's middle keys begin at layer {self.middle_from}, {model.name} has "
                f"{model.layers or 'no known number of'} layers: lower middle_from"
            )
        # Layers before `middle_from` keep the plain mask; all layers have the remap.
        return replace(
            plain,
            mask=TopKMask(size=window, sinks=self.sinks, count=self.middle),
            layers=tuple(range(self.middle_from, model.layers)),
            otherwise=plain if self.middle_from else None,
        )
