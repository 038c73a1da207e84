"""Plain values against annotations."""

from typing import Any

import pytest

from lexbench.core.values import fits


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
    assert fits(value, hint) is expected
