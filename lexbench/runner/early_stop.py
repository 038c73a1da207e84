"""Methods that have failed at a length need no longer one: where a user says so, these are skipped, and marked."""

import math

from lexbench.core.method_key import MethodKey
from lexbench.core.record import Cell
from lexbench.stats.metrics import is_score, is_token_loss, metric_sort_key
from lexbench.stats.records import records_of
from lexbench.store.format import FinishedCell

COLLAPSE_FACTOR = 10.0
"""Times the perplexity within the trained length, or the share of the score above chance there, that is a collapse."""


class CollapseLengths:
    """Shortest length at which each method, task and seed has collapsed; learn those within the trained length first.

    Collapsed beyond the trained length: the perplexity is ten times that at the longest length within it, or the score
    stands above chance by a tenth of what it did there. Without a length within it, nothing is known.
    """

    def __init__(self) -> None:
        self._within: dict[tuple[MethodKey, str, int], tuple[int, float]] = {}
        """The longest length within the trained one that is known, and its value."""
        self._at: dict[tuple[MethodKey, str, int], tuple[int, str]] = {}
        """Length of a collapse in tokens, and the reason in words."""

    def learn(self, finished: FinishedCell) -> None:
        """Take in a finished cell: its NLL, or else its accuracy or first score, less chance."""
        cell = finished.cell
        key = (cell.method, cell.task, cell.seed)
        whole = [each for each in records_of(finished) if each.part is None]
        judged = [each for each in whole if is_token_loss(each.metric) or is_score(each.metric)]
        shown = min(judged, key=lambda each: metric_sort_key(each.metric), default=None)
        if shown is None or shown.value is None:
            return
        value = shown.value - (shown.chance or 0.0)
        if cell.length <= cell.trained_length:
            self._within[key] = max(self._within.get(key, (0, 0.0)), (cell.length, value))
        elif key in self._within and _has_collapsed(shown.metric, value, self._within[key][1]):
            found = cell.length, f"collapsed at {cell.length} ({shown.metric} {shown.value:.3g})"
            self._at[key] = min(found, self._at.get(key, found))

    def reason(self, cell: Cell) -> str | None:
        """Reason why a cell is skipped that is longer than a collapse; None: it is measured."""
        length, said = self._at.get((cell.method, cell.task, cell.seed), (cell.length, ""))
        return f"{said}, and stop_after_collapse is set: run again without it" if length < cell.length else None


def _has_collapsed(metric: str | None, value: float, within: float) -> bool:
    # Perplexity is e^nll: ten times of it is ln 10 nats more.
    if is_token_loss(metric):
        return value - within >= math.log(COLLAPSE_FACTOR)
    return is_score(metric) and within > 0 and value <= within / COLLAPSE_FACTOR
