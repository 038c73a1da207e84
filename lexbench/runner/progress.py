"""The progress bar of a run: one bar and one total, of all jobs of a sweep too.

On a terminal tqdm draws it, `00:02<00:33` as elapsed and left. Elsewhere there is one line per measured cell. Nothing
with TQDM_DISABLE=1. Where questions take longer than a second and there is no bar, a line says what is done.
"""

import functools
import math
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

from tqdm import tqdm

from lexbench.core.console import bars_are_disabled, must_hide_bar
from lexbench.core.text import count_with_noun, join_first_few
from lexbench.runner.cells import OpenCell, PlannedCell
from lexbench.runner.forecast import Forecast, format_duration, operations_per_second

MAX_SUMMING_TIME_SHARE = 0.02
"""Share of a run's time for sums over all cells that are left: there may be very many."""
SECONDS_BEFORE_LINE = 1.0
"""Seconds of work without a bar after which a line with the work's name is printed."""
BAR_FORMAT = "{percentage:3.0f}%|{bar:20}| {elapsed}<{remaining}, {desc}"


@dataclass
class Planned:
    """Size of the jobs of a sweep that are planned so far."""

    jobs: int = 0
    cells: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{count_with_noun(self.cells, 'cell')}, {self.tokens:,} tokens, about {format_duration(self.seconds)}"


