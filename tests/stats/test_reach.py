"""The smallest loss that a gate finds, and difference that a comparison finds, beside runs in which it is planted."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

from lexbench.stats.pairs import Outcome, paired_difference
from lexbench.stats.reach import (
    ADDED_SPREAD,
    FOUND_SHARE,
    LOSS_SPREAD,
    MAX_LOSS_SPREAD_NATS,
    more_clusters_to_find,
    smallest_found_difference,
    smallest_found_loss,
)


def scored(right: int, of: int, per_text: int = 1) -> list[Outcome]:
    return [Outcome(index=i, cluster=str(i // per_text), amount=float(i < right)) for i in range(of)]


def found_share(before: Sequence[Outcome], runs: Sequence[Sequence[Outcome]], metric: str, level: float) -> float:
    tolerance = 0.02
    return float(np.mean([(paired_difference(before, run, metric, tolerance).p or 0) <= level for run in runs]))


@pytest.mark.parametrize(("right", "of"), [(32, 32), (27, 32), (40, 64)])
def test_the_stated_loss_of_a_score_is_found_nine_times_of_ten(right: int, of: int) -> None:
    before, level = scored(right, of), 0.05 / 8
    size = smallest_found_loss(before, "accuracy", 0.02, level)
    assert size is not None
    rng = np.random.default_rng(1)

    def run(share: float) -> list[Outcome]:
        return [replace(each, amount=(each.amount or 0) * float(rng.random() >= share)) for each in before]

    share = size * of / right
    at, half = (found_share(before, [run(each) for _ in range(120)], "accuracy", level) for each in (share, share / 2))
    # 120 runs: a share of 0.9 has a standard error of 0.027.
    assert at >= FOUND_SHARE - 0.08 and half < at - 0.2


def test_the_fewest_lost_answers_are_those_of_the_sign_test() -> None:
    """m of 20 lost have 2^-m; 7 is the first below 0.05 / 6."""
    size = smallest_found_loss(scored(20, 20), "accuracy", 0.0, 0.05 / 6)
    assert size is not None and binom.sf(6, 20, size) == pytest.approx(FOUND_SHARE)
    assert 2.0**-7 <= 0.05 / 6 < 2.0**-6


def test_what_is_not_there_cannot_be_lost() -> None:
    assert smallest_found_loss(scored(0, 64), "accuracy", 0.02, 0.05) is None
    assert smallest_found_loss(scored(3, 12), "accuracy", 0.02, 0.05) is None
    texts = [Outcome(index=i, cluster=str(i), amount=3.0, targets=1) for i in range(4)]
    assert smallest_found_loss(texts, "nll", 0.02, 0.05) is None


@pytest.mark.parametrize(("clusters", "most"), [(24, 0.35), (48, 0.07), (64, 0.05)])
def test_the_stated_loss_of_a_likelihood_is_found_nine_times_of_ten(clusters: int, most: float) -> None:
    before = [Outcome(index=i, cluster=str(i), amount=3.0, targets=1) for i in range(clusters)]
    level = 0.05 / 4
    size = smallest_found_loss(before, "nll", 0.02, level)
    assert size is not None and 0.02 < size < most
    rng = np.random.default_rng(2)

    def run(loss: float) -> list[Outcome]:
        drawn = loss + min(LOSS_SPREAD * loss, MAX_LOSS_SPREAD_NATS) * rng.standard_normal(clusters)
        return [replace(each, amount=3.0 + float(more)) for each, more in zip(before, drawn, strict=True)]

    at, less = (found_share(before, [run(each) for _ in range(120)], "nll", level) for each in (size, 0.02))
    assert at >= FOUND_SHARE - 0.08 and less <= 0.05


def test_a_noisy_difference_finds_less() -> None:
    before = [Outcome(index=i, cluster=str(i), amount=3.0, targets=1) for i in range(32)]
    quiet, loud = (smallest_found_loss(before, "nll", 0.02, 0.01, error) for error in (0.0, 0.05))
    assert quiet is not None and loud is not None and loud > quiet + 2.3 * 0.05  # 2.3: the quantile of 0.99


@pytest.mark.parametrize(("flipped", "questions"), [(0.0, 1), (0.15, 1), (0.1, 4)])
def test_the_stated_difference_of_a_score_is_found_nine_times_of_ten(flipped: float, questions: int) -> None:
    """Answers flip at random on both sides; planted is a loss of right answers."""
    rng, count = np.random.default_rng(6), 48
    before = scored(count * 3 // 4, count, questions)
    before = [replace(each, amount=float(rng.random() < 0.75)) for each in before]

    def run(loss: float) -> list[Outcome]:
        after = [abs((each.amount or 0) - float(rng.random() < flipped)) for each in before]
        share = loss / (sum(after) / count)
        return [
            replace(each, amount=amount * float(rng.random() >= share))
            for each, amount in zip(before, after, strict=True)
        ]

    told = []
    for _ in range(150):
        pilot = replace(paired_difference(before, run(0.0), "accuracy"), level=0.05 / 4)
        size = smallest_found_difference(pilot, "accuracy")
        assert size is not None
        found = paired_difference(before, run(size), "accuracy")
        told.append((found.p or 0) <= 0.05 / 4)
    assert np.mean(told) >= FOUND_SHARE - 0.1


def test_the_stated_difference_of_a_likelihood_is_found_nine_times_of_ten() -> None:
    rng, count, level = np.random.default_rng(7), 32, 0.05 / 4
    before = [Outcome(index=i, cluster=str(i), amount=3.0, targets=1) for i in range(count)]

    def run(loss: float) -> list[Outcome]:
        drawn = 3.0 + rng.normal(loss, ADDED_SPREAD * loss, count) + rng.normal(0, 0.03, count)
        return [replace(each, amount=float(amount)) for each, amount in zip(before, drawn, strict=True)]

    told, silent = [], []
    for _ in range(60):
        pilot = replace(paired_difference(before, run(0.0), "nll"), level=level)
        size = smallest_found_difference(pilot, "nll")
        assert size is not None and size < 0.1
        told.append((paired_difference(before, run(size), "nll").p or 0) <= level)
        silent.append((pilot.p or 0) <= level)
    assert np.mean(told) >= FOUND_SHARE - 0.1 and np.mean(silent) <= 0.05


def test_so_many_more_clusters_find_a_difference_like_the_pilots_nine_times_of_ten() -> None:
    """Drawn from what the pilot shows: 6 of 32 answers are lost and 1 gained; and losses of 0.1 nats, spread 0.4."""
    rng = np.random.default_rng(11)
    lost = [Outcome(index=i, cluster=str(i), amount=float(i >= 6)) for i in range(32)]
    before = [replace(each, amount=0.0 if each.index == 31 else 1.0) for each in lost]
    spread = 0.1 + 0.4 * rng.permutation(np.linspace(-1.7, 1.7, 32))
    texts = [
        [Outcome(index=i, cluster=str(i), amount=float(3 + side * each), targets=1) for i, each in enumerate(spread)]
        for side in (0, 1)
    ]
    for metric, sides in (("accuracy", (before, lost)), ("nll", (texts[0], texts[1]))):
        pilot = paired_difference(*sides, metric)
        more = more_clusters_to_find(pilot, metric)
        assert more is not None
        for count, low, high in ((32 + more, 0.8, 0.99), ((32 + more) // 2, 0.0, 0.82)):
            told = 0
            for _ in range(200):
                drawn = rng.integers(32, size=count)
                one, other = (
                    [replace(side[at], index=place, cluster=str(place)) for place, at in enumerate(drawn)]
                    for side in sides
                )
                told += (paired_difference(one, other, metric).p or 0.0) <= 0.05
            assert low <= told / 200 <= high, (metric, count, told)
    same = paired_difference(before, before, "accuracy")
    assert more_clusters_to_find(same, "accuracy") is None
