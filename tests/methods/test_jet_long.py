import numpy as np
import pytest

from lexbench import Model
from lexbench.methods.jet_long import JetLong
from tests.methods.remaps import distances, plain, trained_on


@pytest.mark.parametrize(("window", "group"), [(1, 2), (3, 3), (7, 4), (6, 1), (40, 3)])
def test_beyond_the_window_positions_are_those_of_groups(tiny: Model, window: int, group: int) -> None:
    expected = [
        [-1 if j > i else i - j if i - j <= window else i // group - j // group for j in range(30)] for i in range(30)
    ]
    np.testing.assert_array_equal(distances(JetLong(window=window, group=group), tiny, 30), expected)


@pytest.mark.parametrize(
    ("length", "group", "largest"), [(1, 1, 0), (16, 1, 15), (17, 2, 8), (32, 2, 15), (33, 3, 10), (64, 4, 15)]
)
def test_left_out_the_group_just_covers_the_length(tiny: Model, length: int, group: int, largest: int) -> None:
    assert JetLong().attention(tiny, length).as_data()["remap"]["key"]["divisor"] == group
    assert distances(JetLong(), tiny, length).max() == largest


def test_left_out_the_window_is_2048_or_half_the_trained_length(llama2: Model) -> None:
    for model, largest_near in ((trained_on(16384), 2048), (llama2, 2048), (trained_on(1000), 500), (trained_on(1), 1)):
        assert JetLong().attention(model, 20000).as_data()["remap"]["window"] == largest_near + 1


def test_within_the_trained_length_it_is_the_model(tiny: Model) -> None:
    for length in (3, 16):
        np.testing.assert_array_equal(distances(JetLong(), tiny, length), plain(length))
    np.testing.assert_array_equal(distances(JetLong(window=9, group=5), tiny, 10), plain(10))


def test_counts_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="jet_long's window must be a whole number of at least 1, got 0"):
        JetLong(window=0)
    with pytest.raises(ValueError, match="jet_long's group must be a whole number of at least 1, got 0"):
        JetLong(group=0)
