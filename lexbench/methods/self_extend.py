"""Self-Extend: far positions by groups."""

from dataclasses import dataclass
from typing import ClassVar

from lexbench.core.attention import Attention, PositionMap, Remap
from lexbench.core.errors import ConfigError
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.methods.distances import check_count, check_rotary, whole_groups


@dataclass(frozen=True)
class SelfExtend:
    """Keep near distances; give far keys positions by groups of G tokens (Jin et al. 2024, arXiv 2401.01325).

        distance = i - j where i - j < W, else floor(i / G) - floor(j / G) + W - floor(W / G)

    With trained length L it reaches (L - W) G + W tokens. The paper advises to keep the largest distance within 1/2 to
    2/3 of L, because larger ones are trained badly. Its code defaults to G = 8, W = 1024 at any length, and
    shifts by W - floor(W / G) in flash decoding but by the fractional W - W / G in eager attention and at prefill. The
    two differ where G does not divide W: then `floor_shift` must choose.

    Args:
        group: G in tokens, at least 1; None: 1 within L; beyond it the smallest that keeps all distances within 2L/3,
            or else below L.
        window: W in tokens, at least 1; None: the largest multiple of G within L/4, or G.
        floor_shift: shift by W - floor(W / G) (true) or W - W / G (false); None: the group divides the window.
    """

    family: ClassVar[str] = "grouped distances"

    group: int | None = None
    window: int | None = None
    floor_shift: bool | None = None

    def __post_init__(self) -> None:
        check_count("self_extend's group", self.group, "leave it out to fit the length")
        check_count("self_extend's window", self.window, "leave it out for 1/4 of the trained length")
        if self.group and self.window and not self._fits(self.group):
            raise ConfigError(
                f"self_extend's group must divide its window (else its published forms differ), got group {self.group} "
                f"and window {self.window}: change one, or give floor_shift=true (the paper) or false (its eager code)"
            )

    def attention(self, model: Model, length: int) -> Attention:
        """The grouped remap; Refused without rotary positions, or where no group fits the length."""
        check_rotary(model)
        group = self.group or self._smallest_group(model, length)
        window = self._window(group, model)
        return Attention(
            remap=Remap(
                window=window,
                query=PositionMap(divisor=group, offset=self._shift(group, window), floor=True),
                key=PositionMap(divisor=group, floor=True),
            )
        )

    def _fits(self, group: int) -> bool:
        return self.window is None or self.floor_shift is not None or self.window % group == 0

    def _window(self, group: int, model: Model) -> int:
        return self.window or whole_groups(group, model.trained_length // 4)

    def _shift(self, group: int, window: int) -> float:
        # The paper and flash decoding round W / G down; the released eager attention and prefill do not.
        return window - (window / group if self.floor_shift is False else window // group)

    def _smallest_group(self, model: Model, length: int) -> int:
        """The smallest group that keeps the largest distance, of the last query and key 0, small enough."""
        trained_length = model.trained_length
        if length <= trained_length:
            return 1
        groups = [group for group in range(1, max(trained_length, self.window or 0) + 1) if self._fits(group)]
        # First what the paper advises, then all that training has seen.
        for limit in (2 * trained_length / 3, trained_length - 1):
            for group in groups:
                window = self._window(group, model)
                # The largest distance: of the last query and key 0.
                if (length - 1) // group + self._shift(group, window) <= limit:
                    return group
        raise Refused(
            f"self_extend has no group that keeps distances below the {trained_length} tokens that {model.name} knows, "
            f"asked for {length}: lower window, or give group, window and floor_shift"
        )
