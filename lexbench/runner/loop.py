"""A run: from a job to its cells, and from cells to samples in the run folder."""

import math
import time
from collections import deque
from collections.abc import Sequence

from tqdm import tqdm

from lexbench.backends import Backend, Recalling, Remote
from lexbench.core import machine
from lexbench.core.attention import Attention
from lexbench.core.method import Method
from lexbench.core.model import Model
from lexbench.core.record import Cell, Refused, Sample, Unavailable
from lexbench.core.tokenizer import FastTokenizer
from lexbench.core.version import __version__
from lexbench.runner.answers import Examiner, questions
from lexbench.runner.backend_pool import done_with, opened
from lexbench.runner.early_stop import Collapses
from lexbench.runner.forecast import Forecast
from lexbench.runner.job import Job, cell_of, keep_job
from lexbench.runner.plan import Estimate, Step, duration, estimate, speed
from lexbench.runner.reuse import Twins
from lexbench.runner.verify import Preflight
from lexbench.stats import costs
from lexbench.stats.costs import Cost
from lexbench.store.store import Store

Todo = tuple[Cell, Step]
_twins = Twins()
"""Of all jobs of this process."""


def plan(job: Job, tokenizer: FastTokenizer) -> list[Step]:
    """All cells of a job with their cost, in the order in which they run: methods side by side at each length.

    The longest come first, so that shorter ones can take what these hold, and no long one is left for the end; the
    shortest where longer ones may be skipped. Questions of the first seed that has any tell the cost of all seeds.
    """
    attentions = {
        (method.label, length): _attention(method.built, job.model, length)
        for method in job.methods
        for length in job.lengths
    }
    steps = []
    for task in job.tasks:
        known: dict[int, Estimate] = {}
        for seed in job.seeds:
            for length in sorted(job.lengths, reverse=not job.stop_after_collapse):
                cost, no_questions = known.get(length), None
                if cost is None:
                    asked, no_questions = questions(task.built, tokenizer, length, job.n, seed)
                    cost = estimate(job.model, asked)
                if no_questions is None:
                    known[length] = cost
                for method in job.methods:
                    attention, no_attention = attentions[method.label, length]
                    refused = no_attention or no_questions
                    steps.append(Step(method, task, length, seed, attention, refused, Estimate() if refused else cost))
    return steps


def measured(job: Job, store: Store, steps: Sequence[Step], tokenizer: FastTokenizer, quiet: bool) -> list[Cell]:
    """All cells of a job, measured in this process."""
    backend = opened(job.model, job.backend, max(job.lengths))
    try:
        if isinstance(backend, Recalling):
            backend.reuse = job.reuse
        cells = [(cell_of(job, step, backend), step) for step in steps]
        keep_job(store, job, backend, cells)
        preflight = Preflight(job.results, backend, __version__)
        with Run(job, store, cells, quiet) as run:
            run.measure(backend, Examiner(backend, tokenizer, preflight, job.reuse))
    finally:
        done_with(backend)
    return [cell for cell, _ in cells]


