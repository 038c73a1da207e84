"""Where candidates are asked: the same questions for all, one after the other, each kept as soon as it is answered."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lexbench.backends import Backend, capabilities
from lexbench.core import machine
from lexbench.core.attention import Attention
from lexbench.core.method import Method
from lexbench.core.record import Cell, Deferred, Refused, Sample
from lexbench.core.task import AnyQuestion
from lexbench.runner.answers import answer, scored
from lexbench.runner.cells import BackendFacts, Named, OpenCell, Step, Workload
from lexbench.runner.job import Job
from lexbench.runner.plan import cell_of
from lexbench.runner.verify import Preflight
from lexbench.stats import costs
from lexbench.stats.pairs import Outcome, outcomes
from lexbench.stats.records import records_of
from lexbench.store.store import Store
from lexbench.studies.tune.space import Candidate


class TimeUp(Exception):  # noqa: N818 (the end of a budget is no error)
    """Something would have to be measured, and the time for it is spent."""


class Clock:
    """Seconds that a tune has spent, those of earlier commands counted.

    Args:
        before: spent by earlier commands.
        started: when this command began, by `time.monotonic`.
    """

    def __init__(self, before: float, started: float) -> None:
        self._before, self._started = before, started
        self.limit: float | None = None
        """From which on nothing new is measured; None: never."""

    @property
    def spent(self) -> float:
        """Seconds."""
        return self._before + time.monotonic() - self._started

    def check(self) -> None:
        """TimeUp from the limit on."""
        if self.limit is not None and self.spent >= self.limit:
            raise TimeUp


@dataclass(frozen=True)
class Deployed:
    """What tells a method as it is deployed for one length from the one that follows each text's: for identities."""

    method: Method
    length: int


@dataclass(frozen=True)
class Part:
    """A task at one length."""

    task: Named
    length: int
    metric: str


class Bench:
    """Samples of candidates in one run folder; those of a candidate that was dropped stay an unfinished cell.

    A cell has the n questions of the last rung, of which each rung asks the first ones: nothing is asked twice.

    Args:
        job: what is common to all cells.
        backend: loaded.
        folder: of the run.
        seed: of the questions.
        length: of the deployment, in tokens.
        clock: says when to stop.
        preflight: what candidates prove themselves by.
    """

    def __init__(
        self, job: Job, backend: Backend, folder: Path, seed: int, length: int, clock: Clock, preflight: Preflight
    ) -> None:
        self._job, self._backend, self._seed, self._length, self._clock = job, backend, seed, length, clock
        self._preflight = preflight
        self.store = Store(folder)
        self._finished = {each.cell.id: each for each in self.store.load()}
        self._questions: dict[tuple[str, int], Sequence[AnyQuestion]] = {}
        self._samples: dict[str, dict[int, Sample]] = {}
        self._attends: Attention | None = None

    def questions(self, part: Part) -> Sequence[AnyQuestion]:
        """All of a part's; Refused where there are none."""
        key = part.task.label, part.length
        if key not in self._questions:
            tokenizer, n = self._backend.tokenizer, self._job.n
            self._questions[key] = part.task.built.questions(tokenizer, part.length, n, self._seed)
        return self._questions[key]

    def outcomes(self, candidate: Candidate, part: Part, count: int) -> list[Outcome]:
        """What the first `count` questions of a part gave.

        Raises Refused where the backend cannot, TimeUp where some are not answered yet and the clock says no.
        """
        questions = self.questions(part)[:count]
        cell = self._cell(candidate, part)
        known = self._known(cell)
        if missing := [question for question in questions if question.index not in known]:
            self._measure(candidate, cell, missing, known)
        return outcomes([known[question.index] for question in questions], part.metric)

    def asked(self) -> int:
        """Questions that have been answered in this folder, as far as they were looked at."""
        return sum(map(len, self._samples.values()))

    def write_records(self) -> None:
        """Derive the records of all finished cells."""
        self.store.write_records(records_of)

    def _cell(self, candidate: Candidate, part: Part) -> OpenCell:
        name = str(candidate.config["name"])
        assert candidate.method is not None, f"{candidate.label} has no method"
        method = Named(name, Deployed(candidate.method, self._length), f"{candidate.label} for {self._length}")
        if candidate.attention is not None and not candidate.attention.slots():
            method = Named(name, candidate.method, candidate.label)  # the model itself, as any run measures it
        step = Step(method, part.task, part.length, self._seed, candidate.attention, None, Workload())
        return cell_of(self._job, step, BackendFacts.of(self._backend))

    def _known(self, cell: Cell) -> dict[int, Sample]:
        """Samples of a cell; Refused where it was."""
        if cell.id not in self._samples:
            finished = self._finished.get(cell.id)
            if finished is not None and finished.refused is not None:
                raise Refused(finished.refused)
            samples = finished.samples if finished is not None else self.store.resume(cell)
            self._samples[cell.id] = {sample.index: sample for sample in samples}
        return self._samples[cell.id]

    def _measure(
        self,
        candidate: Candidate,
        cell: OpenCell,
        missing: Sequence[AnyQuestion],
        known: dict[int, Sample],
    ) -> None:
        started, tokens = time.monotonic(), 0
        own_peak = machine.forget_peak()
        try:
            self._clock.check()
            self._attend(candidate)
            for question in missing:
                self._clock.check()
                given = answer(self._backend, question)
                kept = scored(cell.step.task.built, self._backend.tokenizer, question, given)
                self.store.append(cell, kept)
                known[question.index] = kept
                tokens += question.length
            if len(known) == cell.n:
                self.store.finish(cell, known)
        except Deferred as refusal:
            self.store.defer(cell, refusal.reason)
            raise
        except Refused as refusal:
            self.store.refuse(cell, refusal.reason)
            raise
        finally:
            if tokens:
                peak = None if capabilities(self._backend).remote else machine.peak_bytes()
                self.store.cost(cell, time.monotonic() - started, tokens, peak, own_peak and peak is not None)

    def _attend(self, candidate: Candidate) -> None:
        """Put the model under the candidate, which proves itself the first time; Refused where it cannot."""
        if self._attends is candidate.attention:
            return
        assert candidate.attention is not None, f"{candidate.label} has no attention"
        self._attends = None
        if failed := self._preflight.failure(candidate.attention, self._length):
            raise Refused(f"{candidate.label} {failed}")
        self._backend.attend(candidate.attention)
        self._attends = candidate.attention


def seconds_spent(folder: Path) -> float:
    """Seconds of all measurements in a run folder, by its costs; 0 where nothing has been measured."""
    try:
        return sum(cost.seconds for cost in costs.load([folder]).values())
    except ValueError:  # no run folder yet
        return 0.0
