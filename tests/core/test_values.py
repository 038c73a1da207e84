"""Plain values against annotations."""

import math
from typing import Any

import numpy as np
import pytest

from lexbench.core.values import has_type, is_whole


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        ((1, "a"), tuple[int, str], True),
        (("a", 1), tuple[int, str], False),
        ((1, 2), tuple[int, int], True),
        ((1, 2, 3), tuple[int, int], False),
        ((1,), tuple[int, int], False),
        ([1, 2], tuple[int, int], False),
        ((1, 2, 3), tuple[int, ...], True),
        ((1, 2, "a"), tuple[int, ...], False),
        ((), tuple[int, ...], True),
    ],
)
def test_a_tuple_is_checked_place_by_place(value: Any, hint: Any, expected: bool) -> None:
    assert has_type(value, hint) is expected


@pytest.mark.parametrize("value", [1, 5, np.int32(3), 2**70])
def test_whole_numbers_of_any_kind_are_whole(value: Any) -> None:
    assert is_whole(value, 1)


@pytest.mark.parametrize("value", [0, -1, True, np.True_, 1.0, 2.5, "1", None, math.nan, [1]])
def test_what_is_no_whole_number_from_one_on_is_none(value: Any) -> None:
    assert not is_whole(value, 1)
