"""Falls of a length over the checkpoints of a training, and lengths at which more text hurts.

A fall at a length is a checkpoint that is worse there than an earlier one, while the newest is, too: a dip that heals
is none. All pairs of checkpoints are tested at every length of every task, with Holm's correction over all of them, so
that no pair is chosen before it is tested. A fall is named from the best earlier checkpoint to the first that is worse;
where another length has gained meanwhile, of any task, it is a cliff. Its size, up to the newest checkpoint, is
measured on fresh questions, which have not chosen it.

More text hurts where the same targets are less likely behind a longer text than behind a shorter one.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lexbench.parts.search.trace.measure import CheckpointRow, Column
from lexbench.stats.cell_outcomes import limit_of_pair
from lexbench.stats.intervals import SIGNIFICANCE_LEVEL, adjust_by_holm, cluster_sums, difference_p
from lexbench.stats.metrics import better_direction
from lexbench.stats.pairs import Outcome, PairedDifference, correct_by_holm, paired_difference, question_gaps

Pair = tuple[int, int]
"""Places of an earlier and a later checkpoint."""


@dataclass(frozen=True)
class Change:
    """The change from an earlier checkpoint to a later one, in the direction of better."""

    gain: float
    """Amounts per question; below 0: worse."""
    p: float
    """Two-sided, adjusted for all pairs, lengths and tasks."""

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


def changes(rows: Sequence[CheckpointRow], columns: Mapping[Column, str]) -> dict[tuple[Column, Pair], Change]:
    """The change of every column between every two checkpoints."""
    found: dict[tuple[Column, Pair], tuple[float, float]] = {}
    for column, metric in columns.items():
        for pair in itertools.combinations(range(len(rows)), 2):
            one, other = (rows[place].kept[column] for place in pair)
            gain, p = _test_gap(one.outcomes[metric], other.outcomes[metric])
            told = p <= SIGNIFICANCE_LEVEL and limit_of_pair(one, other, metric) is None
            found[column, pair] = better_direction(metric) * gain, p if told else 1.0
    adjusted = adjust_by_holm([p for _, p in found.values()])
    return {key: Change(gain, p) for (key, (gain, _)), p in zip(found.items(), adjusted, strict=True)}


def _test_gap(before: Sequence[Outcome], after: Sequence[Outcome]) -> tuple[float, float]:
    """Mean gap, and the p-value of `pairs.paired` without its interval, which takes most of its time."""
    rest = question_gaps(before, after)
    amounts, units = [each.amount or 0.0 for each in rest], [each.units for each in rest]
    if not amounts:
        return 0.0, 1.0
    sums = cluster_sums(amounts, units, [each.cluster for each in rest])
    return sum(amounts) / len(amounts), difference_p(sums[:, 0], sums[:, 1])


def falls(rows: Sequence[CheckpointRow], columns: Mapping[Column, str]) -> list[Fall]:
    """The first fall of each column, in their order."""
    known, found = changes(rows, columns), []
    last = len(rows) - 1
    for column, metric in columns.items():
        lasting = {
            (before, after)
            for before, after in itertools.combinations(range(len(rows)), 2)
            if known[column, (before, after)].fell and known[column, (before, last)].fell
        }
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
    for task in dict.fromkeys(column.task for column, metric in columns.items() if metric == "nll"):
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
