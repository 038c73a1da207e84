"""Effect of the length: known ratios, no effect from a floor, none between different questions."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from lexbench import Sample
from lexbench.report.tables import length_effect_grid
from lexbench.stats.length_effect import LengthEffect, effect_interval, length_effects
from lexbench.stats.tables import build_tables
from lexbench.store.format import FinishedCell
from tests.report.fake_run import cell


def effects(
    scores: Mapping[int, Sequence[float]], chance: float = 0.1, other: bool = False, haystack: str | None = None
) -> list[LengthEffect]:
    """Cells whose sample i asks for i, with `other` for something else at each length; haystacks of one each."""
    found = [
        FinishedCell(
            cell("counting", "none", length, n=len(values)),
            [
                Sample(
                    index=index,
                    cluster=haystack or str(index),
                    tokens=length,
                    scores={"accuracy": value},
                    chance=chance,
                    facts={"expected": [index + (length if other else 0)]},
                )
                for index, value in enumerate(values)
            ],
        )
        for length, values in scores.items()
    ]
    [table] = [table for table in build_tables(found) if table.metric == "accuracy"]
    made = length_effects(table, {each.cell.id: each.samples for each in found})
    assert not made or [str(row[0]) for row in length_effect_grid(table, made).rows] == ["none"]
    return made


def test_an_effect_is_the_change_of_the_score_on_the_same_questions() -> None:
    half = [1.0, 0.0] * 20
    quarter = [1.0, 0.0, 0.0, 0.0] * 10
    near, far = effects({128: half, 256: half, 512: quarter})
    assert (near.length, near.value, near.pairs) == (256, 0.0, 40)
    # Every question answers as before: Wilson's end of 0 of 40 on either side, joined (Newcombe), over the lower end of
    # the score of 1/2 (Fieller, no correlation): e^2 s^2 = d^2 + e^2 (s - l)^2.
    end = 1.96**2 / (40 + 1.96**2)
    low = binomtest(20, 40).proportion_ci(method="wilson").low
    wide = end / math.sqrt(0.5**2 - (0.5 - low) ** 2)
    assert (near.low, near.high) == pytest.approx((-wide, wide), rel=1e-3)
    assert far.value == pytest.approx(-0.5) and far.low is not None and far.high is not None
    assert -0.81 < far.low < -0.5 < far.high < -0.2


def test_one_haystack_has_an_effect_without_an_interval() -> None:
    [single] = effects({128: [1.0, 1.0, 1.0, 0.0], 256: [1.0, 1.0, 0.0, 0.0]}, haystack="a")
    assert single.value == pytest.approx(2 / 3 - 1) and (single.low, single.high) == (None, None)
    [guessed] = effects({128: [1.0, 1.0, 1.0, 0.0], 256: [1.0, 1.0, 0.0, 0.0]}, chance=0.75, haystack="a")
    assert guessed.value is None


def test_a_score_at_chance_has_no_effect_and_other_questions_no_pairs() -> None:
    half = [1.0, 0.0] * 20
    [floored] = effects({128: half, 256: [0.0] * 40}, chance=0.5)
    assert (floored.value, floored.low) == (None, None)
    assert effects({128: half, 256: half}, other=True) == []


@pytest.mark.everyday("16-1.0-0.95")
@pytest.mark.parametrize(("n", "base", "share"), [(16, 1.0, 0.95), (32, 0.95, 0.98), (40, 0.5, 0.95), (32, 0.9, 0.5)])
def test_intervals_cover_the_share_of_right_answers_that_stays(n: int, base: float, share: float) -> None:
    """A question is right at the short length with chance `base`, and then at the long one with chance `share`."""
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(100):
        short = rng.random(n) < base
        long = short & (rng.random(n) < share)
        [found] = effects({128: short.astype(float).tolist(), 256: long.astype(float).tolist()}, chance=0.0)
        covered += found.low is not None and found.high is not None and found.low <= share - 1 <= found.high
    assert covered >= 90


@pytest.mark.everyday("16-0.5-1.5")
@pytest.mark.parametrize(("n", "base", "share"), [(16, 0.5, 1.5), (32, 0.3, 2.0), (50, 0.3, 3.0), (200, 0.2, 3.0)])
def test_intervals_cover_a_score_that_rises_with_the_length(n: int, base: float, share: float) -> None:
    """The score at the shortest length is uncertain, too: a multiple of it the more, the larger it is."""
    rng = np.random.default_rng(0)
    ends = [
        effect_interval(rng.random(n) < base, rng.random(n) < share * base, [*map(str, range(n))]) for _ in range(200)
    ]
    known = [(low, high) for low, high in ends if low is not None and high is not None]
    assert len(known) > 190
    covered = sum(low <= share - 1 <= high for low, high in known)
    assert covered >= binom.ppf(0.001, len(known), 0.93)


def test_ends_are_those_of_the_delta_method_where_there_are_many_questions() -> None:
    """Variance of the logarithm of p / q of independent answers: (1 - p) / (n p) + (1 - q) / (n q)."""
    n, p, q = 100_000, 0.6, 0.4
    rng = np.random.default_rng(1)
    order = [rng.permutation(n) for _ in range(2)]
    low, high = effect_interval(order[0] < q * n, order[1] < p * n, [*map(str, range(n))])
    reach = 1.96 * math.sqrt((1 - p) / (n * p) + (1 - q) / (n * q))
    assert (low, high) == pytest.approx((p / q * math.exp(-reach) - 1, p / q * math.exp(reach) - 1), abs=2e-4)


def test_where_every_answer_is_right_the_ratio_is_bounded() -> None:
    """No share of right answers is above 1, and the score at the shortest length is at least Wilson's end."""
    low, high = effect_interval([1.0] * 20, [1.0] * 20, [*map(str, range(20))])
    end = 1.96**2 / (20 + 1.96**2)
    least = -end / math.sqrt(1 - end**2)  # e^2 = d^2 + e^2 (1 - l)^2, and 1 - l = d
    assert (low, high) == pytest.approx((least, -least), rel=1e-3)
    assert effect_interval([1.0, 0.0], [1.0, 1.0], ["a", "a"]) == (None, None)
