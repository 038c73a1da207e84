"""Intervals and tests. Examples of one document or haystack are not independent: clusters are drawn, never examples."""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

CONFIDENCE = 0.95
LEVEL = 0.05
"""Chance of one false finding or more in a family of tests."""
RESAMPLES = 2000
FLIPS = 19_999
EXACT = 14
"""Clusters up to which all sign flips are tried."""
BLOCK = 1 << 22
"""Numbers drawn at once."""
FEW = 128
"""Clusters up to which draws are kept: some megabytes each."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A 95 % confidence interval."""

    low: float
    high: float
    kind: str
    """Kind: wilson, newcombe, cluster_bootstrap or welch; mover where it is recovered from those of parts
    (combine); `cluster_bootstrap+newcombe` where those of two are added (tuning)."""


def wilson(successes: float, n: int) -> Interval:
    """Score interval of a proportion (Wilson 1927), not degenerate at 0 and 1.

    Ends, with p = successes / n and z = 1.96: (p + z^2 / 2n -+ z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)
    """
    assert 0 <= successes <= n and n > 0, f"{successes} successes of {n}"
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    share = successes / n
    middle = share + z**2 / (2 * n)
    spread = z * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    low, high = ((middle + sign * spread) / (1 + z**2 / n) for sign in (-1, 1))
    return Interval(low if successes > 0 else 0.0, high if successes < n else 1.0, "wilson")


def cluster_bootstrap(numerators: ArrayLike, denominators: ArrayLike, clusters: Sequence[str]) -> Interval | None:
    """Percentile interval of sum(numerators) / sum(denominators) over resampled clusters.

    All three are [samples]. A mean has denominators of 1, a token-weighted mean has tokens. 2000 resamples with the
    same seed everywhere, so that cells over the same clusters are resampled alike. None for fewer than 2 clusters, and
    where a resample has no denominator. Below about 20 clusters a percentile interval is somewhat too narrow.
    """
    sums = cluster_sums(numerators, denominators, clusters)
    if len(sums) < 2:
        return None
    totals = resampled(sums)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = totals[:, 0] / totals[:, 1]
    if not np.isfinite(ratios).all():
        return None
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(ratios, [tail, 1 - tail])
    return Interval(float(low), float(high), "cluster_bootstrap")


def mean_interval(values: Sequence[float], clusters: Sequence[str]) -> Interval | None:
    """Interval of the mean of scores in [0, 1].

    Wilson for zeros and ones in clusters of one; else the cluster bootstrap, which has no width where all scores are
    equal, at 0 and at 1 above all: there Wilson counts clusters.
    """
    independent = len(set(clusters)) == len(clusters)
    total = math.fsum(values)
    if independent and all(value in (0.0, 1.0) for value in values):
        return wilson(total, len(values))
    if len(set(values)) == 1 and 0 <= values[0] <= 1:
        groups = len(set(clusters))
        return wilson(values[0] * groups, groups)
    return cluster_bootstrap(values, np.ones(len(values)), clusters)


def difference_interval(differences: ArrayLike, clusters: Sequence[str]) -> Interval | None:
    """Interval of the mean of paired differences of scores in [0, 1]: the cluster bootstrap.

    It has no width where all differences are 1, or all -1: there the far end is that of Newcombe (1998, Statistics in
    Medicine 17:2635, method 10) for two proportions of 1 and 0, with clusters as pairs and l = wilson(n, n)'s low end:
    1 - sqrt(2) (1 - l).
    """
    values = np.asarray(differences, np.float64)
    groups = len(set(clusters))
    if groups and abs(values.sum()) == len(values):
        far = 1 - math.sqrt(2) * (1 - wilson(groups, groups).low)
        return Interval(far, 1.0, "newcombe") if values[0] > 0 else Interval(-1.0, -far, "newcombe")
    return cluster_bootstrap(values, np.ones(len(values)), clusters)


def sign_flip_p(sums: ArrayLike) -> float:
    """Two-sided p-value of Fisher's randomisation test: no cluster's sum of differences knows which method is which.

    p = share of the signs s in {-1, 1}^clusters with |sum s_c d_c| >= |sum d_c|, of sums d [clusters]. All signs are
    tried up to 14 clusters whose sum is not 0 (the others change nothing); beyond, 19999 draws with the same seed
    everywhere, and p = (hits + 1) / 20000 (Phipson and Smyth 2010, doi:10.2202/1544-6115.1585). No p is below
    2^(1 - clusters): 5 clusters never reach 0.05.
    """
    values = np.asarray(sums, np.float64)
    values = values[values != 0]
    least = abs(values.sum()) - 1e-9 * np.abs(values).sum()  # rounding makes no tie a miss
    if len(values) <= EXACT:
        flips = np.arange(1 << len(values))[:, None] >> np.arange(len(values)) & 1
        return float(np.mean(np.abs((1 - 2 * flips) @ values) >= least))
    hits = sum(int(np.sum(np.abs((1.0 - 2.0 * flips) @ values) >= least)) for flips in _kept(_flips, len(values)))
    return (hits + 1) / (FLIPS + 1)


