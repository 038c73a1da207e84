import math
from fractions import Fraction

import numpy as np
import pytest

from lexbench import Model, Refused
from lexbench.methods.leaky_rerope import LeakyRerope
from tests.methods.remaps import distances, plain, trained_on


@pytest.mark.parametrize(("window", "slowdown"), [(1, 2), (4, 4), (5, 3.5), (4, 0.25), (40, 4)])
def test_beyond_the_window_a_token_counts_one_over_k(tiny: Model, window: int, slowdown: float) -> None:
    step = 1 / Fraction(slowdown)
    expected = np.array(plain(24), dtype=float)
    for i in range(24):
        for j in range(i - window + 1):
            expected[i, j] = window + (i - j - window) * step
    seen = distances(LeakyRerope(window=window, slowdown=slowdown), tiny, 24)
    np.testing.assert_allclose(seen, expected, rtol=1e-13)


def test_without_end_the_slowdown_makes_rerope(tiny: Model) -> None:
    expected = [[min(i - j, 5) if j <= i else -1 for j in range(30)] for i in range(30)]
    np.testing.assert_array_equal(distances(LeakyRerope(window=5, slowdown=math.inf), tiny, 30), expected)


@pytest.mark.parametrize("length", [2, 9, 16])
def test_within_the_trained_length_it_is_the_model(tiny: Model, length: int) -> None:
    np.testing.assert_array_equal(distances(LeakyRerope(), tiny, length), plain(length))
    np.testing.assert_array_equal(distances(LeakyRerope(window=length, slowdown=8), tiny, length), plain(length))


@pytest.mark.parametrize("length", [17, 32, 64])
@pytest.mark.parametrize("window", [None, 3, 14])
def test_left_out_the_slowdown_just_reaches_the_largest_trained_distance(
    tiny: Model, length: int, window: int | None
) -> None:
    assert distances(LeakyRerope(window=window), tiny, length).max() == pytest.approx(15, rel=1e-13)


def test_left_out_the_window_is_half_the_trained_length(tiny: Model) -> None:
    # (64 - 1 - 8) / (16 - 1 - 8)
    remap = LeakyRerope().attention(tiny, 64).as_data()["remap"]
    assert (remap["window"], remap["key"]["divisor"]) == (8, pytest.approx(55 / 7))


def test_a_window_as_long_as_the_trained_length_cannot_fit_a_longer_text(tiny: Model) -> None:
    for window in (15, 20):
        with pytest.raises(Refused, match=f"leave distances below 15, the largest that tiny knows, got {window}"):
            LeakyRerope(window=window).attention(tiny, 64)
    np.testing.assert_array_equal(distances(LeakyRerope(window=20), tiny, 21), plain(21))
    with pytest.raises(Refused, match="leave distances"):
        LeakyRerope(window=20).attention(tiny, 22)


def test_a_model_of_three_tokens_can_still_be_stretched() -> None:
    assert distances(LeakyRerope(), trained_on(3), 50).max() == pytest.approx(2)


def test_bad_parameters_are_refused() -> None:
    for window in (0, 2.5):
        with pytest.raises(
            ValueError, match=f"leaky_rerope's window must be a whole number of at least 1, got {window}"
        ):
            LeakyRerope(window=window)  # type: ignore[arg-type]
    for slowdown in (0, -1, math.nan):
        with pytest.raises(ValueError, match="leaky_rerope's slowdown must be above 0"):
            LeakyRerope(slowdown=slowdown)
