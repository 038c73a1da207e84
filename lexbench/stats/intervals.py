"""Intervals and tests. Examples of one document or haystack are not independent: clusters are drawn, never examples."""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

CONFIDENCE_LEVEL = 0.95
SIGNIFICANCE_LEVEL = 0.05
"""Chance of one false finding or more in a family of tests."""
N_RESAMPLES = 2000
N_SIGN_FLIPS = 19_999
MAX_EXACT_FLIP_CLUSTERS = 32
"""Clusters up to which all sign flips are counted."""
MAX_CALIBRATED_CLUSTERS = 32
"""Clusters up to which a bootstrap of 97.5 % stands for 95 %: of 95 % it covers 0.89 to 0.925 with lognormal noise."""
MAX_STUDENT_MULTIPLE = 3.0
"""Ends are at most so many times as far away as Student's."""
LOGNORMAL_FREEDOM_FACTOR = 0.75
"""Student's t of n lognormal values has at most the tails of a Student with 0.75 sqrt(n) degrees of freedom: at n from
8 to 64, and the level of 12 comparisons (tools/coverage.py)."""
SKEW_RAMP = 0.25
"""Skewness over which the guard against it ends."""
NUMBERS_PER_BLOCK = 1 << 22
"""Numbers drawn at once."""
MAX_CACHED_DRAW_CLUSTERS = 128
"""Clusters up to which draws are kept: some megabytes each."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A 95 % confidence interval."""

    low: float
    high: float
    kind: str
    """Kind: wilson, cluster_bootstrap or welch; mover where it is recovered from those of parts (`recover_interval`);
    `cluster_bootstrap+mover` where those of two are added (tuning)."""


@functools.lru_cache(maxsize=1 << 14)
def wilson_interval(successes: float, n: float) -> Interval:
    """Score interval of a proportion (Wilson 1927), not degenerate at 0 and 1.

    Ends, with p = successes / n and z = 1.96: (p + z^2 / 2n -+ z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)
    """
    assert 0 <= successes <= n and n > 0, f"{successes} successes of {n}"
    z = NormalDist().inv_cdf((1 + CONFIDENCE_LEVEL) / 2)
    share = successes / n
    middle = share + z**2 / (2 * n)
    spread = z * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    low, high = ((middle + sign * spread) / (1 + z**2 / n) for sign in (-1, 1))
    # Exactly 0 and 1 at the ends: rounding would leave 1e-17 there.
    return Interval(low if successes > 0 else 0.0, high if successes < n else 1.0, "wilson")


def cluster_bootstrap(numerators: ArrayLike, denominators: ArrayLike, clusters: Sequence[str]) -> Interval | None:
    """Studentised interval of sum(numerators) / sum(denominators) over resampled clusters (`interval_halfwidths`).

    All three are [samples]. A mean has denominators of 1, a token-weighted mean has tokens. None where fewer than 2
    clusters have a denominator, or a number is not finite.
    """
    sums = cluster_sums(numerators, denominators, clusters)
    if np.count_nonzero(sums[:, 1]) < 2 or not np.isfinite(sums).all():
        return None
    value, own = ratio_with_influences(sums)
    below, above = (float(each) for each in interval_halfwidths([own]))
    return Interval(value - below, value + above, "cluster_bootstrap")


def ratio_with_influences(sums: ArrayLike) -> tuple[float, Floats]:
    """Ratio R = sum a / sum u of sums [clusters, 2], and each cluster's influence on it, (a - R u) / sum u."""
    values = np.asarray(sums, np.float64)
    total = math.fsum(values[:, 1])
    value = math.fsum(values[:, 0]) / total
    return value, (values[:, 0] - value * values[:, 1]) / total


def interval_halfwidths(families: Sequence[Floats]) -> tuple[Floats, Floats]:
    """Distances from a value to the lower and to the upper end of its interval: the bootstrap-t (Efron 1981).

    A value that is sum_c w_c l_c above its own where cluster c is drawn w_c times has the error s, s^2 = C / (C - 1)
    sum l^2. Of 2000 resamples t* = sum w l / s*, s* the error in the resample; the interval reaches from value - t*_hi
    s to value - t*_lo s. So it is wider on the side to which the clusters are skewed. Its nominal level is 97.5 % up to
    32 clusters and sinks to 95 % with their number; ends are at most 3 times as far as Student's. Fewer than 4 clusters
    have Student's interval.

    Args:
        families: influences l, each [clusters] or [clusters, columns] of as many columns; families vary independently.

    Returns [columns] twice. The resamples have the same seed everywhere.
    """
    held = [np.asarray(each, np.float64) for each in families]
    return (
        _compute_halfwidths(held)
        if any(each.ndim > 1 for each in held)
        else _cached_halfwidths(*(each.tobytes() for each in held))
    )


