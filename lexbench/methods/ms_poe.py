"""Ms-PoE: positions divided by another ratio in each head."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lexbench.core.attention import Attention, HeadRatios
from lexbench.core.errors import ConfigError
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.methods.distances import check_count, check_rotary


@dataclass(frozen=True)
class MsPoe:
    """Interpolate positions more in heads that notice fewer keys (Zhang et al. 2024, arXiv 2403.04797).

        angle of rank r's head = position theta / ratio_r,  ratio_r = low + r (high - low) / (H - 1)

    Heads are ranked by the number of keys to which the prompt's last query gives more than `threshold` times the mean
    weight; the largest number first. The aim is to find information in the middle of a context within the trained
    length, so the ratios do not follow the length.

    Keys that several query heads share can be rotated only once, so ranks and ratios are per key head, H in number.
    The released code ranks query heads by scores without any rotation, divides by H in place of H - 1, rotates shared
    keys by the ratio of their first query head, and gives head h the ratio of rank order[h], where order lists heads
    by rank: the inverse of what the paper says. It does not change the first two layers, as here.

    Args:
        low: smallest ratio, above 0.
        high: largest ratio, at least `low`.
        threshold: in units of the mean weight, above 0.
        first_layer: layers below it do not change.
    """

    family: ClassVar[str] = "logits and heads"

    low: float = 1.2
    high: float = 1.8
    threshold: float = 3.0
    first_layer: int = 2

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high < math.inf:
            raise ConfigError(
                f"ms_poe needs 0 < low <= high, got low {self.low} and high {self.high}: the paper takes 1.2 and 1.8"
            )
        if not 0 < self.threshold < math.inf:
            raise ConfigError(f"ms_poe's threshold must be finite and above 0, got {self.threshold}: the paper takes 3")
        check_count("ms_poe's first_layer", self.first_layer, "its authors take 2", least=0)

    def attention(self, model: Model, length: int) -> Attention:
        """A ratio per key head; Refused without rotary positions, or where heads or layers are unknown or too few."""
        check_rotary(model)
        heads = model.kv_heads or model.heads
        if heads is None:
            raise Refused(f"ms_poe needs the number of heads, {model.name} states none: give model.kv_heads")
        # Ratios by rank; which head has which rank is known only when a prompt is read.
        ratios = tuple(np.linspace(self.low, self.high, heads).tolist())
        return Attention(head_ratios=HeadRatios(ratios, threshold=self.threshold), layers=self._layers(model))

    def _layers(self, model: Model) -> tuple[int, ...] | None:
        if self.first_layer == 0:
            return None
        if model.layers is None or model.layers <= self.first_layer:
            raise Refused(
                f"ms_poe begins at layer {self.first_layer}, {model.name} has {model.layers or 'no known number of'} "
                "layers: give first_layer=0"
            )
        return tuple(range(self.first_layer, model.layers))
