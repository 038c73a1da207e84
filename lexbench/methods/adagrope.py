"""AdaGroPE: positions are reused the more the further away they are."""

from dataclasses import dataclass
from typing import ClassVar

from lexbench.core.attention import Attention, Stairs
from lexbench.core.errors import ConfigError
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.methods.distances import check_count, check_rotary


@dataclass(frozen=True)
class Adagrope:
    """Each of P positions stands for one token nearby and for more and more of them far away (ACL 2025, long 28).

        distance = place of i - j in a list of P positions, of which the first
        r_1 = floor(rP) occur once, the next r_2 = floor(rP/2) twice, the next r_4 = floor(rP/4) four times, ..,
        as long as the times are below n; the remaining ones n times, and the last d of them n + 1 times

    where n is the largest for which M_n = nP - sum_{k<n} (n - k) r_k (k = 1, 2, 4, ..) is at most the length, and
    d = length - M_n: the list has exactly `length` entries. The paper's equations 8, 12 and 15 contradict 5, 10 and 13
    for n of 2 and more; the latter are used here. Up to P tokens nothing changes.

    Unlike in Self-Extend, the distance depends on i - j alone; this costs a pass for each remainder of i.

    Args:
        reuse: r, above 0 and at most 1/2; the nearest r P tokens keep exact distances.
        positions: P, at least 1 and at most the trained length; None: the trained length.
    """

    family: ClassVar[str] = "grouped distances"

    reuse: float = 0.25
    positions: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.reuse <= 0.5:
            raise ConfigError(
                f"adagrope's reuse must be above 0 and at most 0.5, got {self.reuse}: the paper takes 0.25"
            )
        check_count("adagrope's positions", self.positions, "leave it out for the trained length")

    def attention(self, model: Model, length: int) -> Attention:
        """The steps for this length; Refused without rotary positions, or with more positions than were trained."""
        check_rotary(model)
        positions = self.positions or model.trained_length
        if positions > model.trained_length:
            raise Refused(
                f"adagrope's positions must be at most the {model.trained_length} that {model.name} knows, "
                f"got {positions}: lower positions"
            )
        return Attention(remap=Stairs(self._steps(positions, length)))

    def _steps(self, positions: int, length: int) -> tuple[tuple[int, int], ...]:
        """(count, repeat): `count` positions that each stand for `repeat` tokens."""
        # The largest n with M_n <= length: M grows with n, so the first that is too long ends the search.
        repeat = 1
        while self._reach(positions, repeat + 1) <= length:
            repeat += 1
        steps = self._reuse_steps(positions, repeat)
        left = positions - sum(count for count, _ in steps)
        # d of the docstring: so many of the last positions stand for one token more, and the list has `length` entries.
        longer = max(0, length - self._reach(positions, repeat))
        steps.append((left - longer, repeat))
        if longer:
            steps.append((longer, repeat + 1))
        return tuple(steps)

    def _reach(self, positions: int, repeat: int) -> int:
        """M_n: tokens covered where each of the remaining positions stands for n = `repeat` tokens."""
        return repeat * positions - sum((repeat - k) * count for count, k in self._reuse_steps(positions, repeat))

    def _reuse_steps(self, positions: int, below: int) -> list[tuple[int, int]]:
        """(r_k, k) for k = 1, 2, 4, .. `below` a number, without empty ones."""
        # 1, 2, 4, .. below n; a count of 0 (few positions, large k) has no step.
        powers = [2**power for power in range((below - 1).bit_length())]
        counts = [(int(self.reuse * positions / k), k) for k in powers]
        return [(count, k) for count, k in counts if count]
