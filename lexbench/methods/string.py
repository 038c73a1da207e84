"""STRING: shifted rotary positions."""

from dataclasses import dataclass
from typing import ClassVar

from lexbench.core.attention import Attention, PositionMap, Remap
from lexbench.core.errors import ConfigError
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.methods.distances import check_count, check_rotary


@dataclass(frozen=True)
class String:
    """Replace the largest distances by smaller ones (An et al. 2024, arXiv 2410.18745).

        distance = i - j where i - j < S, else i - j - S + W

    Made for lengths within the trained one, whose largest distances are rarely trained: the last third is replaced, so
    distances from W on occur twice. Nothing is compressed: beyond 3/2 trained lengths distances are untrained.

    The released code counts the keys at distance S twice at prefill and once in decoding; here they count once.

    Args:
        shift: S in tokens, at least 1; None: 0.33 of the length in use (the paper searches 0.25 to 0.4).
        window: W in tokens, 1 to S, the first distance of far keys; None: 128, or S/4 where that is less.
    """

    family: ClassVar[str] = "chunks"
    per_text: ClassVar[bool] = True

    shift: int | None = None
    window: int | None = None

    def __post_init__(self) -> None:
        check_count("string's shift", self.shift, "take about a third of the length")
        check_count("string's window", self.window, "the paper takes 128")
        if self.shift and self.window and self.window > self.shift:
            raise ConfigError(
                f"string's window must be at most its shift, got window {self.window} and shift {self.shift}: "
                "lower window"
            )

    def attention(self, model: Model, length: int) -> Attention:
        """The shifted remap; Refused without rotary positions, or where the window is above a third of the length."""
        check_rotary(model)
        # In whole numbers: 0.33 * length may fall just below the whole number that is meant.
        shift = self.shift or max(1, 33 * length // 100)
        window = self.window or min(128, max(1, shift // 4))
        if window > shift:
            raise Refused(
                f"string's window must be at most its shift, {shift} at {length} tokens, got {window}: lower window"
            )
        # Keys stay where they are, so any cache of rotated keys serves both sides.
        return Attention(remap=Remap(window=shift, query=PositionMap(offset=window - shift), key=PositionMap()))
