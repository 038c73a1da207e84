"""Runs the questions of candidates, the same for all, and stores each sample at once."""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lexbench.backends import Backend, capabilities
from lexbench.core import machine
from lexbench.core.attention import Attention
from lexbench.core.record import Cell, Deferred, Refused, Sample
from lexbench.core.task import AnyQuestion
from lexbench.methods.composition import Method
from lexbench.parts.search.tune.space import Candidate
from lexbench.runner.answers import answer_question, sample_of_answer
from lexbench.runner.cells import BackendFacts, Component, MethodComponent, OpenCell, PlannedCell, Workload
from lexbench.runner.job import Job
from lexbench.runner.plan import open_cell_of
from lexbench.runner.questions import questions_or_reason
from lexbench.runner.verify import Preflight
from lexbench.stats import costs
from lexbench.stats.pairs import Outcome, outcomes_of_samples
from lexbench.stats.records import records_of
from lexbench.store.store import Store


class TimeBudgetSpent(Exception):  # noqa: N818 (the end of a budget is not an error)
    """The time budget is spent, and a measurement is still needed."""


class TuneClock:
    """Seconds spent by a tune, including earlier commands.

    Args:
        before: seconds spent by earlier commands.
        started: start of this command, by `time.monotonic`.
    """

    def __init__(self, before: float, started: float) -> None:
        self._before, self._started = before, started
        self.limit: float | None = None
        """Seconds after which nothing new is measured; None: no limit."""

    @property
    def spent(self) -> float:
        """Seconds spent so far."""
        return self._before + time.monotonic() - self._started

    @property
    def is_over(self) -> bool:
        """Whether the limit is reached."""
        return self.limit is not None and self.spent >= self.limit

    def check(self) -> None:
        """Raise TimeBudgetSpent if the limit is reached."""
        if self.is_over:
            raise TimeBudgetSpent


@dataclass(frozen=True)
class Deployed:
    """Stands for a method fixed at one length in a cell's identity: its numbers do not follow each text's length."""

    method: Method
    length: int


@dataclass(frozen=True)
class TaskAtLength:
    """A task at one length."""

    task: Component
    length: int
    metric: str