@functools.lru_cache(maxsize=1 << 12)
def _cached_halfwidths(*families: bytes) -> tuple[Floats, Floats]:
    """Reaches of single columns; kept, because tables, summaries and headlines of one report need the same ones."""
    return _compute_halfwidths([np.frombuffer(each) for each in families])


def _compute_halfwidths(families: Sequence[Floats]) -> tuple[Floats, Floats]:
    from scipy.special import stdtrit

    few = min(len(each) for each in families)
    shift, spread, error = (np.zeros(np.shape(families[0])[1:]) for _ in range(3))
    usual = float(stdtrit(few - 1, (1 + CONFIDENCE_LEVEL) / 2))
    if few < 4:  # too few resamples have a spread
        error = sum((_squared_errors(each) for each in families), error)
        return usual * np.sqrt(error), usual * np.sqrt(error)
    for number, each in enumerate(families):
        own = each.reshape(len(each), -1)
        drawn = resample_totals(np.concatenate([own, own**2], axis=1))
        if number:  # the same draws in another order: apart from those of other families
            drawn = drawn[np.random.default_rng(number).permutation(len(drawn))]
        # With w_c the times that cluster c is drawn: sum w l, and sum w l^2 for the error of the resample itself.
        moved, squares = (part.reshape(len(drawn), *np.shape(each)[1:]) for part in np.split(drawn, 2, axis=1))
        shift = shift + moved
        spread = spread + len(own) / (len(own) - 1) * np.maximum(squares - moved**2 / len(own), 0.0)
        error = error + _squared_errors(each)
    level = np.sqrt(error)
    flat = spread <= 1e-12 * error  # all drawn clusters are alike
    with np.errstate(divide="ignore", invalid="ignore"):
        studentised = np.where(flat, np.copysign(np.inf, shift), shift / np.sqrt(spread))
    # A resample of nearly equal clusters has hardly any spread, and its t would be an end by itself: hence the clip.
    studentised = np.where(
        np.abs(shift) <= 1e-9 * level,
        0.0,
        np.clip(studentised, -MAX_STUDENT_MULTIPLE * usual, MAX_STUDENT_MULTIPLE * usual),
    )
    tail = float(_tail_share(few))
    low, high = np.quantile(studentised, [tail, 1 - tail], axis=0)
    # The upper quantile makes the lower end: resamples far above the value say that it may lie as far above the truth.
    return np.maximum(high, 0.0) * level, np.maximum(-low, 0.0) * level


def _tail_share(clusters: ArrayLike) -> Floats:
    """Share of resamples beyond each end of the bootstrap-t of so many clusters: 97.5 % up to 32, then down to 95 %."""
    return np.asarray(
        (1 - CONFIDENCE_LEVEL) / 2 * (1 - MAX_CALIBRATED_CLUSTERS / 2 / np.maximum(MAX_CALIBRATED_CLUSTERS, clusters))
    )


def student_halfwidth(clusters: NDArray[np.int64]) -> Floats:
    """Student's distance from a mean to its interval's end, divided by sqrt(sum (x - mean)^2 / clusters).

    At the nominal level of `interval_halfwidths`. One cluster, which has no interval, is taken for two.
    """
    from scipy.special import stdtrit

    free = np.maximum(clusters - 1, 1)
    return np.asarray(stdtrit(free, 1 - _tail_share(clusters)) / np.sqrt(free))


def _squared_errors(influences: Floats) -> Floats:
    """[columns] squared error of influences [clusters, columns]."""
    return np.asarray(len(influences) / (len(influences) - 1) * np.square(influences).sum(axis=0))


