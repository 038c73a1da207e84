"""Compute the smallest loss that a gate finds, and the smallest difference that a comparison finds: nine times of ten.

The loss is computed from the outcomes that a baseline holds.

Scores are lost question by question: m is the fewest right answers, spread evenly over the questions, whose loss is
significant by the check's own test. A loss that takes each of R right answers with probability q takes m of them in
nine runs of ten where P(Binomial(R, q) >= m) = 0.9; it costs q times the cell's value.

Likelihoods: a baseline does not tell how a loss will differ between texts, so all texts are taken to lose L on average
with a standard deviation of 0.8 L, but 0.25 nats at most, normally, beside the noise of the measured difference
(standard error e). 400 runs are drawn, and judged by Student's t and by the test for skewed differences. L is the
smallest loss that nine tenths show. (Planted faults differ by 0.6 to 1.25 of their mean, and of those of this size 58
of 60 were found; of a loss in one text of four about half: `results/benchmarks/planted.md`. Of methods on the committed
runs losses of 0.06 to 0.16 nats differ by 0.4 to 0.9 of their mean, one of 2.9 nats by 0.13.)
"""

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from lexbench.stats import metrics
from lexbench.stats.intervals import (
    cluster_sums,
    is_balanced,
    min_differing_clusters,
    min_sign_flip_p,
    skewed_p,
    smallest_significant_difference,
)
from lexbench.stats.pairs import Outcome, PairedDifference, beyond_margin_p

FOUND_SHARE = 0.9
"""Share of runs in which a loss of the stated size is found."""
LOSS_SPREAD, MAX_LOSS_SPREAD_NATS = 0.8, 0.25
"""Standard deviation of a loss of likelihood between texts, in mean losses; and at most, in nats per token."""
ADDED_SPREAD = 0.5
"""The same of a difference that is added to one whose own spread was measured."""
QUANTILE_OF_FOUND_SHARE = 1.2815515655446004
"""Quantile of the standard normal distribution at 0.9."""
N_DRAWN_RUNS = 400
MAX_PLANNED_CLUSTERS = 10_000
"""Clusters beyond which nothing is planned."""
MAX_LOSS_TOLERANCES = 2.0**12
"""Largest loss of a likelihood that is tried, in tolerances."""
AMBER_SCORE_POINTS, AMBER_NATS = 25.0, 0.06
"""Sizes of the smallest loss that a pass finds, in points and nats per token, above which it proves little."""


def smallest_found_loss(
    outcomes: Sequence[Outcome], metric: str, tolerance: float, level: float, error: float = 0.0
) -> float | None:
    """The smallest loss that is found in nine runs of ten, in the metric's own unit; None: not even the loss of all.

    Args:
        outcomes: of the baseline's cell.
        metric: nll, or a score.
        tolerance: loss that is allowed, in the metric's own unit.
        level: one-sided level of the comparison, that of the first in Holm's correction.
        error: standard error of the measured difference, of a likelihood.
    """
    used = [each for each in outcomes if each.amount is not None]
    if metrics.is_score(metric):
        return _smallest_lost_score(used, metric, tolerance, level)
    clusters = len({each.cluster for each in used})
    if clusters < 2 or min_sign_flip_p(clusters) / 2 > level:
        return None
    unit = tolerance or error or 1.0
    most = round(MAX_LOSS_SPREAD_NATS / unit, 3)
    found = _smallest_lost_likelihood(clusters, float(tolerance > 0), round(level, 9), round(error / unit, 3), most)
    return None if found is None else found * unit


def smallest_found_difference(found: PairedDifference, metric: str) -> float | None:
    """The smallest difference that a comparison like this one finds in nine runs of ten, in the metric's own unit.

    A difference L adds to the variance v between clusters that was measured: of a score L (1 - L) / k with k questions
    a cluster, as answers turn one by one; of a likelihood (L / 2)^2, with L / 2 as above at most. L is found where it
    is (t + z) standard errors, with Student's t at the level of `found` as the first of its family (`found.level`) and
    z = 1.28; of right and wrong answers, m clusters must turn, too, for sign flips to reach the level:
    P(Binomial(C, q) >= m) is 0.9 with q = 1 - (1 - L)^k. v is taken for exact, so of 16 to 64 texts 82 to 92 % are
    found in simulations. None: not even a difference of all is found.
    """
    clusters = found.clusters
    if clusters < 2 or min_sign_flip_p(clusters) > found.level:
        return None
    quantile = smallest_significant_difference(1.0, clusters, found.level, found.balanced) + QUANTILE_OF_FOUND_SHARE
    of_score, questions = metrics.is_score(metric), found.pairs / clusters
    variance = clusters * found.error**2

    def is_found(size: float) -> bool:
        added = min(ADDED_SPREAD * size, MAX_LOSS_SPREAD_NATS) ** 2 if metrics.is_token_loss(metric) else 0.0
        if of_score:
            added = size * (1 - size) / questions
        return bool(size >= quantile * math.sqrt((variance + added) / clusters))

    high = 1.0 if of_score else 2 * quantile * math.sqrt((variance + MAX_LOSS_SPREAD_NATS**2) / clusters)
    if not is_found(high):
        return None
    low = 0.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if is_found(middle) else (middle, high)
    return max(high, _turned_share(clusters, questions, found.level)) if of_score and found.balanced else high


