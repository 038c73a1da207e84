"""Verdicts that may stop: against the formulas written anew, hand calculations, and how often chance alone decides."""

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from lexbench.stats.pairs import Outcome
from lexbench.stats.stopping import (
    STAKE_FRACTIONS,
    WEALTH_SHARES,
    StoppingVerdict,
    cluster_gains,
    confidence_sequence,
    decide,
    decide_gains,
    round_ends,
)


def outcomes(amounts: list[float], clusters: list[str] | None = None) -> list[Outcome]:
    names = clusters or [str(place) for place in range(len(amounts))]
    return [
        Outcome(index=place, cluster=name, amount=amount)
        for place, (amount, name) in enumerate(zip(amounts, names, strict=True))
    ]


def wealth_by_hand(gains: list[float], centre: float, bound: float | None) -> float:
    """The largest wealth of the bet that gains lie above a centre, at any number of them."""
    parts = [*map(float, WEALTH_SHARES)]
    assert sum(parts) == pytest.approx(1)
    most = 1.0
    for gain in gains:
        won = (gain - centre) / (1 + centre) if bound is None else max(-bound, min(bound, gain - centre)) / bound
        parts = [part * (1 + stake * won) for part, stake in zip(parts, STAKE_FRACTIONS, strict=True)]
        most = max(most, sum(parts))
    return most


@pytest.mark.parametrize("bound", [None, 0.08])
def test_the_interval_holds_every_centre_that_no_bet_excludes(bound: float | None) -> None:
    rng = np.random.default_rng(1)
    gains = (
        rng.choice([-1.0, 0.0, 0.5, 1.0], 60, p=[0.1, 0.3, 0.2, 0.4]) if bound is None else rng.normal(0.05, 0.1, 60)
    )
    low, high = confidence_sequence(gains, bound, 0.1)
    centres = np.linspace(-0.99, 0.99, 397) if bound is None else np.linspace(-0.3, 0.4, 281)
    kept = [
        centre
        for centre in map(float, centres)
        if wealth_by_hand([*gains], centre, bound) < 20 and wealth_by_hand([*-gains], -centre, bound) < 20
    ]
    step = float(centres[1] - centres[0])
    assert kept and (low, high) == pytest.approx((min(kept), max(kept)), abs=step)
    assert low <= min(kept) and max(kept) <= high


def test_answers_that_never_change_are_equal_once_a_bet_has_won_its_part() -> None:
    """Three tenths of the wealth grow by 1 + 0.95 * 0.1 / 0.9 a question; it needs 40 in all, or 133.3 of its own."""
    growth = math.log(1 + 0.95 * 0.1 / 0.9)
    found = [decide(outcomes([1.0] * n), outcomes([1.0] * n), "accuracy", 0.1, 0.05).verdict for n in range(1, 65)]
    first = found.index(StoppingVerdict.EQUAL) + 1
    assert math.log(40) / growth < first <= math.ceil(math.log(40 / 0.3) / growth) == 49
    assert set(found[: first - 1]) == {StoppingVerdict.OPEN} and set(found[first:]) == {StoppingVerdict.EQUAL}


@pytest.mark.parametrize(("metric", "sign"), [("accuracy", 1), ("nll", -1)])
def test_the_better_side_is_named_in_the_metrics_own_direction(metric: str, sign: int) -> None:
    base, rng = 0.4, np.random.default_rng(2)
    steps = 0.4 + 0.01 * rng.normal(size=32)
    for side, verdict in ((1, StoppingVerdict.BETTER), (-1, StoppingVerdict.WORSE)):
        other = outcomes([base + sign * side * float(step) for step in steps])
        found = decide(outcomes([base] * 32), other, metric, 0.02, 0.05)
        assert found.verdict is verdict and found.gain == pytest.approx(side * float(steps.mean()))
    assert found.clipped == (32 if metric == "nll" else 0)


def test_what_few_documents_lose_much_is_not_called_better() -> None:
    """Most documents gain little, two lose much: the clipped centre is above 0, the mean is not."""
    gains = np.array([0.05] * 24 + [-2.0] * 2)
    assert confidence_sequence(gains, 0.08, 0.05)[0] > 0 > gains.mean()
    assert decide_gains(gains, "nll", 0.02, 0.05).verdict is StoppingVerdict.OPEN


def test_nothing_is_known_without_a_pair_and_little_of_one() -> None:
    assert decide([], [], "nll", 0.02, 0.05).verdict is StoppingVerdict.OPEN
    found = decide_gains(np.array([0.5]), "nll", 0.02, 0.05)
    assert (found.verdict, found.low, found.high) == (StoppingVerdict.OPEN, -math.inf, math.inf)


def test_a_later_round_changes_no_cluster_of_an_earlier_one() -> None:
    names = [f"{place // 3}" for place in range(32)]
    gaps = outcomes([float(place % 5) for place in range(32)], names)
    for end in round_ends(32):
        held = cluster_gains(gaps[:end], "accuracy")
        assert held.tolist() == cluster_gains(gaps, "accuracy")[: len(held)].tolist()
    # The third cluster has questions 6, 7 and 8, of which the last belongs to the second round.
    assert cluster_gains(gaps, "accuracy")[2] == pytest.approx((6 % 5 + 7 % 5) / 2)


def test_rounds_grow_by_half_and_by_a_third() -> None:
    assert round_ends(8) == [8] and round_ends(64) == [8, 12, 16, 24, 32, 48, 64] and round_ends(7) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["few answers change", "one-sided answers", "normal nats"])
def test_an_interval_that_is_watched_all_the_time_misses_no_more_often_than_it_says(kind: str) -> None:
    """400 series of 300 clusters, level 0.2: more than 99 misses of 400 come in one of 100 such tests."""
    rng, missed = np.random.default_rng(3), 0
    for _ in range(400):
        drawn: Any = rng.random(300)
        if kind == "few answers change":
            gains, centre, bound = (drawn < 0.05) * 1.0 - (drawn > 0.95), 0.0, None
        elif kind == "one-sided answers":
            gains, centre, bound = (drawn < 0.1) * 1.0, 0.1, None
        else:
            gains, centre, bound = rng.normal(0.01, 0.1, 300), 0.01, 0.08
        low, high = confidence_sequence(gains, bound, 0.2)
        missed += not low <= centre <= high
    assert missed <= binom.ppf(0.99, 400, 0.2)