def mean_interval(values: Sequence[float], clusters: Sequence[str]) -> Interval | None:
    """Wilson's interval of the mean of scores in [0, 1]; None for one cluster of unlike scores.

    Of zeros and ones in clusters of one n is their number, and where all scores are equal that of the clusters. Else it
    is the effective number p (1 - p) / s^2 with the cluster error s, times (1.96 / Student's quantile)^2 (Korn and
    Graubard 1998, Survey Methodology 24:193); of zeros and ones at most their number.
    """
    groups, total = len(set(clusters)), math.fsum(values)
    whole = all(value in (0.0, 1.0) for value in values)
    if groups == len(clusters) and whole:  # independent Bernoulli trials
        return wilson_interval(total, len(values))
    if len(set(values)) == 1 and 0 <= values[0] <= 1:
        return wilson_interval(values[0] * groups, groups)
    if groups < 2 or not all(0 <= value <= 1 for value in values):
        return cluster_bootstrap(values, np.ones(len(values)), clusters)
    from scipy.special import stdtrit

    share, own = ratio_with_influences(cluster_sums(values, np.ones(len(values)), clusters))
    variance = float(_squared_errors(own))
    flat = variance <= 1e-12 * share * (1 - share)
    count = len(values) if flat else share * (1 - share) / variance
    count = min(count, len(values)) if whole else count
    tail = (1 + CONFIDENCE_LEVEL) / 2
    count *= (NormalDist().inv_cdf(tail) / float(stdtrit(groups - 1, tail))) ** 2
    return wilson_interval(share * count, count)


def difference_interval(differences: ArrayLike, clusters: Sequence[str]) -> Interval | None:
    """Interval of the mean of paired differences of scores in [0, 1], recovered from what was gained and lost.

    Difference = gained - lost, two means of scores in [0, 1] with intervals of their own (`mean_interval`), joined by
    `recover_interval`.
    Of right and wrong answers in clusters of one both are shares with Wilson's intervals. So it has a width where no
    pair differs, and where all do; there it is that of Newcombe (1998, Statistics in Medicine 17:2635, method 10). None
    for fewer than 2 clusters.
    """
    values = np.asarray(differences, np.float64)
    if len(set(clusters)) < 2:
        return None
    sides = [np.maximum(sign * values, 0.0) for sign in (1.0, -1.0)]
    known = [mean_interval(side.tolist(), clusters) for side in sides]
    if known[0] is None or known[1] is None:
        return None
    gained, lost = known[0], known[1]
    up, down = (float(side.mean()) for side in sides)
    own = [
        ratio_with_influences(cluster_sums(side, np.ones(len(values)), clusters))[1] for side in (sides[0], -sides[1])
    ]
    ends = [gained.low, -lost.high], [gained.high, -lost.low]
    low, high = recover_interval([up, -down], *ends, influence_correlations(np.stack(own, axis=1)))
    return Interval(max(-1.0, low), min(1.0, high), "mover")


def recover_interval(values: ArrayLike, lows: ArrayLike, highs: ArrayLike, alike: Floats) -> tuple[float, float]:
    """Ends of the interval of a sum of values, from their own intervals and correlations (MOVER).

    Sum -+ sqrt(sum_ij r_ij d_i d_j), d the distances to the ends on that side (Zou, Huang and Zhang 2009, Computational
    Statistics and Data Analysis 53:1080).
    """
    middle = np.asarray(values, np.float64)
    down, up = (
        math.sqrt(max(0.0, float(distance @ alike @ distance)))
        for distance in (middle - np.asarray(lows), np.asarray(highs) - middle)
    )
    total = math.fsum(middle)
    return total - down, total + up


def influence_correlations(influences: Floats) -> Floats:
    """[columns, columns] correlations of influences [clusters, columns]; 0 beside a column that never varies."""
    lengths = np.sqrt(np.square(influences).sum(axis=0))
    directions = influences / np.where(lengths > 0, lengths, 1.0)
    found = directions.T @ directions
    np.fill_diagonal(found, 1.0)
    return np.asarray(np.clip(found, -1.0, 1.0))


def difference_p(sums: ArrayLike, units: ArrayLike = 1.0) -> float:
    """Two-sided p-value of differences [clusters] with mean 0: `sign_flip_p`, raised by `guard_against_skew`."""
    return guard_against_skew(sign_flip_p(sums), sums, units)


def guard_against_skew(p: float, sums: ArrayLike, units: ArrayLike = 1.0) -> float:
    """A p-value of sign flips, raised towards `skewed_p` as far as the far tail may lie on the other side of 0.

    p^(1 - w) p_skewed^w where p_skewed is larger, with w of `skew_weight`: continuous in the differences.
    """
    skewed, weight = skewed_p(sums, units), skew_weight(sums)
    return p if p >= skewed else skewed**weight * p ** (1 - weight)


