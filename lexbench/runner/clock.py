"""Time of a cell: seconds in all, and of each answer."""

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from lexbench.store.format import SampleCost

Item = TypeVar("Item")


class CellClock:
    """Seconds and tokens of one cell. Begins when it is made.

    Args:
        earlier: costs of answers that were there before, by index: of an interrupted run, or of a smaller cell.
    """

    def __init__(self, earlier: Mapping[int, SampleCost] | None = None) -> None:
        self._started = self._counted = time.monotonic()
        self._waited = 0.0
        self._earlier = dict(earlier or {})
        self._own: dict[int, SampleCost] = {}

    @property
    def costs(self) -> dict[int, SampleCost]:
        """Costs of all answers by index, in the order in which they came."""
        return self._earlier | self._own

    @property
    def own_seconds(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._started

    @property
    def seconds(self) -> float:
        """Seconds since the beginning, and those of earlier answers."""
        return sum(each.seconds for each in self._earlier.values()) + self.own_seconds

    def time_answers(self, answers: Iterable[Item]) -> Iterator[Item]:
        """The answers, each timed from the request for it."""
        # Of a batch the first answer takes the time of all, and the others none.
        found = iter(answers)
        while True:
            asked = time.monotonic()
            try:
                answer = next(found)
            except StopIteration:
                return
            self._waited = time.monotonic() - asked
            yield answer

    def count(self, index: int, tokens: int) -> SampleCost:
        """The cost of the last answer, to question `index`, of so many tokens: from the answer before it."""
        now = time.monotonic()
        found = self._own[index] = SampleCost(now - self._counted, self._waited, tokens)
        self._counted = now
        return found