class Sweep:
    """The bar of the jobs that one process runs one after the other. A single run is a sweep of one job."""

    def __init__(self) -> None:
        self.jobs, self.begun = 1, 0
        self._computes_in = ("float32", "auto")
        self.planned = Planned()
        self._started = 0.0
        self._steps = 0.0
        """Seconds of all cells of the begun jobs, as forecast when each began."""
        self._bar: tqdm[Any] | None = None
        self._lines = True

    @functools.cached_property
    def forecast(self) -> Forecast:
        """Fitted to the cells of all jobs; it begins with the speed of the first job's dtype and device."""
        return Forecast(operations_per_second(*self._computes_in))

    def begin(self, steps: Iterable[PlannedCell], quiet: bool, dtype: str = "float32", device: str = "auto") -> None:
        """The next job begins, with these open cells, on a backend of this dtype and device."""
        self._computes_in = (dtype, device)
        self._started = self._started or time.monotonic()
        self.begun += 1
        self.jobs = max(self.jobs, self.begun)
        known = list(steps)
        self._steps += self.forecast.remaining_seconds(known)
        self._lines = not quiet and not bars_are_disabled()
        if self._bar is None and known and _bars and not must_hide_bar(quiet):
            # tqdm divides what is left by the rate so far: a second per second, if the total is in seconds
            self._bar = tqdm(total=1.0, dynamic_ncols=True, bar_format=BAR_FORMAT, smoothing=0, miniters=0)

    @property
    def draws(self) -> bool:
        """Whether there is a bar."""
        return self._bar is not None

    @property
    def prints(self) -> bool:
        """Whether there are lines in its place."""
        return self._lines and self._bar is None

    def show(self, left: float, text: str) -> None:
        """Draw the bar: `left` seconds that the present job still needs, and a text on its present work."""
        if self._bar is None:
            return
        spent = time.monotonic() - self._started
        self._bar.total = spent + left + self._seconds_of_later_jobs()
        self._bar.n = min(spent, self._bar.total)
        self._bar.set_description_str(self._job(text), refresh=False)
        self._bar.update(0)

    def line(self, left: float, text: str) -> None:
        """Print a line, where there is no bar."""
        spent = tqdm.format_interval(time.monotonic() - self._started)
        to_go = tqdm.format_interval(left + self._seconds_of_later_jobs())
        print(f"{spent}<{to_go}, {self._job(text)}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """End the bar; its last state stays on the screen."""
        if self._bar is not None:
            self._bar.refresh()
            self._bar.close()

    def _seconds_of_later_jobs(self) -> float:
        """Seconds of the jobs that have not begun: as long as the begun ones on average."""
        return (self.jobs - self.begun) * self._steps / max(self.begun, 1)

    def _job(self, text: str) -> str:
        return f"job {self.begun} of {self.jobs}, {text}" if self.jobs > 1 else text


_sweep: Sweep | None = None
"""The sweep of this process."""


_bars = True
"""Whether this process may draw one."""


def disable_bar() -> None:
    """Draw no bar in this process: others draw on the same terminal."""
    global _bars
    _bars = False


def plan_lines(text: str, steps: Sequence[PlannedCell]) -> str:
    """The plan of a job as it is shown: of a sweep's first job all of `text` and the number of jobs; then its size.

    The last one states the total of all jobs.
    """
    if _sweep is None or _sweep.jobs <= 1:
        return text
    asked = [step for step in steps if step.refusal_reason is None]
    size = Planned(1, len(asked), sum(step.workload.tokens for step in asked), _sweep.forecast.remaining_seconds(asked))
    whole = _sweep.planned
    for name, value in vars(size).items():
        setattr(whole, name, getattr(whole, name) + value)
    methods, tasks = ({getattr(step, name).label: None for step in steps} for name in ("method", "task"))
    line = (
        f"job {whole.jobs} of {_sweep.jobs}: {join_first_few([*methods], 3)} on {join_first_few([*tasks], 3)}, {size}"
    )
    if whole.jobs == 1:
        others = _sweep.jobs * size.seconds
        return f"{text}\n{line}; all {_sweep.jobs} jobs, if they are alike: about {format_duration(others)}"
    return f"{line}\nall {_sweep.jobs} jobs: {whole}" if whole.jobs == _sweep.jobs else line


@contextmanager
def shared_bar() -> Iterator[Sweep]:
    """Share one bar among the runs of a block; set `jobs` to their number."""
    global _sweep
    _sweep = Sweep()
    try:
        yield _sweep
    finally:
        _sweep.close()
        _sweep = None


class _SlowBlocks:
    """Blocks at work that a line is due for. One thread looks at all of them: one a cell would take as long as it."""

    def __init__(self) -> None:
        self._due: dict[object, tuple[float, str]] = {}
        """Time when the line of each block is due, and the name of its work."""
        self._watched = False
        self._lock = threading.Lock()

    def add(self, doing: str) -> object:
        """A block begins; returns what `remove` takes at its end."""
        block = object()
        with self._lock:
            self._due[block] = (time.monotonic() + SECONDS_BEFORE_LINE, doing)
            if not self._watched:
                self._watched = True
                threading.Thread(target=self._watch, daemon=True).start()
        return block

    def remove(self, block: object | None) -> None:
        """A block has ended, or was never added."""
        with self._lock:
            self._due.pop(block, None)

    def _watch(self) -> None:
        """Print the lines that are due, until no block waits for one."""
        left: float | None = SECONDS_BEFORE_LINE
        while left is not None:
            time.sleep(left)
            left = self._seconds_to_next()

    def _seconds_to_next(self) -> float | None:
        """Print what is due; seconds until the next line is, None where no block waits for one."""
        with self._lock:
            now = time.monotonic()
            for block, (due, doing) in list(self._due.items()):
                if due <= now:
                    del self._due[block]
                    tqdm.write(f"{doing} ...", file=sys.stderr)  # above the bar of a sweep
            self._watched = bool(waiting := list(self._due.values()))
            return max(0.0, min(waiting)[0] - now) if waiting else None


_slow_blocks = _SlowBlocks()
"""Slow blocks of this process."""


@contextmanager
def print_when_slow(doing: str, quiet: bool) -> Iterator[None]:
    """Print what a block does, in one line, where it takes longer than SECONDS_BEFORE_LINE."""
    block = None if quiet or bars_are_disabled() else _slow_blocks.add(doing)
    try:
        yield
    finally:
        _slow_blocks.remove(block)


class Progress:
    """Shows how far a run is. Safe for several threads.

    Args:
        cells: all open ones.
        quiet: show nothing.
        device: of the backend.
    """

    def __init__(self, cells: Iterable[OpenCell], quiet: bool, device: str = "auto") -> None:
        open_cells = list(cells)
        self._left = {cell.id: cell.step for cell in open_cells}
        self._parts: dict[str, float] = {}
        """Share of the samples that each cell at work has already."""
        self._next, self._to_go = -math.inf, 0.0
        self._lock = threading.RLock()
        self._sweep, self._shared = _sweep or Sweep(), _sweep is not None
        dtype = open_cells[0].dtype if open_cells else "float32"
        self._sweep.begin(self._left.values(), quiet, dtype, device)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._shared:
            self._sweep.close()

    @contextmanager
    def show_questions(self, cell: OpenCell) -> Iterator[None]:
        """Show that a block writes the questions of a cell."""
        self.show(cell, "writing the questions of")
        with print_when_slow(
            f"writing the questions of {cell.task} at {cell.length:,} tokens", quiet=not self._sweep.prints
        ):
            yield

    def begin_cell(self, cell: OpenCell, done: int) -> None:
        """A cell is taken, of which so many samples are there already."""
        with self._lock:
            self._parts[cell.id] = done / cell.n
            self.show(cell)

    def count_sample(self, cell: OpenCell) -> None:
        """Count one more sample of a cell."""
        with self._lock:
            self._parts[cell.id] += 1 / cell.n
            self.show(cell)

    def end_cell(self, cell: OpenCell, seconds: float | None = None) -> None:
        """A cell is finished, refused or deferred; `seconds` where it was measured without a break."""
        with self._lock:
            self._left.pop(cell.id, None)
            measured = self._parts.pop(cell.id, None) is not None
            if seconds is not None and (self._left or self._shared):
                self._sweep.forecast.learn(cell.step, seconds)
            self.show(cell)
            if measured and self._sweep.prints:
                self._sweep.line(self._seconds(), self._text(cell))

    def show(self, cell: OpenCell, doing: str = "") -> None:
        """Draw the bar, with the cell that something is done with."""
        if self._sweep.draws:
            with self._lock:  # workers change what is left
                self._sweep.show(self._seconds(), self._text(cell, doing))

    def _seconds(self) -> float:
        """Seconds that this run still needs."""
        now = time.monotonic()
        forecast = self._sweep.forecast
        if now >= self._next or not self._left:
            self._to_go = forecast.remaining_seconds(self._left.values())
            # The sum took this long: the next one waits 1 / MAX_SUMMING_TIME_SHARE times as long.
            self._next = now + (time.monotonic() - now) / MAX_SUMMING_TIME_SHARE
        done = sum(part * forecast.seconds(self._left[id]) for id, part in self._parts.items())
        # Cells at work side by side share the time.
        return max(self._to_go - done, 0.0) / max(1, len(self._parts))

    def _text(self, cell: OpenCell, doing: str = "") -> str:
        count = f"{len(self._left)} {'cell' if len(self._left) == 1 else 'cells'} left"
        return f"{count}: {' '.join(filter(None, [doing, cell.task, str(cell.method), str(cell.length)]))}"
