"""Intervals hold what they promise."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom, binomtest, bootstrap, norm, permutation_test, skew, t, ttest_ind

from lexbench.stats import pairs
from lexbench.stats.intervals import (
    Interval,
    adjust_by_holm,
    cluster_bootstrap,
    cluster_sums,
    difference_interval,
    difference_p,
    mean_interval,
    resample_totals,
    sign_flip_p,
    skew_weight,
    skewed_p,
    smallest_significant_difference,
    unpaired_interval,
    unpaired_p,
    wilson_interval,
)
from tests.stats.bootstrap_t import bootstrap_t

Z = 1.959963984540054


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_gives_the_numbers_of_newcombe_1998(successes: int, n: int, low: float, high: float) -> None:
    interval = wilson_interval(successes, n)
    assert (round(interval.low, 4), round(interval.high, 4)) == (low, high)  # table I, method 3


def test_wilson_agrees_with_scipy() -> None:
    for n in (1, 2, 7, 32, 500):
        for successes in {0, 1, n // 3, n - 1, n}:
            theirs = binomtest(successes, n).proportion_ci(method="wilson")
            ours = wilson_interval(successes, n)
            assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


def test_wilson_has_a_width_at_none_and_all() -> None:
    # at p = 0 the formula is z^2 / (n + z^2)
    assert [wilson_interval(0, 10).low, wilson_interval(0, 10).high] == pytest.approx([0.0, Z**2 / (10 + Z**2)])
    assert [wilson_interval(10, 10).low, wilson_interval(10, 10).high] == pytest.approx([10 / (10 + Z**2), 1.0])


def test_wilson_covers_nominally() -> None:
    n = 40
    intervals = [wilson_interval(successes, n) for successes in range(n + 1)]
    shares = np.linspace(0.05, 0.95, 181)
    covered = [sum(binom.pmf(k, n, p) for k, i in enumerate(intervals) if i.low <= p <= i.high) for p in shares]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.01)


def test_few_clusters_have_students_interval() -> None:
    # sums (1, 1) and (9, 3): 10 / 4; residuals -1.5 and 1.5 over 4 units
    interval = cluster_bootstrap([0.5, 4.0, 0.5, 5.0], [0.5, 1.0, 0.5, 2.0], ["a", "b", "a", "b"])
    reach = t.ppf(0.975, 1) * math.sqrt(2 * 2 * (1.5 / 4) ** 2)
    assert interval and (interval.low, interval.high) == pytest.approx((2.5 - reach, 2.5 + reach))
    values = [1.0, 2.0, 4.5]
    interval = cluster_bootstrap(values, np.ones(3), list("abc"))
    assert interval and (interval.low, interval.high) == pytest.approx(
        t.interval(0.95, 2, 2.5, np.std(values, ddof=1) / 3**0.5)
    )


@pytest.mark.parametrize("count", [5, 12, 60])
def test_the_bootstrap_is_studentised_on_either_side(count: int) -> None:
    rng = np.random.default_rng(count)
    targets = rng.integers(20, 90, count).astype(float)
    nats = targets * rng.lognormal(size=count)
    ours = cluster_bootstrap(nats, targets, [str(place) for place in range(count)])
    low, high = bootstrap_t(nats, targets)
    assert ours
    assert (ours.low, ours.high) == pytest.approx((low, high), abs=0.08 * (high - low))
    assert ours.high - nats.sum() / targets.sum() > 1.5 * (nats.sum() / targets.sum() - ours.low)  # the far tail's side


def test_no_end_is_further_than_three_times_students() -> None:
    values = [0.0] * 15 + [1.0]  # a resample without the one has no spread
    ours = cluster_bootstrap(values, np.ones(16), [str(place) for place in range(16)])
    assert ours and ours.high == pytest.approx(1 / 16 + 3 * t.ppf(0.975, 15) / 16)  # its error is 1 / 16, too


def test_one_cluster_allows_no_interval() -> None:
    assert cluster_bootstrap([1.0, 2.0], [1.0, 1.0], ["a", "a"]) is None
    assert cluster_bootstrap([], [], []) is None


def test_many_independent_values_give_the_normal_interval() -> None:
    values = np.random.default_rng(1).gamma(2.0, 1.0, 1500)
    interval = cluster_bootstrap(values, np.ones(1500), [str(place) for place in range(1500)])
    assert interval is not None
    error = values.std() / math.sqrt(1500)
    assert interval.low == pytest.approx(values.mean() - Z * error, abs=0.2 * error)
    assert interval.high == pytest.approx(values.mean() + Z * error, abs=0.2 * error)


def test_the_same_input_gives_the_same_interval_and_its_order_does_not_matter() -> None:
    values, clusters = [3.0, 1.0, 2.0, 5.0], ["a", "b", "a", "c"]
    first = cluster_bootstrap(values, np.ones(4), clusters)
    assert first == cluster_bootstrap(values, np.ones(4), clusters)
    swapped = cluster_bootstrap([3.0, 2.0, 1.0, 5.0], np.ones(4), ["a", "a", "b", "c"])
    assert first == swapped


def clustered(rng: np.random.Generator, clusters: int, size: int, share: float) -> tuple[np.ndarray, list[str]]:
    """Values of variance 1 around 0, of which `share` is common to a cluster."""
    common = np.repeat(rng.normal(0, math.sqrt(share), clusters), size)
    own = rng.normal(0, math.sqrt(1 - share), clusters * size)
    return common + own, [str(place // size) for place in range(clusters * size)]


@pytest.mark.slow
def test_clusters_widen_the_interval_by_the_design_effect() -> None:
    rng = np.random.default_rng(2)
    ratios = []
    for _ in range(20):
        values, clusters = clustered(rng, 100, 6, 0.5)
        ones = np.ones(len(values))
        wide = cluster_bootstrap(values, ones, clusters)
        narrow = cluster_bootstrap(values, ones, [str(place) for place in range(len(values))])
        assert wide and narrow
        ratios.append((wide.high - wide.low) / (narrow.high - narrow.low))
    # Kish: variance grows by 1 + (size - 1) share
    assert np.mean(ratios) == pytest.approx(math.sqrt(1 + 5 * 0.5), rel=0.05)


def test_clustered_intervals_cover_nearly_nominally_and_naive_ones_do_not() -> None:
    rng = np.random.default_rng(3)
    hits = naive = 0
    for _ in range(300):
        values, clusters = clustered(rng, 40, 4, 0.4)
        ones = np.ones(len(values))
        interval = cluster_bootstrap(values, ones, clusters)
        assert interval
        hits += interval.low <= 0 <= interval.high
        naive += abs(values.mean()) <= Z * values.std() / math.sqrt(len(values))
    assert 0.91 <= hits / 300 <= 0.975
    assert naive / 300 < 0.88


def test_a_mean_of_independent_zeros_and_ones_is_wilsons() -> None:
    assert mean_interval([1.0, 0.0, 1.0], ["a", "b", "c"]) == wilson_interval(2, 3)


def test_clustered_or_fractional_means_are_wilsons_of_an_effective_number() -> None:
    for values, clusters, sums, sizes in (
        ([1.0, 0.0, 1.0, 1.0, 1.0], list("abbcc"), [1.0, 1.0, 2.0], [1, 2, 2]),
        ([0.5, 0.0, 1.0, 0.3], list("abcd"), [0.5, 0.0, 1.0, 0.3], [1] * 4),
    ):
        share, k = sum(values) / len(values), len(sums)
        residuals = [each - share * size for each, size in zip(sums, sizes, strict=True)]
        variance = k / (k - 1) * sum(each**2 for each in residuals) / len(values) ** 2
        count = share * (1 - share) / variance * (Z / t.ppf(0.975, k - 1)) ** 2
        expected = wilson_interval(share * count, count)
        interval = mean_interval(values, clusters)
        assert interval and interval.kind == "wilson"
        assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high))
    assert mean_interval([0.2, 0.7], ["a", "a"]) is None


def test_clusters_never_count_for_more_than_their_answers() -> None:
    # half right in each haystack: nothing varies between haystacks, and there are 8 answers
    shrunk = 8 * (Z / t.ppf(0.975, 3)) ** 2
    ours, expected = mean_interval([1.0, 0.0] * 4, list("aabbccdd")), wilson_interval(shrunk / 2, shrunk)
    assert ours and (ours.low, ours.high) == pytest.approx((expected.low, expected.high))


def test_at_none_and_all_wilson_counts_clusters() -> None:
    assert mean_interval([1.0] * 6, ["a", "a", "b", "b", "c", "c"]) == wilson_interval(3, 3)
    assert mean_interval([0.0] * 6, ["a", "a", "b", "b", "c", "c"]) == wilson_interval(0, 3)
    assert mean_interval([1.0, 1.0], ["a", "a"]) == wilson_interval(1, 1)
    assert mean_interval([0.5] * 6, ["a", "a", "b", "b", "c", "c"]) == wilson_interval(1.5, 3)  # ties that share


def test_sums_of_clusters_are_those_of_pandas() -> None:
    rng = np.random.default_rng(4)
    frame = pd.DataFrame({"x": rng.normal(size=50), "y": rng.random(50), "c": rng.integers(7, size=50).astype(str)})
    expected = frame.groupby("c", sort=False)[["x", "y"]].sum().to_numpy()
    assert cluster_sums(frame.x, frame.y, list(frame.c)) == pytest.approx(expected, rel=1e-12)


def test_differences_of_many_scores_are_bootstrapped_as_scipy_does() -> None:
    rng = np.random.default_rng(5)
    gaps = rng.choice([-1.0, 0.0, 0.25, 1.0], 1200, p=[0.1, 0.4, 0.2, 0.3])
    clusters = [str(place // 3) for place in range(1200)]
    ours = difference_interval(gaps, clusters)
    means = gaps.reshape(400, 3).mean(axis=1)  # equal clusters: the mean of their means
    theirs = bootstrap((means,), np.mean, n_resamples=9999, method="percentile", rng=1).confidence_interval
    spread = means.std(ddof=1) / math.sqrt(400)
    assert ours
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.12 * spread)


@pytest.mark.parametrize(("gained", "lost", "n"), [(6, 2, 20), (0, 3, 12), (5, 5, 32)])
def test_pairs_of_right_and_wrong_answers_have_newcombes_interval_of_gained_and_lost(
    gained: int, lost: int, n: int
) -> None:
    gaps = [1.0] * gained + [-1.0] * lost + [0.0] * (n - gained - lost)
    up, down = (binomtest(k, n).proportion_ci(method="wilson") for k in (gained, lost))
    p, q = gained / n, lost / n
    phi = -p * q / math.sqrt(p * (1 - p) * q * (1 - q)) if p * q else 0.0  # nobody gains and loses
    below, above = (p - up.low, down.high - q), (up.high - p, q - down.low)
    low, high = (math.sqrt(x * x + y * y - 2 * phi * x * y) for x, y in (below, above))
    ours = difference_interval(gaps, [str(place) for place in range(n)])
    assert ours and (ours.low, ours.high) == pytest.approx((p - q - low, p - q + high))


def test_many_paired_differences_have_students_interval() -> None:
    gaps = np.random.default_rng(6).uniform(-0.7, 1.0, 900)
    ours = difference_interval(gaps, [str(place) for place in range(900)])
    error = gaps.std(ddof=1) / 30
    assert ours
    low, high = t.interval(0.95, 899, gaps.mean(), error)
    assert (ours.low, ours.high) == pytest.approx((low, high), abs=0.12 * error)


def test_scores_that_never_differ_could_still_do_so_in_other_clusters() -> None:
    share = Z**2 / (4 + Z**2)  # of 0 in 4 clusters, by Wilson; below and above
    interval = difference_interval([0.0] * 6, list("aabbcd"))
    assert interval and (interval.low, interval.high) == pytest.approx((-share, share))
    assert difference_interval([0.5], ["a"]) is None
    assert difference_interval([], []) is None


def test_where_all_pairs_differ_by_the_whole_score_newcombe_counts_clusters() -> None:
    n = 3
    low, high = binomtest(n, n).proportion_ci(method="wilson")  # of 1; of 0 it is (0, 1 - low)
    far = 1 - math.sqrt((1 - low) ** 2 + ((1 - low) - 0) ** 2)  # method 10, phi = 0
    assert high == 1.0
    assert far == pytest.approx(1 - math.sqrt(2) * Z**2 / (n + Z**2))
    for sign, ends in ((1.0, [far, 1.0]), (-1.0, [-1.0, -far])):
        interval = difference_interval([sign] * 5, list("aabbc"))
        assert interval and interval.kind == "mover"
        assert [interval.low, interval.high] == pytest.approx(ends, abs=1e-12)


def paired(rng: np.random.Generator, clusters: int) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Differences of nats with mean 0.3 a target, their targets, and their documents of 3 texts each."""
    targets = rng.integers(20, 90, 3 * clusters).astype(float)
    shared = np.repeat(rng.normal(0.0, 0.4, clusters), 3)
    return (
        targets * (0.3 + shared + rng.normal(0, 0.3, 3 * clusters)),
        targets,
        [str(i // 3) for i in range(3 * clusters)],
    )


def test_intervals_of_paired_differences_cover_nearly_nominally() -> None:
    rng = np.random.default_rng(7)
    intervals = [cluster_bootstrap(*paired(rng, 40)) for _ in range(300)]
    covered = sum(interval is not None and interval.low <= 0.3 <= interval.high for interval in intervals)
    assert 0.91 <= covered / 300 <= 0.975


def test_a_sign_flip_p_counts_every_flip_exactly() -> None:
    assert sign_flip_p([3.0, 1.0]) == 0.5  # 4 and -4 of 4, 2, -2, -4
    assert sign_flip_p([3.0, 0.0, 1.0, 0.0]) == 0.5
    assert sign_flip_p([2.0, -2.0]) == 1.0
    assert sign_flip_p([5.0]) == 1.0
    assert sign_flip_p([1.0] * 5) == sign_flip_p([-1.0] * 5) == 1 / 16
    assert sign_flip_p([]) == sign_flip_p([0.0, 0.0]) == 1.0


@pytest.mark.everyday("2", "9")
@pytest.mark.parametrize("clusters", [2, 5, 9, 13, 16])
def test_a_sign_flip_p_is_that_of_scipy(clusters: int) -> None:
    sums = np.random.default_rng(clusters).normal(0.5, 1.0, clusters)
    theirs = permutation_test((sums,), np.sum, permutation_type="samples", n_resamples=2**clusters)
    assert sign_flip_p(sums) == pytest.approx(theirs.pvalue, rel=1e-12)


def test_rounding_breaks_no_ties() -> None:
    rng = np.random.default_rng(8)
    for _ in range(20):
        whole = rng.integers(-9, 10, 8)
        flips = [abs(int(np.dot(signs, whole))) for signs in itertools.product((-1, 1), repeat=8)]
        assert sign_flip_p(whole / 10) == sum(flip >= abs(int(whole.sum())) for flip in flips) / 256


@pytest.mark.parametrize(("better", "worse"), [(9, 5), (11, 4), (14, 6), (30, 14)])
def test_right_or_wrong_answers_give_mcnemars_exact_test(better: int, worse: int) -> None:
    ours = sign_flip_p([1.0] * better + [-1.0] * worse + [0.0] * 40)
    exact = binomtest(better, better + worse).pvalue
    drawn = better + worse > 32
    assert ours == pytest.approx(exact, rel=1e-9, abs=3 * math.sqrt(exact * (1 - exact) / 20_000) if drawn else 0)


def test_up_to_32_clusters_every_sign_counts() -> None:
    """Against the number of ways to each sum, in whole numbers."""
    rng = np.random.default_rng(13)
    whole = rng.integers(-40, 60, 32)
    ways = np.zeros(1, object)
    ways[0] = 1  # ways to each sum, by convolution with {-d, d}: exact integers
    for size in np.abs(whole).tolist():
        wider = np.zeros(len(ways) + 2 * size, object)
        wider[: len(ways)] += ways
        wider[2 * size :] += ways
        ways = wider
    sums = np.arange(len(ways)) - np.abs(whole).sum()  # in steps of 1, of which every other one has ways
    expected = sum(ways[np.abs(sums) >= abs(whole.sum())]) / 2**32
    assert sign_flip_p(whole / 8) == pytest.approx(float(expected), rel=1e-12)


def test_a_mean_away_from_the_far_tail_needs_more() -> None:
    """All but two a little below zero, two far above it: the mean may be 0 with a few more of those."""
    small = [-1.0, -1.1, -0.9, -1.2, -0.8, -1.05, -0.95, -1.15, -0.85, -1.0, -1.1, -0.9]
    towards = [*small, -0.2, 0.1]
    mean, error = np.mean(towards), np.std(towards, ddof=1) / math.sqrt(14)
    assert skewed_p(towards) == pytest.approx(2 * t.sf(abs(mean) / error, 0.75 * math.sqrt(14)))
    assert difference_p(towards) == skewed_p(towards) > sign_flip_p(towards)
    away = [*small, -3.0, -4.0]
    assert skew_weight(away) == 0 and difference_p(away) == sign_flip_p(away) < skewed_p(away)
    assert skewed_p([1.0] * 9 + [-1.0, 0.0]) == 0  # right and wrong: symmetric under a mean of 0
    assert skewed_p([2.0]) == skewed_p([0.0, 0.0]) == 0


def test_the_guard_against_skew_has_no_step() -> None:
    """One of 16 clusters moves away: p changes by little at each step, and at no skewness by a factor."""
    rng = np.random.default_rng(5)
    values = rng.normal(1.0, 1.0, 15)
    ps, weights = [], []
    for far in np.arange(0.0, 9.0, 0.01):
        moved = np.append(values, far)
        ps.append(difference_p(moved))
        weights.append(skew_weight(moved))
        skewness = float(skew(moved)) * np.sign(moved.mean())
        assert weights[-1] == pytest.approx(min(1.0, max(0.0, 1 - (skewness - 0.65) / 0.25)))  # 1 - 0.35 log2(16 / 8)
        assert sign_flip_p(moved) <= ps[-1] <= max(sign_flip_p(moved), skewed_p(moved)) * (1 + 1e-12)
    assert min(weights) == 0 and max(weights) == 1
    assert np.abs(np.diff(np.log(ps))).max() < 0.1  # the guard that ended at once had a factor of 40 here


def test_no_star_stands_at_an_interval_that_holds_0() -> None:
    """Shares of haystacks, whose interval by MOVER is wider than the test knows; and one beside it that excludes 0."""
    inside, outside = (Interval(low, 0.4, "mover") for low in (-0.01, 0.01))
    for interval, told in ((inside, False), (outside, True), (None, False)):
        found = pairs.PairedDifference(difference=0.2, interval=interval, p=0.001, p_flips=0.001)
        assert pairs.correct_by_holm({"one": found})["one"].significant is told


def test_answers_of_one_haystack_are_not_symmetric() -> None:
    """Nine of 16 haystacks of four answers gain one: a haystack that loses all four may not have been drawn yet."""
    gained = [1.0] * 9 + [0.0] * 7
    rest = t(0.75 * 4).sf(np.mean(gained) / (np.std(gained, ddof=1) / 4))
    assert skewed_p(gained, [4.0] * 16) == pytest.approx(2 * rest)
    assert skewed_p(gained) == 0.0
    half = [pairs.Outcome(index=index, cluster=str(index // 4), amount=float(index % 4 < 2)) for index in range(64)]
    more = [replace(each, amount=1.0) if each.index % 4 == 3 and each.index < 36 else each for each in half]
    found = pairs.paired_difference(half, more, "accuracy")
    assert found.p == pytest.approx(2 * rest) and not found.balanced


def test_what_is_detectable_is_just_significant() -> None:
    rng = np.random.default_rng(14)
    values = rng.normal(size=24)
    values -= values.mean()
    values = -np.sort(-values)
    error = values.std(ddof=1) / math.sqrt(24)
    size = smallest_significant_difference(error, 24, 0.05 / 12, False)
    for sign in (1, -1):
        beyond, below = (skewed_p(values + sign * factor * size) for factor in (1.001, 0.999))
        assert beyond <= 0.05 / 12 < below
    assert smallest_significant_difference(0.1, 10, 0.05, True) == pytest.approx(0.1 * t.ppf(0.975, 9))


def test_drawn_flips_never_give_a_p_of_zero() -> None:
    assert sign_flip_p([1.0] * 40) == 1 / 20_000  # a chance of 2^-39 a draw


@pytest.mark.slow
def test_many_clusters_give_the_normal_p_and_more_than_a_block_of_them_too() -> None:
    for clusters in (300, 900):
        sums = np.random.default_rng(clusters).normal(0.06, 1.0, clusters)
        limit = 2 * norm.sf(abs(sums.sum()) / math.sqrt((sums**2).sum()))
        assert 0.01 < limit < 0.9
        assert sign_flip_p(sums) == pytest.approx(limit, abs=0.012)


def test_one_in_twenty_true_hypotheses_falls_without_correction() -> None:
    rng = np.random.default_rng(9)
    p_values = np.array([sign_flip_p(rng.normal(0, rng.uniform(0.1, 2.0, 11))) for _ in range(1500)])
    for level in (0.05, 0.2, 0.5):
        assert np.mean(p_values <= level) == pytest.approx(level, abs=3.5 * math.sqrt(level * (1 - level) / 1500))


def test_holm_gives_the_textbook_example() -> None:
    # four hypotheses at 0.05: 0.005 <= 0.05 / 4 and 0.01 <= 0.05 / 3 fall, 0.03 > 0.05 / 2 stops, whatever 0.04 is
    assert adjust_by_holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert adjust_by_holm([0.7, 0.9]) == [1.0, 1.0]
    assert adjust_by_holm([0.2]) == [0.2]
    assert adjust_by_holm([]) == []


def test_holm_is_the_closed_test_of_bonferronis() -> None:
    rng = np.random.default_rng(10)
    for size in (2, 3, 5, 6):
        p_values = list(rng.beta(0.3, 2.0, size).round(2))  # with ties
        families = [f for count in range(1, size + 1) for f in itertools.combinations(range(size), count)]
        expected = [
            max(min(1.0, len(f) * min(p_values[other] for other in f)) for f in families if place in f)
            for place in range(size)
        ]
        assert adjust_by_holm(p_values) == pytest.approx(expected, rel=1e-12)


def test_holm_keeps_a_table_of_true_hypotheses_at_one_in_twenty() -> None:
    rng = np.random.default_rng(11)
    wrong = naive = 0
    for _ in range(300):
        baseline = rng.normal(size=11)
        p_values = [sign_flip_p(rng.normal(size=11) - baseline) for _ in range(8)]
        wrong += min(adjust_by_holm(p_values)) <= 0.05
        naive += min(p_values) <= 0.05
    assert wrong / 300 <= 0.06
    assert naive / 300 > 0.15


@pytest.mark.parametrize("counts", [(6, 9), (12, 5)])
def test_other_questions_are_compared_by_welch_as_scipy_does(counts: tuple[int, int]) -> None:
    rng = np.random.default_rng(counts)
    sides = [rng.normal(size, 0.3, size) for size in counts]
    ours = unpaired_interval(*(np.stack([side, np.ones(len(side))], axis=1) for side in sides))
    theirs = ttest_ind(sides[1], sides[0], equal_var=False)
    low, high = theirs.confidence_interval(0.95)
    assert ours and (ours.low, ours.high) == pytest.approx((low, high))
    margin = 0.9 * (sides[1].mean() - sides[0].mean())
    expected = ttest_ind(sides[1] - margin, sides[0], equal_var=False, alternative="greater").pvalue
    pairs = [np.stack([side, np.ones(len(side))], axis=1) for side in sides]
    if max(counts) >= 2 * min(counts):  # skewed noise does not cancel: 0.75 sqrt(n) degrees of freedom, n the smaller
        errors = [side.var(ddof=1) / len(side) for side in sides]
        statistic = (sides[1].mean() - sides[0].mean() - margin) / math.sqrt(sum(errors))
        expected = t.sf(statistic, 0.75 * math.sqrt(min(counts)))
    assert unpaired_p(pairs[0], pairs[1], margin) == pytest.approx(expected)


def test_welch_weighs_clusters_by_their_units() -> None:
    left, right = np.array([[1.0, 1.0], [6.0, 2.0]]), np.array([[2.0, 1.0], [3.0, 2.0], [10.0, 2.0]])
    # ratios 7/3 and 3; residuals 4/3 of 3 units, and 1, 3, 4 of 5
    parts = [2 / 1 * 2 * (4 / 3) ** 2 / 9, 3 / 2 * (1 + 9 + 16) / 25]
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / 1 + parts[1] ** 2 / 2)
    reach = t.ppf(0.975, freedom) * math.sqrt(sum(parts))
    ours = unpaired_interval(left, right)
    assert ours and (ours.low, ours.high) == pytest.approx((2 / 3 - reach, 2 / 3 + reach))
    assert unpaired_interval(left[:1], right) is None and unpaired_p(left, left[:1], 0.0) is None
    assert unpaired_interval(left * [0, 1], right * [0, 1]) is None  # nothing varies


def test_none_and_all_are_exactly_the_ends_of_the_scale() -> None:
    for n in range(1, 400):
        assert wilson_interval(0, n).low == 0.0 and wilson_interval(n, n).high == 1.0


def test_the_bootstrap_begins_at_four_clusters() -> None:
    for count in (3, 4):
        values = [0.0] * (count - 1) + [1.0]
        ours = cluster_bootstrap(values, np.ones(count), [str(place) for place in range(count)])
        assert ours is not None
        skew = (ours.high - 1 / count) / (1 / count - ours.low)
        assert (skew == pytest.approx(1.0)) == (count == 3), "Student's is symmetric, and the clusters are not"


@pytest.mark.parametrize("count", [4, 9, 32, 40, 64])
def test_the_studentised_interval_follows_its_formula_on_the_same_draws(count: int) -> None:
    """Resample by resample in plain Python, from how often each cluster is drawn."""
    rng = np.random.default_rng(count)
    units = rng.integers(20, 90, count).astype(float)
    amounts = units * rng.lognormal(size=count)
    drawn = resample_totals(np.eye(count))
    assert drawn.shape == (2000, count) and (drawn.sum(axis=1) == count).all()
    value = amounts.sum() / units.sum()
    influence = [(a - value * u) / units.sum() for a, u in zip(amounts, units, strict=True)]
    scale = count / (count - 1)
    error = math.sqrt(scale * sum(each**2 for each in influence))
    most = 3 * t.ppf(0.975, count - 1)
    found = []
    for weights in drawn:
        shift = sum(w * each for w, each in zip(weights, influence, strict=True))
        squares = sum(w * each**2 for w, each in zip(weights, influence, strict=True))
        spread = math.sqrt(scale * max(0.0, squares - shift**2 / count))
        found.append(min(most, max(-most, shift / spread)) if spread > 1e-9 * error else math.copysign(most, shift))
    tail = 0.025 * (1 - 16 / max(32, count))  # 97.5 % up to 32 clusters, and less with their number
    low, high = (float(np.quantile(found, share)) for share in (tail, 1 - tail))
    ours = cluster_bootstrap(amounts, units, [str(place) for place in range(count)])
    assert ours and (ours.low, ours.high) == pytest.approx((value - high * error, value - low * error), rel=1e-9)


def test_means_of_marks_with_rare_misses_are_covered_too_rarely_as_the_docs_say() -> None:
    """Marks of 0.96 to 1, a tenth of the samples at 0: the mean is 0.9 * 0.98."""
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        marks = np.where(rng.random(16) < 0.1, 0.0, rng.uniform(0.96, 1.0, 16))
        found = mean_interval(marks.tolist(), [str(place) for place in range(16)])
        covered += found is not None and found.low <= 0.9 * 0.98 <= found.high
    assert covered / 400 == pytest.approx(0.80, abs=0.04)
