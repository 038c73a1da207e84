import numpy as np
import pytest

from lexbench import Model, Refused
from lexbench.methods.string import String
from tests.methods.remaps import distances, plain, trained_on


@pytest.mark.parametrize(("shift", "window"), [(4, 1), (8, 3), (10, 10), (1, 1), (40, 2)])
def test_from_the_shift_on_distances_resume_at_the_window(tiny: Model, shift: int, window: int) -> None:
    expected = [
        [-1 if j > i else i - j if i - j < shift else i - j - shift + window for j in range(30)] for i in range(30)
    ]
    np.testing.assert_array_equal(distances(String(shift=shift, window=window), tiny, 30), expected)


def test_defaults_are_those_of_the_released_script() -> None:
    # Its example: 128k tokens, shifted_offset 43253, local value 128.
    remap = String().attention(trained_on(131072), 131072).as_data()["remap"]
    assert (remap["window"], remap["query"]["offset"], remap["key"]["offset"]) == (43253, 128 - 43253, 0)


def test_the_shift_follows_the_length_in_use_not_the_trained_one(llama2: Model) -> None:
    assert String().attention(llama2, 1000).as_data()["remap"]["window"] == 330
    assert String().attention(llama2, 4000).as_data()["remap"]["window"] == 1320


def test_in_short_texts_the_window_is_a_quarter_of_the_shift(tiny: Model) -> None:
    seen = distances(String(), tiny, 100)
    assert seen[33, 0] == 33 // 4
    assert seen.max() == 99 - 33 + 8


def test_up_to_the_shift_it_is_the_model(tiny: Model) -> None:
    np.testing.assert_array_equal(distances(String(shift=20, window=5), tiny, 20), plain(20))
    for length in (1, 2, 5):
        np.testing.assert_array_equal(distances(String(), tiny, length), plain(length))


def test_a_window_above_the_shift_is_refused(tiny: Model) -> None:
    with pytest.raises(ValueError, match="at most its shift, got window 5 and shift 4"):
        String(shift=4, window=5)
    with pytest.raises(Refused, match="at most its shift, 33 at 100 tokens, got 34"):
        String(window=34).attention(tiny, 100)


def test_counts_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="string's shift must be a whole number of at least 1, got 0"):
        String(shift=0)
    with pytest.raises(ValueError, match="string's window must be a whole number of at least 1, got 0"):
        String(window=0)
