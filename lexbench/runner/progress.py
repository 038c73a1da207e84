"""The progress bar of a run: seconds spent and to come."""

import math
import threading
import time
from collections.abc import Iterable
from typing import Self

from tqdm import tqdm

from lexbench.runner.cells import OpenCell
from lexbench.runner.forecast import Forecast, duration, speed

SHARE = 0.02
"""Share of a run's time for sums over all cells that are left: there may be very many."""
BAR = "{percentage:3.0f}% |{bar:20}| {elapsed} gone, {desc}"


class Progress:
    """Shows how far a run is. Safe for several threads.

    Args:
        cells: all open ones.
        quiet: show nothing.
    """

    def __init__(self, cells: Iterable[OpenCell], quiet: bool) -> None:
        self._left = {cell.id: cell.step for cell in cells}
        self._parts: dict[str, float] = {}
        """Share of the samples that each cell at work has already."""
        self._forecast = Forecast(speed())
        self._next, self._to_go = -math.inf, 0.0
        self._started = time.monotonic()
        self._lock = threading.RLock()
        self._bar = tqdm(total=1.0, disable=quiet or not self._left, dynamic_ncols=True, bar_format=BAR)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def began(self, cell: OpenCell, done: int, doing: str = "") -> None:
        """A cell is taken, of which so many samples are there already."""
        with self._lock:
            self._parts[cell.id] = done / cell.n
            self.show(cell, doing)

    def kept(self, cell: OpenCell) -> None:
        """One more sample of a cell is kept."""
        with self._lock:
            self._parts[cell.id] += 1 / cell.n
            self.show(cell)

    def ended(self, cell: OpenCell, seconds: float | None = None) -> None:
        """A cell is finished, refused or deferred; `seconds` where it was measured without a break."""
        with self._lock:
            self._left.pop(cell.id, None)
            self._parts.pop(cell.id, None)
            if seconds is not None and self._left:
                self._forecast.learn(cell.step, seconds)
            self.show(cell)

    def show(self, cell: OpenCell, doing: str = "") -> None:
        """Draw the bar, with the cell that something is done with."""
        now = time.monotonic()
        spent = now - self._started
        if now >= self._next or not self._left:
            self._to_go = self._forecast.left(self._left.values())
            self._next = now + (time.monotonic() - now) / SHARE
        done = sum(part * self._forecast.seconds(self._left[id]) for id, part in self._parts.items())
        left = max(self._to_go - done, 0.0) / max(1, len(self._parts))
        self._bar.total = spent + left
        self._bar.n = min(spent, self._bar.total)
        words = [doing, cell.task, cell.method, str(cell.length)]
        count = f"{len(self._left)} {'cell' if len(self._left) == 1 else 'cells'}"
        to_go = f"{count}, about {duration(left)} to go" if self._left else "done"
        self._bar.set_description(f"{to_go}  {' '.join(filter(None, words))}", refresh=False)
        self._bar.update(0)