def skew_weight(sums: ArrayLike) -> float:
    """How much `skewed_p` counts for differences [clusters], from their skewness m3 / m2^1.5 towards their mean.

    1 up to 1 - 0.35 log2(n / 8), of n clusters: most samples of skewed noise whose far tail is on the other side lie
    there. It sinks to 0 as the skewness grows by another `SKEW_RAMP`.
    """
    values = np.asarray(sums, np.float64)
    if len(values) < 2:
        return 1.0
    rest = values - values.mean()
    variance = np.mean(rest**2)
    if variance <= 1e-18 * values.mean() ** 2:
        return 1.0
    towards = float(np.sign(values.mean()) * np.mean(rest**3) / variance**1.5)
    least = 1 - 0.35 * math.log2(len(values) / 8)
    return min(1.0, max(0.0, 1 - (towards - least) / SKEW_RAMP))


def sign_flip_p(sums: ArrayLike) -> float:
    """Two-sided p-value of Fisher's randomisation test: no cluster's sum of differences knows which method is which.

    p = share of the signs s in {-1, 1}^clusters with |sum s_c d_c| >= |sum d_c|, of sums d [clusters]. All signs are
    counted up to 32 clusters whose sum is not 0 (the others change nothing), the sums of either half in order and met
    in the middle (Horowitz and Sahni 1974); beyond, 19999 draws with the same seed everywhere, and p = (hits + 1) /
    20000 (Phipson and Smyth 2010, doi:10.2202/1544-6115.1585). No p is below 2^(1 - clusters): 5 clusters never reach
    0.05.
    """
    values = np.asarray(sums, np.float64)
    values = values[values != 0]
    least = abs(values.sum()) - 1e-9 * np.abs(values).sum()  # rounding makes no tie a miss
    if least <= 0:  # the sum is 0: every choice of signs reaches it
        return 1.0
    if len(values) <= MAX_EXACT_FLIP_CLUSTERS:
        return _exact_flip_p(values.tobytes(), float(least))
    hits = sum(
        int(np.sum(np.abs((1.0 - 2.0 * flips) @ values) >= least)) for flips in _cached_blocks(_draw_flips, len(values))
    )
    return (hits + 1) / (N_SIGN_FLIPS + 1)


@functools.lru_cache(maxsize=1 << 14)
def _exact_flip_p(differences: bytes, least: float) -> float:
    """The exact p-value of differences; kept, because tables, gains and prices of one report test the same ones."""
    values = np.frombuffer(differences)
    # Meet in the middle: for each of 2^16 sums of one half, count those of the other that lift it to the least.
    one, two = (_signed_sums(half) for half in (values[::2], values[1::2]))
    above = len(one) * len(two) - int(np.searchsorted(two, least - one[::-1]).sum())
    return 2 * above / (len(one) * len(two))  # turning all signs maps one tail onto the other


def _signed_sums(values: Floats) -> Floats:
    """[2^values] sums under all signs, ascending."""
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums - abs(value), sums + abs(value)])
    return np.sort(sums)


def skewed_p(sums: ArrayLike, units: ArrayLike = 1.0) -> float:
    """Two-sided p-value of Student's t of differences [clusters] under noise as skewed as a lognormal one.

    Sign flips are exact where differences are symmetric under the null hypothesis. Where most are small on one side and
    few are large on the other, a mean of 0 looks too often like a difference: most samples lack the few. t is therefore
    judged with 0.75 sqrt(n) degrees of freedom, n the clusters. 0 of `is_balanced` differences, where `units` are the
    questions of each cluster.
    """
    from scipy.special import stdtr

    values = np.asarray(sums, np.float64)
    if len(values) < 2 or is_balanced(values, units):
        return 0.0
    mean, variance = values.mean(), values.var()
    if variance <= 1e-18 * mean**2:
        return 0.0
    error = math.sqrt(variance / (len(values) - 1))
    return float(2 * stdtr(LOGNORMAL_FREEDOM_FACTOR * math.sqrt(len(values)), -abs(mean) / error))


def is_balanced(sums: ArrayLike, units: ArrayLike = 1.0) -> bool:
    """Whether all differences that are not 0 are as large as can be: right and wrong answers, one for each cluster.

    With a mean of 0 these are symmetric. A cluster of several answers that gains one may be followed by one that loses
    all: `units` [clusters] are its questions, each with a score in [0, 1].
    """
    sizes = np.abs(np.asarray(sums, np.float64))
    odd = (sizes > 0) & (np.abs(sizes - units) > 1e-9)
    return not bool(odd.any())


