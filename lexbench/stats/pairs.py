"""Paired differences: outcomes of two sides on the same questions, with intervals and tests."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from lexbench.core.groups import group_by_key
from lexbench.core.record import Sample
from lexbench.stats.intervals import (
    SIGNIFICANCE_LEVEL,
    Floats,
    Interval,
    adjust_by_holm,
    cluster_bootstrap,
    cluster_sums,
    difference_interval,
    guard_against_skew,
    is_balanced,
    min_differing_clusters,
    min_sign_flip_p,
    ratio_with_influences,
    sign_flip_p,
    smallest_significant_difference,
    unpaired_error,
    unpaired_interval,
    unpaired_p,
)
from lexbench.stats.metrics import better_direction, failed_value, is_score, is_token_loss
from lexbench.stats.notes import Note

Key = TypeVar("Key", bound=Hashable)
Found = TypeVar("Found", bound="PairedDifference")

KERNEL_ROUNDING_SHARE = 1e-6
"""Relative difference between two kernels of one precision; smaller gaps count as 0."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One question's contribution to a metric: the value of a cell is sum of amounts / sum of units.

    Plain data, so a baseline file holds it without the samples.
    """

    index: int
    cluster: str
    amount: float | None
    """Nats over all targets, or the score or measure; None: failed, no value."""
    targets: int | None = None
    """Number of targets of a likelihood, where known."""
    failed: bool = False
    """A failed score counts as 0; other metrics leave it out. A likelihood that is not finite counts as failed."""
    truncated: bool = False
    depth: float | None = None
    """Cluster, targets, depth, bytes and words identify a question; None: not known."""
    bytes: int | None = None
    words: int | None = None

    @property
    def units(self) -> float:
        """Targets of a likelihood; 1 for other metrics."""
        return 1.0 if self.targets is None else float(self.targets)


@dataclass(frozen=True, kw_only=True)
class PairedDifference:
    """The other side minus the baseline over shared questions, in the metric's own unit."""

    baseline_value: float | None = None
    """The baseline's value over the pairs, None where no pair has both; `value` is the other side's."""
    value: float | None = None
    difference: float | None = None
    interval: Interval | None = None
    """95 % interval of the difference; None for a single cluster."""
    p: float | None = None
    """p value of this comparison alone: two-sided; with a tolerance one-sided, of a loss beyond it, and 1 within it."""
    p_holm: float | None = None
    """p-value adjusted for all comparisons of the family."""
    level: float = SIGNIFICANCE_LEVEL
    """Level of this comparison as the first of its family in Holm's correction."""
    p_flips: float | None = None
    """p-value if the clusters' differences are symmetric under the null hypothesis; `correct_by_holm` adjusts it."""
    p_gain: float = 1.0
    """p-value of a gain beyond the tolerance, where there is one; `correct_by_holm` adjusts it."""
    min_p: float = 1.0
    """The smallest p that so many clusters allow."""
    error: float = 0.0
    """Standard error of the difference over clusters."""
    balanced: bool = False
    """Whether all clusters that differ do so as a whole, as right and wrong answers, one a cluster."""
    pairs: int = 0
    """Pairs behind the difference."""
    n_changed: int = 0
    """Pairs whose sides differ."""
    clusters: int = 0
    failed: int = 0
    """Pairs with a failed side."""
    truncated: int = 0
    """Pairs with a truncated side."""
    unpaired: int = 0
    """Questions on one side only."""
    limit: Note | None = None
    """Why nothing can be told: both sides at their floor, or at the ceiling (`stats.floors`)."""
    first_mismatch: int | None = None
    """Index of the first question that differs between the sides; then nothing is compared."""

    @property
    def significant(self) -> bool | None:
        """Whether the difference is told; None: not tested.

        Its adjusted p is at most 0.05, its interval excludes 0, and the sides are not both at a limit.
        """
        if self.p_holm is None:
            return None
        told = self.p_holm <= SIGNIFICANCE_LEVEL and self.interval is not None and self.limit is None
        return told and not (self.low or 0.0) <= 0 <= (self.high or 0.0)

    @property
    def low(self) -> float | None:
        """Lower end of the interval."""
        return self.interval.low if self.interval else None

    @property
    def high(self) -> float | None:
        """Upper end of the interval."""
        return self.interval.high if self.interval else None

    def numbers(self, scale: float = 1.0) -> dict[str, float | None]:
        """Values, difference and ends of the interval, times `scale`."""
        found = {name: getattr(self, name) for name in ("baseline_value", "value", "difference", "low", "high")}
        return {name: None if number is None else scale * number for name, number in found.items()}

    def tests(self) -> dict[str, float | bool | None]:
        """The p-values and what they say."""
        return {"p": self.p, "p_holm": self.p_holm, "significant": self.significant}

    def counts(self) -> dict[str, int]:
        """Pairs behind the difference, and what they lack."""
        return {name: getattr(self, name) for name in ("pairs", "clusters", "failed", "truncated", "unpaired")}

    def in_unit(self, scale: float) -> "PairedDifference":
        """Copy with value, difference, interval and error in another unit: multiplied by `scale`."""
        found, at = self.numbers(scale), self.interval
        return replace(
            self,
            baseline_value=found["baseline_value"],
            value=found["value"],
            difference=found["difference"],
            interval=at and Interval(scale * at.low, scale * at.high, at.kind),
            error=scale * self.error,
        )