def least_p(clusters: int) -> float:
    """The smallest p that `sign_flip_p` can give."""
    return 2.0 ** (1 - clusters) if clusters <= EXACT else 1 / (FLIPS + 1)


def _flips(clusters: int) -> Iterator[NDArray[np.int8]]:
    """Blocks of [flips, clusters]: 1 where a cluster's sign is turned."""
    rng = np.random.default_rng(0)
    rows = max(1, BLOCK // clusters)
    for start in range(0, FLIPS, rows):
        yield rng.integers(2, size=(min(rows, FLIPS - start), clusters), dtype=np.int8)


def _kept(draw: Callable[[int], Iterator[Any]], clusters: int) -> Iterable[Any]:
    """The blocks drawn for so many clusters; where these are few, drawn once and kept."""
    return _drawn(draw, clusters) if clusters <= FEW else draw(clusters)


@functools.lru_cache(maxsize=32)
def _drawn(draw: Callable[[int], Iterator[Any]], clusters: int) -> tuple[Any, ...]:
    return tuple(draw(clusters))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values (Holm 1979): reject those up to 0.05, and no true hypothesis falls in 95 % of families.

    With p sorted upwards, the i-th of m is max over j <= i of min(1, (m - j + 1) p_j), j from 1.
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def cluster_sums(numerators: ArrayLike, denominators: ArrayLike, clusters: Sequence[str]) -> Floats:
    """[clusters, 2] sums of each cluster, clusters in the order of their first sample."""
    order = {name: place for place, name in enumerate(dict.fromkeys(clusters))}
    sums = np.zeros((len(order), 2))
    values = np.stack([np.asarray(numerators, np.float64), np.asarray(denominators, np.float64)], axis=1)
    np.add.at(sums, [order[name] for name in clusters], values)
    return sums


def resampled(sums: ArrayLike) -> Floats:
    """[resamples, columns] totals of sums [clusters, columns]: clusters drawn 2000 times, the same way everywhere."""
    values = np.asarray(sums, np.float64)
    return np.concatenate([counts @ values for counts in _kept(_draws, len(values))])


def _draws(clusters: int) -> Iterator[Floats]:
    """Blocks of [resamples, clusters]: how often each cluster is drawn, in `clusters` draws with replacement."""
    rng = np.random.default_rng(0)
    rows = max(1, BLOCK // clusters)
    for start in range(0, RESAMPLES, rows):
        count = min(rows, RESAMPLES - start)
        drawn = rng.integers(clusters, size=(count, clusters)) + clusters * np.arange(count)[:, None]
        yield np.bincount(drawn.ravel(), minlength=count * clusters).reshape(count, clusters).astype(np.float64)


def unpaired_interval(left: ArrayLike, right: ArrayLike) -> Interval | None:
    """Interval of the right ratio minus the left one, of two sets of clusters that share no question.

    Both are [clusters, 2] sums of amounts and units (`cluster_sums`), R = sum a / sum u. Welch's (1947) interval of
    the clusters' linearised values: se^2 = k / (k - 1) sum (a_c - R u_c)^2 / (sum u)^2 on each side of k clusters,
    degrees of freedom by Satterthwaite. None for fewer than 2 clusters of a side, and where nothing varies.
    """
    from scipy.special import stdtrit

    found = _welch(left, right)
    if found is None:
        return None
    difference, error, freedom = found
    reach = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * error
    return Interval(difference - reach, difference + reach, "welch")


def unpaired_p(left: ArrayLike, right: ArrayLike, margin: float) -> float | None:
    """One-sided p-value of Welch's test that the right ratio is above the left one by no more than the margin.

    Ratios, errors and None as in `unpaired_interval`.
    """
    from scipy.special import stdtr

    found = _welch(left, right)
    if found is None:
        return None
    difference, error, freedom = found
    return float(stdtr(freedom, -(difference - margin) / error))


def _welch(left: ArrayLike, right: ArrayLike) -> tuple[float, float, float] | None:
    """Difference of the ratios, its standard error, degrees of freedom."""
    sides = [np.asarray(side, np.float64) for side in (left, right)]
    if min(len(side) for side in sides) < 2:
        return None
    ratios = [side[:, 0].sum() / side[:, 1].sum() for side in sides]
    residuals = [side[:, 0] - ratio * side[:, 1] for side, ratio in zip(sides, ratios, strict=True)]
    counts = [len(side) for side in sides]
    variances = [
        count / (count - 1) * float(residual @ residual) / side[:, 1].sum() ** 2
        for side, residual, count in zip(sides, residuals, counts, strict=True)
    ]
    if not sum(variances) > 0:
        return None
    freedom = sum(variances) ** 2 / sum(each**2 / (count - 1) for each, count in zip(variances, counts, strict=True))
    return float(ratios[1] - ratios[0]), math.sqrt(sum(variances)), float(freedom)