class Run:
    """The cells of a job that its folder does not hold yet, and how far they are.

    Args:
        job: what is asked for.
        store: of its folder.
        cells: all of them, in their order.
        quiet: show nothing.
    """

    def __init__(self, job: Job, store: Store, cells: Sequence[Todo], quiet: bool) -> None:
        self.job, self.store = job, store
        self.at_once = 1
        self._collapses = Collapses() if job.stop_after_collapse else None
        self._forecast = Forecast(speed())
        done = [cell for cell, _ in cells if store.finished(cell)]
        ids = {cell.id for cell in done}
        self.open = deque(todo for todo in cells if todo[0].id not in ids)
        for cell in done if self.open and (job.reuse or job.stop_after_collapse) else ():
            self._known(cell)
        self._costs = costs.of_file(store.folder / "costs.jsonl") if self.open and job.reuse else {}
        self._left = {cell.id: step for cell, step in self.open}
        self._parts: dict[str, float] = {}
        self._next, self._to_go = -math.inf, 0.0
        self._started = time.monotonic()
        self._bar = tqdm(total=1.0, disable=quiet or not self.open, dynamic_ncols=True, bar_format=BAR)

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def measure(self, backend: Backend, examiner: Examiner) -> None:
        """All open cells, one behind the other; those that another process measures come last, if it gives them up."""
        taken = deque[Todo]()
        for wait, cells in ((False, self.open), (True, taken)):
            while cells:
                cell, step = cells.popleft()
                if wait:
                    self._say(step, "waiting for another run at")
                with self.store.claimed(cell, wait) as mine:
                    if not mine:
                        taken.append((cell, step))
                    elif not self.settled(cell, step):
                        self._measure(backend, examiner, cell, step)

    def settled(self, cell: Cell, step: Step) -> bool:
        """Whether a claimed cell needs no measuring: another process or a twin has, or there is no way to."""
        if self.store.finished(cell):
            self.ended(cell, step)
            return True
        if self.job.reuse and (twin := _twins.of(self.store.folder, cell)) and self.store.adopt(cell, twin):
            if cost := self._costs.get(twin.id):
                self.store.cost(cell, cost.seconds, cost.tokens, cost.peak_bytes, cost.own_peak)
            self.ended(cell, step)
            return True
        if step.refused or step.attention is None:
            self.store.refuse(cell, step.refused or "no attention")
            self.ended(cell, step)
            return True
        if self._collapses is not None and (reason := self._collapses.reason(cell)):
            self.store.put_off(cell, reason)
            self.ended(cell, step)
            return True
        return False

    def began(self, cell: Cell, step: Step, done: int) -> None:
        """So many samples of a cell are there already."""
        self._parts[cell.id] = done / self.job.n
        self._say(step)

    def kept(self, cell: Cell, step: Step, sample: Sample) -> None:
        """One more sample of a claimed cell."""
        self.store.append(cell, sample)
        self._parts[cell.id] += 1 / self.job.n
        self._say(step)

    def ended(self, cell: Cell, step: Step, seconds: float | None = None) -> None:
        """A cell is finished or refused; `seconds` where it was measured whole, without a break."""
        self._left.pop(cell.id, None)
        self._parts.pop(cell.id, None)
        if seconds is not None and self._left:
            self._forecast.learn(step, seconds)
        if (self.job.reuse or self._collapses is not None) and self._left:
            self._known(cell)
        self._say(step)

    def spent(self, cell: Cell, cost: Cost) -> None:
        """What a cell has taken, elsewhere."""
        self.store.cost(cell, cost.seconds, cost.tokens, cost.peak_bytes, cost.own_peak)
        self._costs[cell.id] = cost

    def _known(self, cell: Cell) -> None:
        """What a finished cell tells of later ones."""
        found = self.store.load({cell.id}) if self._collapses is not None else []
        if self._collapses is not None and found:
            self._collapses.learn(cell, found[0].samples)
        _twins.learn(self.store.folder, cell)

    def _measure(self, backend: Backend, examiner: Examiner, cell: Cell, step: Step) -> None:
        """One cell: ask what is not answered yet, and finish it; or record why there is no honest answer."""
        started, tokens, whole = time.monotonic(), 0, False
        own_peak = machine.forget_peak()
        try:
            examiner.settle(step, cell.n)
            started = time.monotonic()  # an engine may have been started for it, and serves all cells
            done = {sample.index for sample in self.store.resume(cell)}
            self.began(cell, step, len(done))
            for sample in examiner.samples(step, cell.n, done):
                self.kept(cell, step, sample)
                tokens += sample.tokens
            self.store.finish(cell, examiner.asked(step, cell.n))
            whole = not done
        except Unavailable as refusal:
            self.store.put_off(cell, refusal.reason)
        except Refused as refusal:
            self.store.refuse(cell, refusal.reason)
        finally:  # an interrupted cell has cost something, too
            seconds = time.monotonic() - started
            self._costs[cell.id] = note_cost(self.store, backend, cell, seconds, tokens, own_peak)
        self.ended(cell, step, seconds if whole else None)

    def _say(self, step: Step, doing: str = "") -> None:
        """The bar: shares of time, spent and to come."""
        now = time.monotonic()
        spent = now - self._started
        if now >= self._next or not self._left:
            self._to_go = self._forecast.left(self._left.values())
            self._next = now + (time.monotonic() - now) / FORETELLING
        done = sum(part * self._forecast.seconds(self._left[cell]) for cell, part in self._parts.items())
        left = max(self._to_go - done, 0.0) / self.at_once
        self._bar.total = spent + left
        self._bar.n = min(spent, self._bar.total)
        words = [doing, step.task.label, step.method.label, str(step.length)]
        cells = f"{len(self._left)} {'cell' if len(self._left) == 1 else 'cells'}"
        to_go = f"{cells}, about {duration(left)} to go" if self._left else "done"
        self._bar.set_description(f"{to_go}  {' '.join(filter(None, words))}", refresh=False)
        self._bar.update(0)


FORETELLING = 0.02
"""Share of a run's time for sums over all cells that are left: there may be very many."""
BAR = "{percentage:3.0f}% |{bar:20}| {elapsed} gone, {desc}"


def note_cost(store: Store, backend: Backend, cell: Cell, seconds: float, tokens: int, own_peak: bool) -> Cost:
    """Keep what a cell took; memory where it is this process's own."""
    peak = None if isinstance(backend, Remote) else machine.peak_bytes()
    cost = Cost(seconds=seconds, tokens=tokens, peak_bytes=peak, own_peak=own_peak and peak is not None)
    store.cost(cell, cost.seconds, cost.tokens, cost.peak_bytes, cost.own_peak)
    return cost


def _attention(method: Method, model: Model, length: int) -> tuple[Attention | None, str | None]:
    try:
        return method.attention(model, length), None
    except Refused as refusal:
        return None, refusal.reason
