import numpy as np
import pytest

from lexbench import Model, Refused
from lexbench.methods.lambda_mask import LambdaMask
from tests.methods.remaps import distances, plain


@pytest.mark.parametrize(("window", "sinks"), [(5, 2), (4, 0), (1, 1), (8, 10), (30, 2)])
def test_the_last_keys_and_the_first_are_seen_none_further_than_the_window(
    tiny: Model, window: int, sinks: int
) -> None:
    expected = [
        [min(i - j, window) if j <= i and (i - j < window or j < sinks) else -1 for j in range(30)] for i in range(30)
    ]
    np.testing.assert_array_equal(distances(LambdaMask(window=window, sinks=sinks), tiny, 30), expected)


def test_left_out_the_window_is_the_trained_length_and_ten_tokens_are_kept(tiny: Model) -> None:
    last = distances(LambdaMask(), tiny, 40)[39]
    np.testing.assert_array_equal(last, [16] * 10 + [-1] * 14 + list(range(15, -1, -1)))


def test_up_to_the_window_it_is_the_model(tiny: Model) -> None:
    np.testing.assert_array_equal(distances(LambdaMask(), tiny, 16), plain(16))


def test_models_that_scale_their_angles_keep_them(scaled: Model) -> None:
    assert LambdaMask().attention(scaled, 8192).slots() == ("remap", "mask")


def test_models_without_rotary_positions_are_refused(nope: Model) -> None:
    with pytest.raises(Refused, match="nope has no rotary positions to remap"):
        LambdaMask().attention(nope, 1024)


def test_bad_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="lambda_mask's window must be a whole number of at least 1, got 0"):
        LambdaMask(window=0)
    with pytest.raises(ValueError, match="lambda_mask's sinks must be a whole number of at least 0, got -1"):
        LambdaMask(sinks=-1)
