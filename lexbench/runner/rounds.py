"""A run that stops as soon as its comparisons are decided: questions in rounds of 8, 12, 16, 24, ... (`n=auto`).

    baseline and methods of a task, length and seed -> a round of each -> a verdict on each method -> the next round

A method leaves once it is decided, the baseline with the last of them. The cells stay unfinished, and stopped.jsonl
names them: how many questions they hold was decided by the answers.
"""

import logging
import math
from collections.abc import Mapping, Sequence

from lexbench.core.groups import group_by_key
from lexbench.core.method_key import BASELINE_METHOD
from lexbench.core.record import Sample
from lexbench.core.task import Tokenizer
from lexbench.runner.answers import Answerer
from lexbench.runner.cells import OpenCell
from lexbench.runner.loop import measure_cell
from lexbench.runner.run import RunState
from lexbench.stats.cell_outcomes import headline_metric, metrics_of
from lexbench.stats.intervals import SIGNIFICANCE_LEVEL
from lexbench.stats.metrics import is_score, is_token_loss
from lexbench.stats.pairs import outcomes_of_samples
from lexbench.stats.same_attention import attention_forms
from lexbench.stats.stopping import Decision, StoppingVerdict, decide, round_ends
from lexbench.store.stopped import StoppedComparison, add_stopped, read_stopped

log = logging.getLogger(__name__)


def measure_in_rounds(run: RunState, model: Answerer, tokenizer: Tokenizer) -> None:
    """Ask the cells of a run until each comparison with the baseline is decided, or has had all of its questions.

    The comparisons that the plan names share the level, before the first question is asked.
    """
    groups = group_by_key(run.cells, lambda cell: (cell.task, cell.length, cell.seed))
    forms = attention_forms(run.cells)
    pairs = [_cells_to_compare(cells, forms) for cells in groups.values()]
    family = sum(len(others) for _, others in pairs)
    for base, others in pairs:
        if base is not None and others:
            _Group(run, model, tokenizer, base, others, family).decide()
            run.end_cell(base)


def _cells_to_compare(cells: Sequence[OpenCell], forms: Mapping[str, str]) -> tuple[OpenCell | None, list[OpenCell]]:
    """The baseline's cell, and those that the plan does not refuse, but for the baseline's own function."""
    able = [cell for cell in cells if cell.step.refusal_reason is None or cell.step.is_foreseen]
    base = next((cell for cell in able if cell.method == BASELINE_METHOD), None)
    if base is None:
        return None, []
    own = forms.get(base.id)
    return base, [cell for cell in able if cell is not base and (own is None or forms.get(cell.id) != own)]


class _Group:
    """The methods of one task, length and seed against the baseline."""

    def __init__(
        self,
        run: RunState,
        model: Answerer,
        tokenizer: Tokenizer,
        base: OpenCell,
        others: Sequence[OpenCell],
        family: int,
    ) -> None:
        self._run, self._model, self._tokenizer = run, model, tokenizer
        self._base, self._open, self._family = base, list(others), family

    def decide(self) -> None:
        """Ask rounds until no method is open."""
        for end in round_ends(self._run.job.n):
            before = self._ask(self._base, end)
            if before is None:  # refused or deferred: the tables say why
                return
            for cell in list(self._open):
                after = self._ask(cell, end)
                if after is None:
                    self._open.remove(cell)
                elif not self._judge(cell, before, after, end):
                    return
            if not self._open:
                return

    def _ask(self, cell: OpenCell, end: int) -> list[Sample] | None:
        """Samples of a cell's questions below an index, asked now where they are missing; None: it is not measured."""
        held = self._kept_samples(cell, end)
        if len(held) == end:
            return held
        with self._run.store.claim(cell, wait=True):
            if self._run.settle_cell(cell):
                return self._kept_samples(cell, end) or None
            asked = measure_cell(self._run, self._model, self._tokenizer, cell, until=end)
        return None if asked is None else self._kept_samples(cell, end)

    def _kept_samples(self, cell: OpenCell, end: int) -> list[Sample]:
        """Samples of a cell's questions below an index, finished or not; the later of two answers counts."""
        store = self._run.store
        found = store.load({cell.id}) if store.is_finished(cell) else []
        samples = found[0].samples if found else store.unfinished_samples(cell)
        return [sample for index, sample in sorted({each.index: each for each in samples}.items()) if index < end]

    def _judge(self, cell: OpenCell, before: Sequence[Sample], after: Sequence[Sample], end: int) -> bool:
        """Keep the comparison where it is decided or has had all questions; whether its metric can be judged at all."""
        metric = headline_metric(metrics_of([*before, *after]))
        if metric is None or not (is_token_loss(metric) or is_score(metric)):
            log.warning(
                "%s at %d: n=auto decides by likelihoods and scores, its metric is %s: give n",
                *(cell.task, cell.length, metric),
            )
            return False
        assert self._run.job.stopping is not None
        margin, level = self._run.job.stopping.margin(metric, cell.length), SIGNIFICANCE_LEVEL / self._family
        found = decide(outcomes_of_samples(before, metric), outcomes_of_samples(after, metric), metric, margin, level)
        asked = min(len(before), len(after))
        if found.verdict is not StoppingVerdict.OPEN or asked < end or end == self._run.job.n:
            self._open.remove(cell)
            self._run.end_cell(cell)
            stopped = self._result_row(cell, metric, margin, level, asked, found)
            if stopped not in read_stopped(self._run.store.folder):  # a repeated run finds what it has written
                add_stopped(self._run.store.folder, stopped)
        return True

    def _result_row(
        self, cell: OpenCell, metric: str, margin: float, level: float, asked: int, found: Decision
    ) -> StoppedComparison:
        return StoppedComparison(
            cell=cell.id,
            baseline=self._base.id,
            method=str(cell.method),
            task=cell.task,
            length=cell.length,
            seed=cell.seed,
            metric=metric,
            margin=margin,
            level=level,
            family=self._family,
            questions=asked,
            budget=cell.n,
            clusters=found.clusters,
            clipped=found.clipped,
            verdict=found.verdict.value,
            gain=found.gain,
            low=found.low if math.isfinite(found.low) else None,
            high=found.high if math.isfinite(found.high) else None,
        )
