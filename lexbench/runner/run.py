"""A run: the open cells of a job, and what is known without measuring them."""

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self

from lexbench.core.record import Sample
from lexbench.core.task import AnyQuestion, Tokenizer
from lexbench.core.text import count_with_noun
from lexbench.runner.answers import Answerer, MemoryPeak, sample_of_answer
from lexbench.runner.cells import OpenCell
from lexbench.runner.clock import CellClock
from lexbench.runner.early_stop import CollapseLengths
from lexbench.runner.job import Job
from lexbench.runner.kept import is_same_model, kept_answers
from lexbench.runner.progress import Progress
from lexbench.runner.queue import CellQueue
from lexbench.runner.reuse import Twins, cells_with_fewer_questions
from lexbench.stats import costs
from lexbench.stats.costs import Cost
from lexbench.stats.rescore import rescore_cell
from lexbench.store.checksum import with_checksum
from lexbench.store.format import FinishedCell
from lexbench.store.stopped import read_stopped
from lexbench.store.store import Store

log = logging.getLogger(__name__)
_twins = Twins()
"""Finished cells of all jobs of this process."""


class RunState:
    """The cells of a job that its folder does not hold yet.

    Args:
        job: the job.
        store: of its folder.
        cells: all cells of the job, in their order.
        quiet: show no progress.
    """

    def __init__(self, job: Job, store: Store, cells: Sequence[OpenCell], quiet: bool) -> None:
        self.job, self.store, self.cells = job, store, cells
        finished = {cell.id for cell in cells if store.is_finished(cell)}
        left = [cell for cell in cells if cell.id not in finished]
        self.measured = len(cells) - len(left)
        """Cells that the folder holds already."""
        self.queue = CellQueue(left, store, ascending=job.stop_after_collapse)
        self.progress = Progress(left, quiet, str(job.backend.get("device", "auto")))
        self._collapses = CollapseLengths() if job.stop_after_collapse else None
        # What a cell has taken is what its twins would have taken.
        self._costs = costs.costs_of_file(store.folder / "costs.jsonl") if left and job.reuse else {}
        self._lock = threading.RLock()
        if left:
            for cell in cells:
                if cell.id in finished:
                    self._learn(cell)

    def __enter__(self) -> Self:
        self.progress.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.__exit__(*error)

    @contextmanager
    def claim(self, cell: OpenCell) -> Iterator[bool]:
        """Whether the cell is this run's alone inside the block."""
        if self.queue.waits_for_another_run(cell):
            self.progress.show(cell, "waiting for another run at")
        with self.queue.claim(cell) as mine:
            yield mine

    def settle_cell(self, cell: OpenCell) -> bool:
        """Whether a claimed cell needs no measuring; it is finished, refused or deferred then."""
        with self._lock:
            settled = self._settle_unmeasured(cell)
        if settled:
            self.end_cell(cell)
        return settled

    def _settle_unmeasured(self, cell: OpenCell) -> bool:
        if self.store.is_finished(cell):  # by another process, meanwhile
            return True
        if self.job.reuse and (twin := _twins.of(self.store.folder, cell)) and self.store.adopt_twin(cell, twin):
            if cost := self._costs.get(twin):
                self._keep_cost(cell, cost)
            return True
        if cell.step.refusal_reason and not cell.step.is_foreseen:
            keep = self.store.defer if cell.step.retry else self.store.refuse
            keep(cell, cell.step.refusal_reason)
            return True
        if self._collapses is not None and (reason := self._collapses.reason(cell)):
            self.store.defer(cell, reason)
            return True
        return False

    def keep_samples(
        self, cell: OpenCell, questions: Sequence[AnyQuestion], model: Answerer, tokenizer: Tokenizer
    ) -> list[Sample]:
        """Samples with which a claimed cell begins: its own of an interrupted run, or those of a smaller cell.

        None that is of another question than today's; none at all where the identity does not tell the weights, and
        the model does not answer two of them as they say. ConfigError for one whose index is not asked.

        Args:
            cell: the cell.
            questions: all of its questions.
            model: with the cell's method applied.
            tokenizer: of the model.
        """
        own = self.store.resume(cell, [question.index for question in questions])
        kept = self._trusted_samples(cell, own, questions, model, tokenizer)
        if len(kept) < len(own):
            costs_of_own = self.store.sample_costs(cell)
            self.store.restart(cell)
            for sample in kept:
                self.store.append(cell, sample, costs_of_own.get(sample.index))
        if not kept:
            self._adopt_samples(cell, questions, model, tokenizer)
        return self.store.resume(cell)

    def _trusted_samples(
        self,
        cell: OpenCell,
        samples: Sequence[Sample],
        questions: Sequence[AnyQuestion],
        model: Answerer,
        tokenizer: Tokenizer,
    ) -> list[Sample]:
        """Those of a cell's kept samples that a run may go on from; what is left out is logged."""

        def ask(some: Sequence[AnyQuestion]) -> list[Sample]:
            task = cell.step.task.obj
            return [sample_of_answer(task, tokenizer, *answered) for answered in model.answers(cell, some)]

        kept = kept_answers(samples, questions, tokenizer)
        answered = [sample for sample in kept if sample.failed is None]
        where = f"{cell.method} {cell.task} at {cell.length}"
        if len(kept) < len(samples):
            odd = count_with_noun(len(samples) - len(kept), "sample")
            log.warning("%s: %s of an earlier run asked something else: asked again", where, odd)
        if cell.weights_known or not answered or is_same_model(answered, questions, ask):
            return kept
        log.warning("%s: the server does not answer as in an earlier run: all is asked again", where)
        return []

    def _adopt_samples(
        self, cell: OpenCell, questions: Sequence[AnyQuestion], model: Answerer, tokenizer: Tokenizer
    ) -> None:
        """Begin a cell with the samples of a finished one that asked fewer of its questions, and with their costs.

        Of the cells that differ in the number of questions alone, the greatest tells, or one that stopped beyond it;
        failed samples are asked again.
        """
        if not self.job.reuse or cell.identity["attention"] is None:
            return
        smaller = self._smaller_cell(cell)
        if smaller is None or smaller.refused is not None:
            return
        answered = [sample for sample in smaller.samples if sample.failed is None]
        trusted = self._trusted_samples(cell, answered, questions, model, tokenizer)
        # With the scores that a version which gave fewer did not store.
        told = {sample.index: sample for sample in rescore_cell(smaller).samples}
        adopted = [each if told[each.index] is each else with_checksum(told[each.index]) for each in trusted]
        cost = self._costs.get(smaller.cell.id)
        known = cost.samples() if cost else self.store.sample_costs(smaller.cell)
        for sample in adopted:
            self.store.append(cell, sample, known.get(sample.index))
        # A row of an earlier version does not tell whose its timings are.
        if cost and not known and len(adopted) == len(smaller.samples):
            self._keep_cost(cell, cost)

    def _smaller_cell(self, cell: OpenCell) -> FinishedCell | None:
        """The greatest finished cell with fewer of a cell's questions, or a stopped one that holds more of them."""
        fewer = list(cells_with_fewer_questions(self.store.folder, cell))
        greatest = next((each for each in fewer if self.store.is_finished(each)), None)
        found = self.store.load({greatest.id}) if greatest else []
        known = {name for each in read_stopped(self.store.folder) for name in (each.cell, each.baseline)}
        stopped = [FinishedCell(each, self.store.unfinished_samples(each)) for each in fewer if each.id in known]
        return max([*found, *stopped], key=lambda each: len(each.samples), default=None)

    def record_cost(self, cell: OpenCell, clock: CellClock, peak: MemoryPeak) -> None:
        """Keep what measuring a cell has taken, in all its parts."""
        cost = Cost.of_samples(clock.costs, clock.seconds, peak.bytes, peak.own)
        with self._lock:
            self._keep_cost(cell, cost)
            before = self._costs.get(cell.id)  # of an interrupted run of an earlier version
            self._costs[cell.id] = cost if before is None else costs.add_costs(before, cost)

    def end_cell(self, cell: OpenCell, seconds: float | None = None) -> None:
        """A cell needs no more work; `seconds` where it was measured without a break."""
        with self._lock:
            if self.store.is_finished(cell):  # a deferred one has nothing to tell
                self._learn(cell)
        self.progress.end_cell(cell, seconds)

    def _learn(self, cell: OpenCell) -> None:
        """Note what a finished cell tells of later ones: samples that a twin may adopt, a collapse of its method."""
        if self._collapses is not None and (found := self.store.load({cell.id})):
            self._collapses.learn(found[0])
        if self.job.reuse:
            _twins.learn(self.store.folder, cell)

    def _keep_cost(self, cell: OpenCell, cost: Cost) -> None:
        self.store.cost(cell, cost.seconds, cost.tokens, cost.peak_bytes, cost.own_peak, cost.timings, cost.indices)
