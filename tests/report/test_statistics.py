"""Intervals hold what they promise."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom, binomtest

from lexbench.report.statistics import Interval, cluster_bootstrap, cluster_sums, mean_interval, wilson

Z = 1.959963984540054


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_gives_the_numbers_of_newcombe_1998(successes: int, n: int, low: float, high: float) -> None:
    interval = wilson(successes, n)
    assert (round(interval.low, 4), round(interval.high, 4)) == (low, high)  # table I, method 3


def test_wilson_agrees_with_scipy() -> None:
    for n in (1, 2, 7, 32, 500):
        for successes in {0, 1, n // 3, n - 1, n}:
            theirs = binomtest(successes, n).proportion_ci(method="wilson")
            ours = wilson(successes, n)
            assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


def test_wilson_has_a_width_at_none_and_all() -> None:
    # at p = 0 the formula is z^2 / (n + z^2)
    assert [wilson(0, 10).low, wilson(0, 10).high] == pytest.approx([0.0, Z**2 / (10 + Z**2)])
    assert [wilson(10, 10).low, wilson(10, 10).high] == pytest.approx([10 / (10 + Z**2), 1.0])


def test_wilson_covers_nominally() -> None:
    n = 40
    intervals = [wilson(successes, n) for successes in range(n + 1)]
    shares = np.linspace(0.05, 0.95, 181)
    covered = [sum(binom.pmf(k, n, p) for k, i in enumerate(intervals) if i.low <= p <= i.high) for p in shares]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.01)


def test_two_clusters_have_three_resamples() -> None:
    # sums (1, 1) and (9, 3): drawn twice the one, each once, twice the other: 1, 10/4, 3, with chances 1/4, 1/2, 1/4
    interval = cluster_bootstrap([0.5, 4.0, 0.5, 5.0], [0.5, 1.0, 0.5, 2.0], ["a", "b", "a", "b"])
    assert interval == Interval(1.0, 3.0, "cluster_bootstrap")


def test_one_cluster_allows_no_interval() -> None:
    assert cluster_bootstrap([1.0, 2.0], [1.0, 1.0], ["a", "a"]) is None
    assert cluster_bootstrap([], [], []) is None


def test_many_independent_values_give_the_normal_interval() -> None:
    values = np.random.default_rng(1).gamma(2.0, 1.0, 1500)
    interval = cluster_bootstrap(values, np.ones(1500), [str(place) for place in range(1500)])
    assert interval is not None
    error = values.std() / math.sqrt(1500)
    assert interval.low == pytest.approx(values.mean() - Z * error, abs=0.15 * error)
    assert interval.high == pytest.approx(values.mean() + Z * error, abs=0.15 * error)


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
    assert mean_interval([1.0, 0.0, 1.0], ["a", "b", "c"]) == wilson(2, 3)


def test_clustered_or_fractional_means_are_bootstrapped() -> None:
    for values, clusters in (([1.0, 0.0, 1.0], ["a", "b", "b"]), ([0.5, 0.0, 1.0], ["a", "b", "c"])):
        interval = mean_interval(values, clusters)
        assert interval is not None
        assert interval.kind == "cluster_bootstrap"
        assert interval == cluster_bootstrap(values, [1.0] * 3, clusters)


def test_at_none_and_all_wilson_counts_clusters() -> None:
    assert mean_interval([1.0] * 6, ["a", "a", "b", "b", "c", "c"]) == wilson(3, 3)
    assert mean_interval([0.0] * 6, ["a", "a", "b", "b", "c", "c"]) == wilson(0, 3)
    assert mean_interval([1.0, 1.0], ["a", "a"]) == wilson(1, 1)


def test_sums_of_clusters_are_those_of_pandas() -> None:
    rng = np.random.default_rng(4)
    frame = pd.DataFrame({"x": rng.normal(size=50), "y": rng.random(50), "c": rng.integers(7, size=50).astype(str)})
    expected = frame.groupby("c", sort=False)[["x", "y"]].sum().to_numpy()
    assert cluster_sums(frame.x, frame.y, list(frame.c)) == pytest.approx(expected, rel=1e-12)
