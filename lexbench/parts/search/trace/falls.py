"""Falls of a length over the checkpoints of a training, and lengths at which more text hurts.

A fall at a length is a checkpoint that is worse there than an earlier one, while the newest is, too: a dip that heals
is none. So every checkpoint is tested against the newest at every length of every task, with Holm's correction over
all of these; where one is better than the newest, the checkpoints between them are tested, too, which tell where the
fall is first seen. It is named from the best earlier checkpoint to the first that is worse; where another length has
gained meanwhile, of any task, it is a cliff. Its size, up to the newest checkpoint, is measured on fresh questions,
which have not chosen it.

More text hurts where the same targets are less likely behind a longer text than behind a shorter one.
"""

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lexbench.parts.search.trace.measure import CheckpointRow, Column
from lexbench.stats.cell_outcomes import limit_of_pair
from lexbench.stats.intervals import (
    SIGNIFICANCE_LEVEL,
    cluster_sums,
    difference_p,
    is_balanced,
    ratio_with_influences,
)
from lexbench.stats.metrics import better_direction, is_token_loss
from lexbench.stats.pairs import Outcome, PairedDifference, correct_by_holm, paired_difference, question_gaps
from lexbench.stats.reach import smallest_found_difference

Pair = tuple[int, int]
"""Places of an earlier and a later checkpoint."""


@dataclass(frozen=True)
class Change:
    """The change from an earlier checkpoint to a later one, in the direction of better."""

    gain: float
    """Amounts per unit, a target or a question; below 0: worse."""
    p: float
    """Two-sided, adjusted for all pairs that were tested with it, lengths and tasks."""
    smallest: float | None = None
    """The smallest change that is found (`reach.smallest_found_difference`); None: none of any size."""
    limited: bool = False
    """Whether both are at a limit, so that nothing is told."""

    @property
    def fell(self) -> bool:
        """Whether the later one is worse."""
        return self.gain < 0 and self.p <= SIGNIFICANCE_LEVEL

    @property
    def gained(self) -> bool:
        """Whether the later one is better."""
        return self.gain > 0 and self.p <= SIGNIFICANCE_LEVEL


@dataclass(frozen=True, kw_only=True)
class Fall:
    """A fall at one length."""

    column: Column
    metric: str
    before: int
    """Place of the best earlier checkpoint that `after` is worse than."""
    after: int
    """Place of the first checkpoint that is worse than an earlier one."""
    gaining: Sequence[Column]
    """Other lengths, of any task, that gain from `before` to `after` or to the newest; empty: it is no cliff."""
    fresh: PairedDifference | None = None
    """The newest checkpoint minus `before` on fresh questions; None: not measured yet."""

    @property
    def confirmed(self) -> bool:
        """Whether the fall is significant on the fresh questions, too."""
        found = self.fresh
        return bool(found and found.significant and better_direction(self.metric) * (found.difference or 0.0) < 0)


def changes(
    rows: Sequence[CheckpointRow], columns: Mapping[Column, str], pairs: Collection[Pair]
) -> dict[tuple[Column, Pair], Change]:
    """The change of every column between the checkpoints of each pair."""
    found: dict[tuple[Column, Pair], PairedDifference] = {}
    for column, metric in columns.items():
        for pair in pairs:
            one, other = (rows[place].kept[column] for place in pair)
            each = _test_gap(one.outcomes[metric], other.outcomes[metric])
            found[column, pair] = replace(each, limit=limit_of_pair(one, other, metric))
    return {
        key: _change(each, columns[key[0]])
        for key, each in correct_by_holm({key: replace(each, p=_p(each)) for key, each in found.items()}).items()
    }


def _p(found: PairedDifference) -> float:
    return 1.0 if found.limit or found.p is None else found.p


def _change(found: PairedDifference, metric: str) -> Change:
    gain, size = better_direction(metric) * (found.difference or 0.0), smallest_found_difference(found, metric)
    return Change(gain, 1.0 if found.p_holm is None else found.p_holm, size, found.limit is not None)