def more_clusters_to_find(found: PairedDifference, metric: str) -> int | None:
    """Clusters more with which a difference like this one is found nine times of ten; in the metric's own unit.

    The least C with (t + z) sqrt(v / C) up to the difference, and of right and wrong answers with enough of them
    turned, as in `smallest_found_difference`; v holds what the difference adds already. Both are known from this
    sample alone, so it is a plan and no promise. None: no difference, or not within `MAX_PLANNED_CLUSTERS`.
    """
    size, clusters = abs(found.difference or 0.0), found.clusters
    if not size or clusters < 2:
        return None
    of_answers, questions = metrics.is_score(metric) and found.balanced, found.pairs / clusters

    def is_found(count: int) -> bool:
        if min_sign_flip_p(count) > found.level:
            return False
        quantile = smallest_significant_difference(1.0, count, found.level, found.balanced) + QUANTILE_OF_FOUND_SHARE
        told = size >= quantile * found.error * math.sqrt(clusters / count)
        return told and (not of_answers or size >= _turned_share(count, questions, found.level))

    low, high = clusters, MAX_PLANNED_CLUSTERS
    if not is_found(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_found(middle) else (middle, high)
    return high - clusters


def smallest_found_by_all(tested: Iterable[PairedDifference], metric: str) -> float | None:
    """The smallest difference that each of several comparisons finds; None where one of them finds none of any size."""
    sizes = [smallest_found_difference(each, metric) for each in tested]
    known = [size for size in sizes if size is not None]
    return max(known) if known and len(known) == len(sizes) else None


def _turned_share(clusters: int, questions: float, level: float) -> float:
    """The share of answers that must turn, all to one side, before sign flips reach a level in nine runs of ten."""
    from scipy.special import betaincinv

    least = min(min_differing_clusters(level), clusters)
    share = float(betaincinv(least, clusters - least + 1, FOUND_SHARE))
    return 1.0 - math.pow(1.0 - share, 1 / questions)


def _smallest_lost_score(used: Sequence[Outcome], metric: str, tolerance: float, level: float) -> float | None:
    """The loss of a score, in its own unit."""
    from scipy.special import betaincinv

    right = _spread([place for place, each in enumerate(used) if (each.amount or 0) > 0])

    def is_found(lost: int) -> bool:
        gone = set(right[:lost])
        after = [replace(each, amount=0.0) if place in gone else each for place, each in enumerate(used)]
        losses = [(each.amount or 0.0) - (old.amount or 0.0) for each, old in zip(after, used, strict=True)]
        sums = cluster_sums(losses, [each.units for each in used], [each.cluster for each in used])
        balanced = is_balanced(sums[:, 0], sums[:, 1])
        found = PairedDifference(difference=sum(losses) / len(used), balanced=balanced)
        return beyond_margin_p(found, used, after, metric, tolerance)[1] <= level

    if not right or not is_found(len(right)):
        return None
    low, high = 0, len(right)  # not found, found
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_found(middle) else (middle, high)
    share = float(betaincinv(high, len(right) - high + 1, FOUND_SHARE))
    return share * sum(each.amount or 0.0 for each in used) / len(used)


def _spread(places: Sequence[int]) -> list[int]:
    """The places in an order of which every beginning is spread evenly (van der Corput, base 2)."""
    bits = max(1, (len(places) - 1).bit_length())
    order = [int(f"{number:0{bits}b}"[::-1], 2) for number in range(1 << bits)]
    return [places[number] for number in order if number < len(places)]


@functools.lru_cache(maxsize=256)
def _smallest_lost_likelihood(clusters: int, tolerance: float, level: float, error: float, most: float) -> float | None:
    """The loss of a likelihood in units of which the tolerance is 1 (or 0), by bisection to 1 %; `most`: its spread."""
    rng = np.random.default_rng([17, clusters])
    shapes = rng.standard_normal((2, N_DRAWN_RUNS, clusters))
    noise = error * math.sqrt(clusters) * shapes[1]

    def is_found(loss: float) -> bool:
        drawn = loss + min(LOSS_SPREAD * loss, most) * shapes[0] + noise - tolerance
        return float(np.mean([_loss_p(each) <= level for each in drawn])) >= FOUND_SHARE

    if not is_found(MAX_LOSS_TOLERANCES):
        return None
    low, high = tolerance, MAX_LOSS_TOLERANCES
    while high > 1.01 * max(low, 1e-3):
        middle = math.sqrt(max(low, 1e-3) * high)
        low, high = (low, middle) if is_found(middle) else (middle, high)
    return high


def _loss_p(losses: np.ndarray) -> float:
    """One-sided p of a mean loss above 0, about as `pairs` computes it: Student's t stands for sign flips."""
    from scipy.special import stdtr

    mean, count = float(losses.mean()), len(losses)
    if mean <= 0:
        return 1.0
    error = float(losses.std(ddof=1)) / math.sqrt(count)
    flips = float(stdtr(count - 1, -mean / error)) if error else 0.0
    return max(flips, min_sign_flip_p(count) / 2, skewed_p(losses))
