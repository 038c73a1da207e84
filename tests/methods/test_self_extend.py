import numpy as np
import pytest

from lexbench import Model, Refused
from lexbench.methods.self_extend import SelfExtend
from tests.methods.remaps import distances, plain, trained_on


def grouped(length: int, group: int, window: int, shift: float) -> list[list[float]]:
    """The paper's formula, pair by pair."""
    far = [[i // group - j // group + shift for j in range(length)] for i in range(length)]
    return [[-1 if j > i else i - j if i - j < window else far[i][j] for j in range(length)] for i in range(length)]


@pytest.mark.parametrize(("group", "window"), [(1, 4), (2, 4), (3, 3), (4, 12), (2, 40)])
def test_far_distances_are_those_of_groups_and_continue_from_the_window(tiny: Model, group: int, window: int) -> None:
    expected = grouped(30, group, window, window - window // group)
    for floor_shift in (None, True, False):
        seen = distances(SelfExtend(group=group, window=window, floor_shift=floor_shift), tiny, 30)
        np.testing.assert_array_equal(seen, expected)


def test_its_published_forms_differ_by_the_fraction_of_a_group(tiny: Model) -> None:
    # W = 10, G = 4: 10 - floor(2.5) = 8 in the paper and in flash decoding, 10 - 2.5 in eager attention.
    for floor_shift, shift in ((True, 8), (False, 7.5)):
        seen = distances(SelfExtend(group=4, window=10, floor_shift=floor_shift), tiny, 30)
        np.testing.assert_array_equal(seen, grouped(30, 4, 10, shift))


def test_a_group_that_does_not_divide_the_window_must_say_which_form_is_meant() -> None:
    with pytest.raises(ValueError, match=r"must divide its window \(else its published forms differ\), got group 4"):
        SelfExtend(group=4, window=10)


@pytest.mark.parametrize("length", [1, 5, 16])
def test_within_the_trained_length_it_is_the_model(tiny: Model, length: int) -> None:
    np.testing.assert_array_equal(distances(SelfExtend(), tiny, length), plain(length))
    np.testing.assert_array_equal(distances(SelfExtend(group=2, window=16), tiny, length), plain(length))


@pytest.mark.parametrize(("length", "group"), [(4097, 2), (8192, 5), (16384, 9), (32768, 19)])
def test_left_out_the_group_is_the_smallest_within_two_thirds_of_the_trained_length(
    llama2: Model, length: int, group: int
) -> None:
    # With W = floor(1024 / G) G: largest (n - 1) // G + W - W / G, at most 2730. Hand-computed, G - 1 just misses it:
    # 4096; 2047 + 1024 - 256 = 2815; 2047 + 1024 - 128 = 2943; 1820 + 1008 - 56 = 2772.
    remap = SelfExtend().attention(llama2, length).as_data()["remap"]
    assert (remap["key"]["divisor"], remap["window"]) == (group, 1024 // group * group)
    assert (length - 1) // group + remap["query"]["offset"] <= 2 * 4096 / 3


def test_where_two_thirds_cannot_be_kept_distances_stay_trained() -> None:
    # L = 8: one window of G = 3 .. 7 and 20 tokens give 6 + 2, 4 + 3, 3 + 4, 3 + 5, 2 + 6: G = 4 is the first within 7.
    for length, group in ((20, 4), (16, 3)):
        attention = SelfExtend().attention(trained_on(8), length)
        assert attention.as_data()["remap"]["key"]["divisor"] == group
        assert distances(SelfExtend(), trained_on(8), length).max() == 7


def test_a_window_given_is_kept_and_divided_by_the_group(llama2: Model) -> None:
    # 8191 // G + 1022 - 1022 / G <= 2730 from G = 5 on; 1022 = 2 * 7 * 73.
    assert SelfExtend(window=1022).attention(llama2, 8192).as_data()["remap"]["key"]["divisor"] == 7
    any_group = SelfExtend(window=1022, floor_shift=True).attention(llama2, 8192).as_data()["remap"]
    assert (any_group["window"], any_group["key"]["divisor"]) == (1022, 5)


def test_a_group_given_has_a_window_of_whole_groups(llama2: Model, tiny: Model) -> None:
    assert SelfExtend(group=10).attention(llama2, 8192).as_data()["remap"]["window"] == 1020
    assert SelfExtend(group=10).attention(tiny, 64).as_data()["remap"]["window"] == 10


def test_what_no_group_reaches_is_refused(tiny: Model) -> None:
    # G = W = 8 reaches (16 - 8) 8 + 8 = 72 tokens, and no other group more.
    assert distances(SelfExtend(), tiny, 72).max() == 15
    with pytest.raises(
        Refused, match="no group that keeps distances below the 16 tokens that tiny knows, asked for 73"
    ):
        SelfExtend().attention(tiny, 73)
    with pytest.raises(Refused, match="no group that keeps distances"):
        SelfExtend(window=32).attention(tiny, 20)


def test_bad_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="self_extend's group must be a whole number of at least 1, got 0"):
        SelfExtend(group=0)
    with pytest.raises(ValueError, match="self_extend's window must be a whole number of at least 1, got 0"):
        SelfExtend(window=0)
