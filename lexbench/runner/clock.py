"""Time of a cell: seconds in all, and of each answer."""

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


class CellClock:
    """Seconds and tokens of one cell. Begins when it is made."""

    def __init__(self) -> None:
        self._started, self._waited = time.monotonic(), 0.0
        self.timings: list[tuple[float, int]] = []
        """Seconds until each answer was there, and its tokens."""

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._started

    @property
    def tokens(self) -> int:
        """Tokens of all answers."""
        return sum(tokens for _, tokens in self.timings)

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

    def count(self, tokens: int) -> None:
        """Record the last answer's seconds and its number of tokens."""
        self.timings.append((self._waited, tokens))
