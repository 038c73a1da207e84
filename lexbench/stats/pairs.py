"""One question, asked twice: what two cells gave on the same questions, and whether their difference is real."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lexbench.core.record import Sample
from lexbench.stats.intervals import Interval, cluster_bootstrap, cluster_sums, difference_interval, sign_flip_p
from lexbench.stats.metrics import is_score

ROUNDING = 1e-6
"""Of the baseline's amount: what two kernels of one precision differ by, though nothing is changed."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one question gave of one metric: a cell's value is sum of amounts / sum of units.

    It is plain data, so that a baseline file can keep it without the samples.
    """

    index: int
    cluster: str
    amount: float | None
    """Nats over all targets, or the score or measure; None: it failed, and has no honest value."""
    targets: int | None = None
    """Of a likelihood, where it is known."""
    failed: bool = False
    """A failed score counts as 0; all else is left out. A likelihood that is not finite failed, too."""
    truncated: bool = False
    depth: float | None = None
    """Cluster, targets, depth, bytes and words tell questions apart; None: not known."""
    bytes: int | None = None
    words: int | None = None

    @property
    def units(self) -> float:
        """Targets of a likelihood; 1 of all else."""
        return 1.0 if self.targets is None else float(self.targets)


@dataclass(frozen=True, kw_only=True)
class Paired:
    """The other side minus the baseline over the questions that both were asked, in the metric's own unit."""

    baseline_value: float | None = None
    """Over the pairs, as is `value`, the other side's; None where no pair has both."""
    value: float | None = None
    difference: float | None = None
    interval: Interval | None = None
    """95 %; None where one cluster allows none."""
    p: float | None = None
    """Two-sided, of this comparison alone."""
    pairs: int = 0
    """Pairs behind the difference."""
    clusters: int = 0
    failed: int = 0
    """Pairs with a failed side."""
    truncated: int = 0
    """Pairs with a truncated side."""
    unpaired: int = 0
    """Questions that one side lacks."""
    unlike: int | None = None
    """Index of the first question that is not the same on both sides: then there is no difference."""

    def numbers(self, scale: float = 1.0) -> dict[str, float | None]:
        """Values, difference and ends of the interval, times `scale`."""
        low, high = (self.interval.low, self.interval.high) if self.interval else (None, None)
        found = {"baseline_value": self.baseline_value, "value": self.value, "difference": self.difference}
        return {name: None if it is None else scale * it for name, it in {**found, "low": low, "high": high}.items()}


def outcomes(samples: Sequence[Sample], metric: str) -> list[Outcome]:
    """What each sample gave of `nll` or of a score or measure, by index; other likelihoods follow from `nll`."""
    return [_outcome(sample, metric) for sample in sorted(samples, key=lambda sample: sample.index)]


def _outcome(sample: Sample, metric: str) -> Outcome:
    failed = sample.failed is not None
    amount: float | None
    if metric == "nll":
        nats = math.nan if failed or sample.nll is None else float(sample.nll.astype(np.float64).sum())
        failed = not math.isfinite(nats)
        amount = None if failed else nats
    elif failed:
        amount = 0.0 if is_score(metric) else None
    else:
        amount = float(sample.scores[metric])
    return Outcome(
        index=sample.index,
        cluster=sample.cluster,
        amount=amount,
        targets=len(sample.nll) if metric == "nll" and sample.nll is not None else None,
        failed=failed,
        truncated=sample.truncated,
        depth=sample.depth,
        bytes=sample.bytes,
        words=sample.words,
    )


def paired(baseline: Sequence[Outcome], other: Sequence[Outcome], metric: str) -> Paired:
    """The difference over pairs, sum (other - baseline) / sum units, with its interval and p-value.

    A pair is two outcomes of one index. Where one index is not one question (another document, depth or number of
    targets), nothing is paired.
    """
    left, right = ({each.index: each for each in side} for side in (baseline, other))
    pairs = [(left[index], right[index]) for index in sorted(left.keys() & right.keys())]
    unlike = next((one.index for one, two in pairs if not _alike(one, two)), None)
    if unlike is not None:
        return Paired(unlike=unlike)
    counted = Paired(
        failed=sum(one.failed or two.failed for one, two in pairs),
        truncated=sum(one.truncated or two.truncated for one, two in pairs),
        unpaired=len(left.keys() ^ right.keys()),
    )
    used = [(one, two) for one, two in pairs if one.amount is not None and two.amount is not None]
    base, value = (np.array([pair[side].amount for pair in used], np.float64) for side in (0, 1))
    units = np.array([one.units for one, _ in used], np.float64)
    if not units.sum() > 0:
        return counted
    differences = np.array([each.amount for each in gaps(baseline, other)], np.float64)
    clusters = [one.cluster for one, _ in used]
    scored = is_score(metric)
    base_value, other_value, difference = (math.fsum(sums) / math.fsum(units) for sums in (base, value, differences))
    return replace(
        counted,
        baseline_value=base_value,
        value=other_value,
        difference=difference,
        interval=difference_interval(differences, clusters)
        if scored
        else cluster_bootstrap(differences, units, clusters),
        p=sign_flip_p(cluster_sums(differences, units, clusters)[:, 0]),
        pairs=len(used),
        clusters=len(set(clusters)),
    )


def gaps(baseline: Sequence[Outcome], other: Sequence[Outcome]) -> list[Outcome]:
    """Other minus baseline for each question that has both amounts, by index; `paired` says whether they are alike.

    A gap of the size of rounding is none.
    """
    before = {each.index: each.amount for each in baseline}
    found = []
    for each in sorted(other, key=lambda each: each.index):
        base = before.get(each.index)
        if base is not None and each.amount is not None:
            gap = each.amount - base
            found.append(replace(each, amount=0.0 if abs(gap) <= ROUNDING * abs(base) else gap))
    return found


def _alike(one: Outcome, other: Outcome) -> bool:
    """Whether two outcomes are of one question, by what is known of both."""
    names = ("cluster", "targets", "depth", "bytes", "words")
    known = [(getattr(one, name), getattr(other, name)) for name in names]
    return all(left == right for left, right in known if left is not None and right is not None)