def smallest_significant_difference(error: float, clusters: int, level: float, symmetric: bool) -> float:
    """The smallest difference with this standard error that is significant at a level, two-sided.

    Args:
        error: standard error of the difference over clusters.
        clusters: number of clusters.
        level: the level of one comparison; of the first of m in Holm's correction 0.05 / m.
        symmetric: whether `skewed_p` is 0: right and wrong answers.
    """
    from scipy.special import stdtrit

    freedom = clusters - 1 if symmetric else LOGNORMAL_FREEDOM_FACTOR * math.sqrt(clusters)
    return error * float(stdtrit(freedom, 1 - level / 2))


def min_differing_clusters(level: float) -> int:
    """Clusters that must differ, all to one side, before `sign_flip_p` is at most a level: the least k of 2^(1 - k)."""
    return 1 + math.ceil(-math.log2(level) - 1e-9)  # rounding makes no k more


def min_sign_flip_p(clusters: int) -> float:
    """The smallest p that `sign_flip_p` can give."""
    return 2.0 ** (1 - clusters) if clusters <= MAX_EXACT_FLIP_CLUSTERS else 1 / (N_SIGN_FLIPS + 1)


def _draw_flips(clusters: int) -> Iterator[NDArray[np.int8]]:
    """Blocks of [flips, clusters]: 1 where a cluster's sign is turned."""
    rng = np.random.default_rng(0)  # one seed everywhere: a report made again has the same p-values
    rows = max(1, NUMBERS_PER_BLOCK // clusters)
    for start in range(0, N_SIGN_FLIPS, rows):
        yield rng.integers(2, size=(min(rows, N_SIGN_FLIPS - start), clusters), dtype=np.int8)


def _cached_blocks(draw: Callable[[int], Iterator[Any]], clusters: int) -> Iterable[Any]:
    """The blocks drawn for so many clusters; where these are few, drawn once and kept."""
    return _draw_once(draw, clusters) if clusters <= MAX_CACHED_DRAW_CLUSTERS else draw(clusters)


@functools.lru_cache(maxsize=32)
def _draw_once(draw: Callable[[int], Iterator[Any]], clusters: int) -> tuple[Any, ...]:
    return tuple(draw(clusters))


def adjust_by_holm(p_values: Sequence[float]) -> list[float]:
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


def resample_totals(sums: ArrayLike) -> Floats:
    """[resamples, columns] totals of sums [clusters, columns]: clusters drawn 2000 times, the same way everywhere."""
    values = np.asarray(sums, np.float64)
    return np.concatenate([counts @ values for counts in _cached_blocks(_draw_counts, len(values))])


def _draw_counts(clusters: int) -> Iterator[Floats]:
    """Blocks of [resamples, clusters]: how often each cluster is drawn, in `clusters` draws with replacement."""
    rng = np.random.default_rng(0)
    rows = max(1, NUMBERS_PER_BLOCK // clusters)
    for start in range(0, N_RESAMPLES, rows):
        count = min(rows, N_RESAMPLES - start)
        # Row r counts clusters from r * clusters on, so that one bincount serves all rows.
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
    reach = float(stdtrit(freedom, (1 + CONFIDENCE_LEVEL) / 2)) * error
    return Interval(difference - reach, difference + reach, "welch")


def unpaired_error(left: ArrayLike, right: ArrayLike) -> float:
    """Standard error of the difference of `unpaired_interval`; 0 where that has none."""
    found = _welch(left, right)
    return 0.0 if found is None else found[1]


def unpaired_p(left: ArrayLike, right: ArrayLike, margin: float) -> float | None:
    """One-sided p-value of Welch's test of the null hypothesis right ratio - left ratio <= margin; small: it is more.

    Ratios, errors and None as in `unpaired_interval`. Where one side has at least twice the clusters of the other,
    skewed noise no longer cancels: then the degrees of freedom are at most 0.75 sqrt(n) of the smaller one, as in
    `skewed_p`.
    """
    from scipy.special import stdtr

    found = _welch(left, right)
    if found is None:
        return None
    difference, error, freedom = found
    few, many = sorted((len(np.asarray(left)), len(np.asarray(right))))
    if many >= 2 * few:
        freedom = min(freedom, LOGNORMAL_FREEDOM_FACTOR * math.sqrt(few))
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
    # Welch-Satterthwaite: (v1 + v2)^2 / (v1^2 / (k1 - 1) + v2^2 / (k2 - 1))
    freedom = sum(variances) ** 2 / sum(each**2 / (count - 1) for each, count in zip(variances, counts, strict=True))
    return float(ratios[1] - ratios[0]), math.sqrt(sum(variances)), float(freedom)