def outcomes_of_samples(samples: Sequence[Sample], metric: str) -> list[Outcome]:
    """Outcome of each sample for `nll`, a score or a measure, by index; other likelihoods follow from `nll`."""
    return [_outcome(sample, metric) for sample in sorted(samples, key=lambda sample: sample.index)]


def _outcome(sample: Sample, metric: str) -> Outcome:
    failed = sample.failed is not None
    amount: float | None
    if is_token_loss(metric):
        nats = math.nan if failed or sample.nll is None else float(sample.nll.astype(np.float64).sum())
        failed = not math.isfinite(nats)
        amount = None if failed else nats
    elif failed:
        amount = failed_value(metric)
    else:  # a cell of a table may have other scores than its neighbours
        score = sample.scores.get(metric)
        amount = None if score is None else float(score)
    return Outcome(
        index=sample.index,
        cluster=sample.cluster,
        amount=amount,
        targets=len(sample.nll) if is_token_loss(metric) and sample.nll is not None else None,
        failed=failed,
        truncated=sample.truncated,
        depth=sample.depth,
        bytes=sample.bytes,
        words=sample.words,
    )


def paired_difference(
    baseline: Sequence[Outcome], other: Sequence[Outcome], metric: str, tolerance: float | None = None
) -> PairedDifference:
    """The difference over pairs, sum (other - baseline) / sum units, with its interval and p-value.

    With a tolerance, in the metric's own unit, the p-values are those of a loss and of a gain larger than it: it is
    subtracted from the difference of every question before the test. The one-sided p of random sign flips is half of
    the two-sided one, as flips are symmetric; for skewed differences, whose error has one side, p stays two-sided.

    A pair is two outcomes of one index. Where one index is not one question (another document, depth or number of
    targets), nothing is paired.
    """
    left, right = ({each.index: each for each in side} for side in (baseline, other))
    pairs = [(left[index], right[index]) for index in sorted(left.keys() & right.keys())]
    unlike = next((one.index for one, two in pairs if not _tied_labels(one, two)), None)
    if unlike is not None:
        return PairedDifference(first_mismatch=unlike)
    counts: dict[str, Any] = {
        "failed": sum([one.failed or two.failed for one, two in pairs]),
        "truncated": sum([one.truncated or two.truncated for one, two in pairs]),
        "unpaired": len(left.keys() ^ right.keys()),
    }
    used = [(one, one.amount, two.amount) for one, two in pairs if one.amount is not None and two.amount is not None]
    units = [one.units for one, _, _ in used]
    if not sum(units) > 0:
        return PairedDifference(**counts)
    differences = [_rounded_gap(before, after) for _, before, after in used]
    clusters = [one.cluster for one, _, _ in used]
    total = math.fsum(units)
    sums = cluster_sums(differences, units, clusters)
    count = len(sums)
    flips = sign_flip_p(sums[:, 0])
    found = PairedDifference(
        **counts,
        baseline_value=math.fsum([before for _, before, _ in used]) / total,
        value=math.fsum([after for _, _, after in used]) / total,
        difference=math.fsum(differences) / total,
        interval=difference_interval(differences, clusters)
        if is_score(metric)
        else cluster_bootstrap(differences, units, clusters),
        p=guard_against_skew(flips, sums[:, 0], sums[:, 1]),
        p_flips=flips,
        # Of a ratio, linearised: C / (C - 1) sum l_c^2 over the influences of C clusters.
        error=math.sqrt(count / (count - 1) * float(np.square(ratio_with_influences(sums)[1]).sum()))
        if count > 1
        else 0.0,
        balanced=is_balanced(sums[:, 0], sums[:, 1]),
        pairs=len(used),
        n_changed=sum(map(bool, differences)),
        clusters=count,
        min_p=min_sign_flip_p(count),
    )
    if tolerance is None:
        return found
    (flips, loss), (_, gain) = (beyond_margin_p(found, baseline, other, metric, side * tolerance) for side in (1, -1))
    return replace(found, p=loss, p_flips=flips, p_gain=gain, min_p=found.min_p / 2)


