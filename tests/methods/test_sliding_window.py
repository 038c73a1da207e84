import numpy as np
import pytest

from lexbench import Model
from lexbench.methods.sliding_window import SlidingWindow
from tests.methods.remaps import distances, plain


@pytest.mark.parametrize("window", [1, 4, 19])
def test_each_query_sees_the_last_keys_at_their_distances(tiny: Model, window: int) -> None:
    expected = [[i - j if 0 <= i - j < window else -1 for j in range(20)] for i in range(20)]
    np.testing.assert_array_equal(distances(SlidingWindow(window=window), tiny, 20), expected)


def test_left_out_the_window_is_the_trained_length(tiny: Model) -> None:
    np.testing.assert_array_equal(distances(SlidingWindow(), tiny, 16), plain(16))
    last = distances(SlidingWindow(), tiny, 18)[17]
    np.testing.assert_array_equal(last, [-1, -1, *range(15, -1, -1)])


def test_any_model_can_have_a_window(nope: Model, scaled: Model) -> None:
    for model in (nope, scaled):
        assert SlidingWindow().attention(model, 1024).slots() == ("mask",)


def test_a_window_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="sliding_window's window must be a whole number of at least 1, got 0"):
        SlidingWindow(window=0)
