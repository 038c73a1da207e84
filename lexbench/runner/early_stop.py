"""Methods that have failed at a length need no longer one: where a user says so, these are skipped, and marked."""

import math
from collections.abc import Sequence

import numpy as np

from lexbench.core.record import Cell, Record, Sample
from lexbench.stats.metrics import HEADLINES, is_score
from lexbench.stats.records import records_of
from lexbench.store.format import Finished

FACTOR = 10.0
"""Times the perplexity within the trained length, or the share of the score above chance there, that is a collapse."""


class Collapses:
    """Length at which each method, task and seed has collapsed; cells must be learned in ascending order of length.

    Collapsed beyond the trained length: the perplexity is ten times that at the longest length within it, or the score
    stands above chance by a tenth of what it did there. Without a length within it, nothing is known.
    """

    def __init__(self) -> None:
        self._within: dict[tuple[str, str, int], float] = {}
        self._at: dict[tuple[str, str, int], str] = {}

    def learn(self, cell: Cell, samples: Sequence[Sample]) -> None:
        """Take in the samples of a finished cell."""
        key = (cell.method, cell.task, cell.seed)
        shown = _headline(records_of(Finished(cell, list(samples))))
        if shown is None or shown.value is None:
            return
        chances = [sample.chance for sample in samples if sample.chance is not None]
        value = shown.value - (float(np.mean(chances)) if chances and is_score(shown.metric) else 0.0)
        if cell.length <= cell.trained_length:
            self._within[key] = value
        elif key in self._within and key not in self._at and _collapsed(shown.metric, value, self._within[key]):
            self._at[key] = f"collapsed at {cell.length} ({shown.metric} {shown.value:.3g})"

    def reason(self, cell: Cell) -> str | None:
        """Why a longer cell is skipped; None: it is measured."""
        said = self._at.get((cell.method, cell.task, cell.seed))
        return said and f"{said}, and stop_after_collapse is set: run again without it"


def _headline(records: Sequence[Record]) -> Record | None:
    """The metric that says whether there is a collapse: NLL, else accuracy, else the first score."""
    whole = {record.metric: record for record in records if record.part is None and record.metric}
    # In the order of the headlines: a likelihood before a score.
    first = [name for name in HEADLINES if name in whole]
    return whole[first[0]] if first else next((each for name, each in whole.items() if is_score(name)), None)


def _collapsed(metric: str | None, value: float, within: float) -> bool:
    # Perplexity is e^nll: ten times of it is ln 10 nats more.
    if metric == "nll":
        return value - within >= math.log(FACTOR)
    return is_score(metric) and within > 0 and value <= within / FACTOR
