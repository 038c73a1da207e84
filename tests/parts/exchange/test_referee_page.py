"""Public thresholds judged anew: the page is what the tool writes, and its chances agree with simulations."""

import numpy as np
import pytest
from scipy.stats import binom

from tools import referee


def test_the_page_is_the_tools() -> None:
    assert referee.PAGE.read_text(encoding="utf-8") == referee.referee_page()


def test_chances_of_a_bar_agree_with_a_simulation_of_coins() -> None:
    """200 questions, 166 always right, 12 that toss a coin: sd sqrt(3) / 200 = 0.0087, mean 0.86."""
    gate = next(each for each in referee.GATES if each.thread == "sgl-project/sglang-jax#1333")
    rng = np.random.default_rng(3)
    for lost in (0, 4):
        scores = (166 - lost + rng.binomial(12, 0.5, 200_000)) / 200
        found = referee.red_chance(gate, lost / 200, reruns=True)
        assert found == pytest.approx(float((scores <= 0.85 + 1e-9).mean()), abs=0.005)
    # The thread saw 12 red of 61.
    known = referee.red_chance(gate, 0.0, reruns=True)
    assert known is not None and 0.01 < binom.cdf(12, 61, known) < 0.99
    # Not strict: 0.65 of 200 is green.
    other = next(each for each in referee.GATES if each.thread == "sgl-project/sglang#31702")
    assert referee.red_chance(other, 0.0, reruns=False) == pytest.approx(float(binom.cdf(129, 200, 0.6762)))


def test_the_paired_test_agrees_with_a_simulation() -> None:
    rng = np.random.default_rng(5)
    questions, coins, lost = 400, 40, 8
    sides = rng.random((2, 4000, coins)) < 0.5
    worse = (sides[0] & ~sides[1]).sum(axis=1) + lost
    better = (~sides[0] & sides[1]).sum(axis=1)
    red = binom.sf(worse - 1, worse + better, 0.5) <= 0.05
    assert referee.paired_red_chance(questions, coins, lost) == pytest.approx(float(red.mean()), abs=0.03)
    assert referee.paired_red_chance(questions, coins, 0) <= 0.05
