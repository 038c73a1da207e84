"""Divergence from another method by length: its level, and its slope for each doubling of the length.

Samples are those of task=divergence: the same targets at every length, so that of each place the divergence at several
lengths is a curve of its own.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from lexbench.core.record import Sample
from lexbench.stats.certificates import STAKE_FRACTIONS, WEALTH_SHARE_OF_STAKE, max_counted_loss, prove_losses
from lexbench.stats.intervals import SIGNIFICANCE_LEVEL, Floats, cluster_bootstrap, mean_interval
from lexbench.stats.metrics import is_score

DIVERGENCE_METRIC = "kld"


@dataclass(frozen=True)
class DivergenceLevel:
    """A mean with its 95 % interval over clusters."""

    value: float
    low: float | None
    """Lower end of the interval, nats or a share; None for one cluster."""
    high: float | None
    n: int


def level(samples: Sequence[Sample], metric: str = DIVERGENCE_METRIC) -> DivergenceLevel | None:
    """Mean of a metric over all samples that did not fail; None where all did."""
    used = [sample for sample in samples if sample.failed is None and metric in sample.scores]
    values, clusters = [float(each.scores[metric]) for each in used], [each.cluster for each in used]
    if metric == DIVERGENCE_METRIC and (found := _mean(values, clusters)) and found.low is not None:
        return replace(found, low=max(0.0, found.low))  # no divergence is below 0
    return _mean(values, clusters, is_score(metric))


def slope(by_length: Mapping[int, Sequence[Sample]], metric: str = DIVERGENCE_METRIC) -> DivergenceLevel | None:
    """Rise of a metric for each doubling of the length, nats; None where no place has two lengths.

    Of each place the least-squares slope over log2 of its lengths; then the mean over places.
    """
    curves: dict[int, list[tuple[int, Sample]]] = {}
    for length, samples in by_length.items():
        for sample in samples:
            if sample.failed is None and metric in sample.scores:
                curves.setdefault(sample.index, []).append((length, sample))
    most = max((len(each) for each in curves.values()), default=0)
    whole = [each for each in curves.values() if len(each) == most]
    if most < 2:
        return None
    slopes = [_slope([length for length, _ in each], [float(s.scores[metric]) for _, s in each]) for each in whole]
    return _mean(slopes, [each[0][1].cluster for each in whole])


def _slope(lengths: Sequence[int], values: Sequence[float]) -> float:
    doublings = np.log2(lengths) - np.log2(lengths).mean()
    return float(doublings @ np.asarray(values) / (doublings @ doublings))


def _mean(values: Sequence[float], clusters: Sequence[str], shares: bool = False) -> DivergenceLevel | None:
    if not values:
        return None
    found = mean_interval(values, clusters) if shares else cluster_bootstrap(values, [1] * len(values), clusters)
    low, high = (None, None) if found is None else (found.low, found.high)
    return DivergenceLevel(float(np.mean(values)), low, high, len(values))


def losses_of(samples: Sequence[Sample], metric: str = DIVERGENCE_METRIC) -> Floats:
    """[clusters] mean of a metric for each, in the order of their first question.

    Questions of a cluster behind one of another cluster do not count: they would change a stake that is placed.
    """
    kept: dict[str, list[float]] = {}
    last = None
    for sample in sorted(samples, key=lambda sample: sample.index):
        if sample.failed is None and metric in sample.scores and (sample.cluster == last or sample.cluster not in kept):
            kept.setdefault(sample.cluster, []).append(float(sample.scores[metric]))
            last = sample.cluster
    return np.array([np.mean(each) for each in kept.values()])


@dataclass(frozen=True)
class Judgement:
    """A mean loss that is at least 0, as a divergence is, beside a margin."""

    kind: Literal["below", "above", "undecided"]
    at: int | None
    """Clusters after which it was proven; None: it is not."""
    more: int | None
    """Clusters still needed if the next ones lose as these did; None: proven, or no number is foreseen."""


def judge_losses(losses: Floats, metric: str, margin: float) -> Judgement:
    """Whether losses [clusters] of at least 0 are proven to have a mean below a margin, or above it, at 5 % each.

    Below: `prove_losses`. Above: against a mean of at most m a bettor stakes on the clusters that lose more,

        wealth_n = sum_k w_k prod_{c <= n} (1 + l_k (min(x_c, cap) - m)),    0 <= l_k < 1 / m

    No factor is below 0, as no loss is, and to count losses up to the cap only lowers them.
    """
    assert len(losses) and (losses >= 0).all(), "losses of at least 0"
    below = prove_losses(losses, metric, margin)
    if below.at is not None:
        return Judgement("below", below.at, None)
    counted = np.minimum(losses, max_counted_loss(metric, margin)) - margin
    stakes = STAKE_FRACTIONS / margin
    logs = np.log1p(stakes[:, None] * counted)
    wealth = np.logaddexp.reduce(np.log(WEALTH_SHARE_OF_STAKE)[:, None] + np.cumsum(logs, axis=1), axis=0)
    reached = np.flatnonzero(wealth >= math.log(1 / SIGNIFICANCE_LEVEL))
    if len(reached):
        return Judgement("above", int(reached[0]) + 1, None)
    grown = logs.sum(axis=1)
    ways = (
        (math.log(1 / SIGNIFICANCE_LEVEL) - np.log(WEALTH_SHARE_OF_STAKE) - grown)[grown > 0]
        / grown[grown > 0]
        * len(losses)
    )
    found = [
        *([] if below.more is None else [below.more]),
        *([max(1, math.ceil(float(ways.min())))] if len(ways) else []),
    ]
    return Judgement("undecided", None, min(found, default=None))


def judge_divergence(samples: Sequence[Sample], margin: float) -> Judgement | None:
    """Whether the mean divergence is proven to be below or above a margin in nats; None without samples."""
    losses = losses_of(samples)
    return judge_losses(losses, DIVERGENCE_METRIC, margin) if len(losses) else None
