import numpy as np
import pytest

from lexbench import Sample
from lexbench.parts.kv.divergence import judge_divergence, judge_losses, level, losses_of, slope
from lexbench.report.wording import metric_label


def sample(index: int, kld: float, cluster: str | None = None, same_top: float = 1.0) -> Sample:
    return Sample(index=index, cluster=cluster or f"d{index}", tokens=8, scores={"kld": kld, "same_top": same_top})


def test_slope_is_the_least_squares_line_over_doublings() -> None:
    # 1, 2 and 4 at 0, 1 and 2 doublings: covariance 3, variance 2.
    by_length = {512 << power: [sample(0, 2.0**power), sample(1, 2.0**power)] for power in range(3)}
    found = slope(by_length)
    assert found is not None
    assert [found.value, found.low, found.high] == pytest.approx([1.5, 1.5, 1.5]) and found.n == 2
    assert slope({512: [sample(0, 1.0)]}) is None


def test_slopes_are_of_places_that_have_all_lengths() -> None:
    found = slope({512: [sample(0, 1.0), sample(1, 5.0)], 1024: [sample(0, 4.0)]})
    assert found is not None
    assert (found.value, found.n) == (3.0, 1)


def test_levels_are_means_within_their_bounds() -> None:
    samples = [sample(index, kld, same_top=1 - kld / 10) for index, kld in enumerate([0.0, 0.0, 3.0])]
    divergence, top = level(samples), level(samples, "same_top")
    assert divergence is not None and top is not None
    assert (divergence.value, divergence.low) == (1.0, 0.0)
    assert top.value == pytest.approx(0.9) and top.high is not None and top.high <= 1
    assert level([]) is None


@pytest.mark.parametrize("metric", ["kld", "same_top", "nll_rise"])
def test_every_score_of_a_divergence_is_named_in_words(metric: str) -> None:
    assert " " in metric_label(metric) and metric not in metric_label(metric)


def test_questions_behind_another_clusters_do_not_count() -> None:
    found = losses_of([sample(0, 1.0, "a"), sample(1, 3.0, "a"), sample(2, 5.0, "b"), sample(3, 9.0, "a")])
    np.testing.assert_array_equal(found, [2.0, 5.0])


def test_a_mean_of_twice_the_margin_is_proven_above_after_six_documents() -> None:
    # Wealth 0.5 1.95^n + 0.1 (1.8^n + 1.6^n + 1.4^n + 1.25^n + 1.12^n): 18.1 after five, 33.8 after six.
    assert judge_losses(np.full(40, 0.02), "kld", 0.01) == judge_losses(np.full(6, 0.02), "kld", 0.01)
    found = judge_losses(np.full(40, 0.02), "kld", 0.01)
    assert (found.kind, found.at) == ("above", 6)
    five = judge_losses(np.full(5, 0.02), "kld", 0.01)
    assert (five.kind, five.more) == ("undecided", 1)


def test_no_divergence_at_all_is_proven_below() -> None:
    found = judge_divergence([sample(index, 0.0) for index in range(32)], 0.01)
    assert found is not None and found.kind == "below"


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_losses_far_from_the_margin_are_decided_as_they_are(scale: float) -> None:
    losses = np.random.default_rng(0).gamma(4.0, scale * 0.01 / 4, 400)
    assert judge_losses(losses, "kld", 0.01).kind == ("below" if scale < 1 else "above")


@pytest.mark.slow
def test_at_the_margin_itself_above_is_claimed_in_one_of_twenty_at_most() -> None:
    rng = np.random.default_rng(1)
    wrong = sum(judge_losses(rng.exponential(0.01, 100), "kld", 0.01).kind == "above" for _ in range(400))
    assert wrong <= 400 * 0.05 + 3 * np.sqrt(400 * 0.05 * 0.95)
