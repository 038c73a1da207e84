"""Choice of a checkpoint: by the first task's mean over all lengths, then again on fresh questions.

The best of many looks better than it is on the questions that chose it. So only the order of the finalists comes from
those; values, intervals and the choice among them come from fresh questions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lexbench.parts.search.trace.measure import CheckpointRow, Column
from lexbench.stats.metrics import better_direction
from lexbench.stats.pairs import Outcome, PairedDifference, correct_by_holm, paired_difference

N_FINALISTS = 3
"""Checkpoints that are measured again."""


@dataclass(frozen=True, kw_only=True)
class TracedFinalist:
    """A finalist on the fresh questions; differences are its value minus that of the other."""

    place: int
    to_first: PairedDifference
    """Difference to the first checkpoint; for the first checkpoint itself without one."""
    behind: PairedDifference
    """Difference to the best finalist, with `p_holm` for all finalists; for the best itself without one."""
    seemed: float | None
    """Difference to the first checkpoint on the questions that chose the finalists."""

    @property
    def tied(self) -> bool:
        """Whether it cannot be told from the best."""
        return self.behind.difference is not None and not self.behind.significant


def mean_over_lengths(row: CheckpointRow, columns: Mapping[Column, str]) -> list[Outcome]:
    """Outcomes of the first task at all its lengths: their value is the mean over lengths.

    A document that is asked about at several lengths stays one cluster.
    """
    task, metric = next((column.task, metric) for column, metric in columns.items())
    found = [
        outcome
        for column, name in columns.items()
        if column.task == task and name == metric
        for outcome in row.kept[column].outcomes[metric]
    ]
    return [replace(each, index=place) for place, each in enumerate(found)]


def difference(one: CheckpointRow, other: CheckpointRow, columns: Mapping[Column, str]) -> PairedDifference:
    """Other minus one over all lengths of the first task."""
    return paired_difference(
        mean_over_lengths(one, columns), mean_over_lengths(other, columns), next(iter(columns.values()))
    )


def order(rows: Sequence[CheckpointRow], columns: Mapping[Column, str]) -> list[int]:
    """Places of the checkpoints, the best first; of equals the earlier."""
    side = better_direction(next(iter(columns.values())))

    def value(place: int) -> float:
        used = [each for each in mean_over_lengths(rows[place], columns) if each.amount is not None]
        units = sum(each.units for each in used)
        return side * sum(each.amount or 0.0 for each in used) / units if units else float("-inf")

    return sorted(range(len(rows)), key=lambda place: (-value(place), place))


def rank_finalists(
    rows: Sequence[CheckpointRow],
    fresh: Mapping[int, CheckpointRow],
    finalists: Sequence[int],
    columns: Mapping[Column, str],
) -> list[TracedFinalist]:
    """The finalists by their fresh answers, the best first.

    Args:
        rows: all checkpoints, on the questions that chose the finalists.
        fresh: by place, those that were measured on fresh questions, the first checkpoint among them.
        finalists: their places.
        columns: lengths and tasks.
    """
    places = sorted(finalists)
    best = places[order([fresh[place] for place in places], columns)[0]]
    behind = correct_by_holm(
        {place: difference(fresh[best], fresh[place], columns) for place in places if place != best}
    )
    found = []
    for place in sorted(places, key=lambda place: (place != best, -_worth(behind.get(place), columns))):
        to_first = difference(fresh[0], fresh[place], columns) if place else PairedDifference()
        seemed = difference(rows[0], rows[place], columns).difference if place else None
        found.append(
            TracedFinalist(place=place, to_first=to_first, behind=behind.get(place, PairedDifference()), seemed=seemed)
        )
    return found


def _worth(found: PairedDifference | None, columns: Mapping[Column, str]) -> float:
    return better_direction(next(iter(columns.values()))) * (found.difference or 0.0) if found else 0.0