def detectable_difference(found: PairedDifference, metric: str, level: float) -> float:
    """A difference that may be missed at this two-sided level, in the metric's own unit.

    The largest of: what is significant by Student's test with this error; half the width of the interval; and of right
    and wrong answers the share of clusters that must differ, all to one side, before sign flips reach the level. The
    last is the largest where hardly any answer differs: then the error says little.
    """
    sure = smallest_significant_difference(found.error, found.clusters, level, found.balanced) if found.error else 0.0
    half = (found.interval.high - found.interval.low) / 2 if found.interval else 0.0
    flips = is_score(metric) and found.balanced
    return max(sure, half, min(1.0, min_differing_clusters(level) / max(1, found.clusters)) if flips else 0.0)


def beyond_margin_p(
    found: PairedDifference, baseline: Sequence[Outcome], other: Sequence[Outcome], metric: str, margin: float
) -> tuple[float, float]:
    """One-sided p_flips and p of a loss of more than the margin; of a gain where the margin is negative."""
    loss = -better_direction(metric) * (found.difference or 0.0)
    if math.copysign(1.0, margin) * loss <= abs(margin):
        return 1.0, 1.0
    margin_credit = better_direction(metric) * margin
    shifted = [
        each if each.amount is None else replace(each, amount=each.amount + margin_credit * each.units)
        for each in other
    ]
    rest = question_gaps(baseline, shifted)
    units, clusters = [each.units for each in rest], [each.cluster for each in rest]
    sums = cluster_sums([each.amount or 0.0 for each in rest], units, clusters)[:, 0]
    flips = sign_flip_p(sums) / 2
    # Shifting by the margin changes the sizes, so right and wrong answers are told by unshifted differences.
    return flips, flips if found.balanced else guard_against_skew(flips, sums)