class CandidateBench:
    """Samples of candidates in one run folder; cells of dropped candidates stay unfinished.

    A cell has the n questions of the last rung; an earlier rung uses the first of them, so no question runs twice.

    Args:
        job: settings common to all cells.
        backend: loaded.
        folder: run folder.
        seed: of the questions.
        length: of the deployment, in tokens.
        clock: time budget.
        preflight: self-check of candidates.
    """

    def __init__(
        self, job: Job, backend: Backend, folder: Path, seed: int, length: int, clock: TuneClock, preflight: Preflight
    ) -> None:
        self._job, self._backend, self._seed, self._length, self._clock = job, backend, seed, length, clock
        self._preflight = preflight
        self.store = Store(folder)
        self._finished = {each.cell.id: each for each in self.store.load()}
        self._whole = {name for name, each in self._finished.items() if not each.deferred}
        """Ids of cells whose file is written."""
        self._questions: dict[tuple[str, int], Sequence[AnyQuestion]] = {}
        self._samples: dict[str, dict[int, Sample]] = {}
        self._applied: Attention | None = None

    def questions(self, part: TaskAtLength) -> Sequence[AnyQuestion]:
        """All questions of a part; Refused if there are none."""
        key = part.task.label, part.length
        if key not in self._questions:
            n, tokenizer = self._job.n, self._backend.tokenizer
            made, refused = questions_or_reason(part.task, tokenizer, part.length, n, self._seed)
            if refused:
                raise refused
            self._questions[key] = made
        return self._questions[key]

    def outcomes(self, candidate: Candidate, part: TaskAtLength, count: int) -> list[Outcome]:
        """Outcomes of the first `count` questions of a part; missing ones are measured.

        Raises Refused if the backend cannot answer, TimeBudgetSpent if some are missing and the time is spent.
        """
        every, cell = self.questions(part), self._cell(candidate, part)
        questions, asked = every[:count], {question.index for question in every}
        known = self._known_samples(cell, asked)
        if missing := [question for question in questions if question.index not in known]:
            self._measure(candidate, cell, missing, known)
        if cell.id not in self._whole and known.keys() >= asked:
            # Also where an earlier command has measured the last question, and was stopped before this line.
            self.store.finish(cell, asked)
            self._whole.add(cell.id)
        return outcomes_of_samples([known[question.index] for question in questions], part.metric)

    def samples(self, candidate: Candidate, part: TaskAtLength) -> list[Sample]:
        """Samples of a part that are measured already."""
        asked = {question.index for question in self.questions(part)}
        return list(self._known_samples(self._cell(candidate, part), asked).values())

    def count_answers(self) -> int:
        """Number of answered questions in the cells used so far."""
        return sum(map(len, self._samples.values()))

    def write_records(self) -> None:
        """Derive the records of all finished cells."""
        self.store.write_records(records_of)

    def _cell(self, candidate: Candidate, part: TaskAtLength) -> OpenCell:
        name = str(candidate.config["name"])
        assert candidate.method is not None, f"{candidate.label} has no method"
        key = replace(candidate.key, at=self._length)
        method = MethodComponent.of(name, Deployed(candidate.method, self._length), key)
        # A tune's own cells name the length that the method is fixed at; those of `none` any run may share.
        if candidate.attention is not None and not candidate.attention.slots():
            method = MethodComponent.of(name, candidate.method, candidate.key)  # no change: the same cell as in any run
        step = PlannedCell(method, part.task, part.length, self._seed, candidate.attention, None, Workload())
        return open_cell_of(self._job, step, BackendFacts.of(self._backend))

    def _known_samples(self, cell: Cell, asked: Collection[int]) -> dict[int, Sample]:
        """Known samples of a cell; Refused if the cell was refused, or deferred and there is no time for it."""
        if cell.id not in self._samples:
            finished = self._finished.get(cell.id)
            deferred = finished is not None and finished.deferred and not self._clock.is_over
            if finished is not None and finished.refused is not None and not deferred:
                raise Refused(finished.refused)
            samples = self.store.resume(cell, asked) if finished is None or deferred else finished.samples
            self._samples[cell.id] = {sample.index: sample for sample in samples}
        return self._samples[cell.id]

    def _measure(
        self, candidate: Candidate, cell: OpenCell, missing: Sequence[AnyQuestion], known: dict[int, Sample]
    ) -> None:
        started = time.monotonic()
        device = getattr(self._backend, "device", None)
        own_peak = machine.forget_peak(device)
        try:
            self._clock.check()
            self._attend(candidate)
            for question in missing:
                self._clock.check()
                given = answer_question(self._backend, question)
                kept = sample_of_answer(cell.step.task.obj, self._backend.tokenizer, question, given)
                self.store.append(cell, kept)
                known[question.index] = kept
                # With each answer: a killed command must not spend its seconds twice.
                peak = None if capabilities(self._backend).remote else machine.peak_bytes(device)
                now = time.monotonic()
                self.store.cost(cell, now - started, question.length, peak, own_peak and peak is not None)
                started = now
        except Deferred as refusal:
            self.store.defer(cell, refusal.reason)
            raise
        except Refused as refusal:
            self.store.refuse(cell, refusal.reason)
            raise

    def _attend(self, candidate: Candidate) -> None:
        """Apply a candidate to the model, after its self-check the first time; Refused if that fails."""
        # Applying is slow on some backends; the same object needs no second time.
        if self._applied is candidate.attention:
            return
        assert candidate.attention is not None, f"{candidate.label} has no attention"
        self._applied = None
        if failed := self._preflight.failure(candidate.attention, self._length):
            raise Refused(f"{candidate.label} {failed}")
        self._backend.attend(candidate.attention)
        self._applied = candidate.attention


def seconds_spent(folder: Path) -> float:
    """Seconds of all measurements in a run folder, from its costs; 0 if there are none."""
    try:
        return sum(cost.seconds for cost in costs.load_costs([folder]).values())
    except ValueError:  # no run folder yet
        return 0.0