def _test_gap(before: Sequence[Outcome], after: Sequence[Outcome]) -> PairedDifference:
    """Mean gap, its error and p-value as of `pairs.paired_difference`, without its interval, which takes most of its
    time."""
    rest = question_gaps(before, after)
    amounts, units = [each.amount or 0.0 for each in rest], [each.units for each in rest]
    if not amounts:
        return PairedDifference()
    sums = cluster_sums(amounts, units, [each.cluster for each in rest])
    count, p = len(sums), difference_p(sums[:, 0], sums[:, 1])
    influences = ratio_with_influences(sums)[1]
    return PairedDifference(
        difference=sum(amounts) / sum(units),
        p=p,
        p_flips=p,
        error=math.sqrt(count / (count - 1) * float(np.square(influences).sum())) if count > 1 else 0.0,
        balanced=is_balanced(sums[:, 0], sums[:, 1]),
        pairs=len(amounts),
        clusters=count,
    )


def falls(rows: Sequence[CheckpointRow], columns: Mapping[Column, str]) -> list[Fall]:
    """The first fall of each column, in their order."""
    last = len(rows) - 1
    known = changes(rows, columns, [(place, last) for place in range(last)])
    fallen = {column: [place for place in range(last) if known[column, (place, last)].fell] for column in columns}
    between = {(place, later) for places in fallen.values() for place in places for later in range(place + 1, last)}
    known |= changes(rows, columns, sorted(between))
    found = []
    for column, metric in columns.items():
        lasting = [
            (before, after)
            for before in fallen[column]
            for after in range(before + 1, last + 1)
            if known[column, (before, after)].fell
        ]
        if not lasting:
            continue
        after = min(later for _, later in lasting)
        before = min((pair for pair in lasting if pair[1] == after), key=lambda pair: known[column, pair].gain)[0]
        gaining = [
            each
            for each in columns
            if each.length != column.length and any(known[each, (before, later)].gained for later in {after, last})
        ]
        found.append(Fall(column=column, metric=metric, before=before, after=after, gaining=gaining))
    return found


def smallest_found_falls(rows: Sequence[CheckpointRow], columns: Mapping[Column, str]) -> dict[str, float | None]:
    """By metric, the smallest fall to the newest checkpoint that is found at each length; None: none of any size.

    Lengths at which both checkpoints are at a limit are left out.
    """
    last = len(rows) - 1
    sizes = dict[str, list[float | None]]()
    for (column, _), change in changes(rows, columns, [(place, last) for place in range(last)]).items():
        if not change.limited:
            sizes.setdefault(columns[column], []).append(change.smallest)
    return {metric: None if None in found else max(filter(None, found)) for metric, found in sizes.items()}


@dataclass(frozen=True, kw_only=True)
class Harm:
    """NLL of targets behind a longer text, minus NLL of the same targets behind a shorter one, at one checkpoint."""

    task: str
    place: int
    """Step of the checkpoint."""
    shorter: int
    longer: int
    found: PairedDifference

    @property
    def hurts(self) -> bool:
        """Whether the longer text makes the targets less likely, by a significant difference."""
        return bool(self.found.significant and (self.found.difference or 0.0) > 0)


def harms(rows: Sequence[CheckpointRow], columns: Mapping[Column, str]) -> list[Harm]:
    """Effect of more text between neighbouring lengths, of likelihoods whose targets are the same at both.

    Holm's correction over all of them.
    """
    found = {}
    for task in dict.fromkeys(column.task for column, metric in columns.items() if is_token_loss(metric)):
        lengths = sorted(column.length for column in columns if column.task == task)
        for shorter, longer in itertools.pairwise(lengths):
            for place, row in enumerate(rows):
                left, right = (row.kept[Column(task, length)].outcomes["nll"] for length in (shorter, longer))
                if _same_targets(left, right):
                    found[task, place, shorter, longer] = paired_difference(left, right, "nll")
    return [
        Harm(task=task, place=place, shorter=shorter, longer=longer, found=each)
        for (task, place, shorter, longer), each in correct_by_holm(found).items()
    ]


def _same_targets(left: Sequence[Outcome], right: Sequence[Outcome]) -> bool:
    """Whether two cells of one checkpoint have targets of the same document, bytes and words."""

    def targets(side: Sequence[Outcome]) -> list[tuple[object, ...]]:
        return [(each.index, each.cluster, each.targets, each.bytes, each.words) for each in side]

    return targets(left) == targets(right)