def unpaired_difference(
    baseline: Sequence[Outcome], other: Sequence[Outcome], metric: str, tolerance: float
) -> PairedDifference | None:
    """Difference of two sides with different questions, by Welch's test; None where a side has no value.

    Of scores each side gets a cluster of 1 and one of 0 (Agresti and Caffo 2000, The American Statistician 54:280), so
    that all right has a width.
    """
    sides = [_sums(side) for side in (baseline, other)]
    if not all(side[:, 1].sum() > 0 for side in sides):
        return None
    old, new = (float(side[:, 0].sum() / side[:, 1].sum()) for side in sides)
    clusters = min(len(side) for side in sides)
    if is_score(metric):
        sides = [np.concatenate([side, side[:, 1].mean() * np.array([[1.0, 1.0], [0.0, 1.0]])]) for side in sides]
    loss = -better_direction(metric) * (new - old)
    worse = [side * np.array([-better_direction(metric), 1.0]) for side in sides]  # the larger, the worse
    interval = unpaired_interval(*sides)
    if interval is not None and is_score(metric):  # no score changes by more than 1
        interval = replace(interval, low=max(-1.0, interval.low), high=min(1.0, interval.high))
    p, p_gain = unpaired_p(worse[0], worse[1], tolerance), unpaired_p(worse[1], worse[0], tolerance)
    return PairedDifference(
        baseline_value=old,
        value=new,
        difference=new - old,
        interval=interval,
        error=unpaired_error(*sides),
        clusters=clusters,
        failed=sum(each.failed for each in (*baseline, *other)),
        truncated=sum(each.truncated for each in (*baseline, *other)),
        p=p if p is not None and loss > tolerance else 1.0,
        p_flips=p if p is not None and loss > tolerance else 1.0,
        p_gain=p_gain if p_gain is not None and -loss > tolerance else 1.0,
        min_p=1.0 if p is None else 0.0,
    )


def _sums(outcomes: Sequence[Outcome]) -> Floats:
    used = [(each.amount, each.units, each.cluster) for each in outcomes if each.amount is not None]
    amounts, units, clusters = ([each[column] for each in used] for column in range(3))
    return cluster_sums(amounts, units, [str(cluster) for cluster in clusters])


def correct_by_holm(family: Mapping[Key, Found], functions: Mapping[Key, Hashable] | None = None) -> dict[Key, Found]:
    """Holm's correction over all comparisons of a family that have a p-value.

    Comparisons of one function (`stats.same_attention`) with the same other side are one hypothesis, and count once,
    by the largest of their p-values: `functions` names that of a comparison; one without a name has its own.
    """
    tested = [key for key, found in family.items() if found.p is not None]
    known = functions or {}
    once = list(group_by_key(tested, lambda key: ("one", known[key]) if key in known else ("own", key)).values())
    losses, flips, gains = (
        adjust_by_holm([max(getattr(family[key], name) for key in keys) for keys in once])
        for name in ("p", "p_flips", "p_gain")
    )
    adjusted = zip(once, losses, flips, gains, strict=True)
    return {
        **family,
        **{
            key: replace(family[key], p_holm=p, p_flips=flip, p_gain=gain, level=SIGNIFICANCE_LEVEL / len(once))
            for keys, p, flip, gain in adjusted
            for key in keys
        },
    }


def question_gaps(baseline: Sequence[Outcome], other: Sequence[Outcome]) -> list[Outcome]:
    """Other minus baseline for each question with both amounts, by index; `paired_difference` checks that the questions
    agree.

    A gap of the size of rounding counts as 0.
    """
    before = {each.index: each.amount for each in baseline}
    found = []
    for each in sorted(other, key=lambda each: each.index):
        base = before.get(each.index)
        if base is not None and each.amount is not None:
            found.append(replace(each, amount=_rounded_gap(base, each.amount)))
    return found


def _rounded_gap(before: float, after: float) -> float:
    gap = after - before
    return 0.0 if abs(gap) <= KERNEL_ROUNDING_SHARE * abs(before) else gap


def _tied_labels(one: Outcome, other: Outcome) -> bool:
    """Whether two outcomes belong to one question, by the facts known of both."""
    return one.cluster == other.cluster and not (
        _facts_differ(one.targets, other.targets)
        or _facts_differ(one.depth, other.depth)
        or _facts_differ(one.bytes, other.bytes)
        or _facts_differ(one.words, other.words)
    )


def _facts_differ(one: float | None, other: float | None) -> bool:
    return one != other and one is not None and other is not None
