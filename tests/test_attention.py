"""The slots of an Attention, against their definitions worked out by hand."""

import json
import math
from collections.abc import Callable

import numpy as np
import pytest

from lexbench import Attention, Line, LogScale, Remap, Slopes, Window

POSITIONS = np.arange(6)


def test_a_line_divides_floors_and_shifts() -> None:
    np.testing.assert_array_equal(Line()(POSITIONS), [0, 1, 2, 3, 4, 5])
    np.testing.assert_array_equal(Line(divisor=2, offset=10)(POSITIONS), [10, 10.5, 11, 11.5, 12, 12.5])
    np.testing.assert_array_equal(Line(divisor=2, offset=10, floor=True)(POSITIONS), [10, 10, 11, 11, 12, 12])


def test_a_line_of_infinite_divisor_is_constant() -> None:
    for floor in (False, True):
        np.testing.assert_array_equal(Line(divisor=math.inf, offset=7, floor=floor)(POSITIONS), [7] * 6)


def test_log_scale_counts_keys_in_units_of_the_trained_length() -> None:
    # Query i sees i + 1 keys: sqrt(16) = 4 keys give 1/2, 16 give 1, 16^2 give 2.
    positions = np.array([0, 3, 15, 255])
    np.testing.assert_allclose(LogScale(trained_length=16, clip=False)(positions), [0, 0.5, 1, 2], atol=1e-15)
    np.testing.assert_allclose(LogScale(trained_length=16)(positions), [1, 1, 1, 2], rtol=1e-15)


def test_a_window_holds_the_query_itself_and_the_sinks() -> None:
    allowed = Window(size=2, sinks=1).allowed(POSITIONS[:4], POSITIONS[:4]) & np.tri(4, dtype=bool)
    np.testing.assert_array_equal(allowed, [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 1, 1]])


def test_a_slope_takes_away_in_proportion_to_distance() -> None:
    bias = Slopes((0.5, 0.25))(np.array([3]), np.array([0, 1, 3]))
    np.testing.assert_array_equal(bias, [[[-1.5, -1.0, 0.0]], [[-0.75, -0.5, 0.0]]])


def test_an_attention_keeps_its_own_frozen_copy_of_the_frequencies() -> None:
    given = np.array([1.0, 0.5])
    attention = Attention(inv_freq=given)
    given[0] = 9
    assert attention.inv_freq is not None
    assert attention.inv_freq.tolist() == [1.0, 0.5]
    with pytest.raises(ValueError, match="read-only"):
        attention.inv_freq[0] = 2


def test_an_empty_attention_uses_no_slot() -> None:
    assert Attention().slots() == ()
    assert Attention().as_data() == {}


def test_an_attention_is_plain_json_that_names_the_kind_of_every_slot() -> None:
    attention = Attention(
        inv_freq=np.array([1.0, 0.1]),
        scale=1.5,
        query_scale=LogScale(trained_length=16),
        remap=Remap(window=4, query=Line(divisor=math.inf, offset=4), key=Line(divisor=math.inf)),
        mask=Window(size=8, sinks=2),
        bias=Slopes((0.5,)),
        layers=(0, 2),
    )
    constant = {"divisor": "inf", "floor": False, "cap": "inf"}
    assert json.loads(json.dumps(attention.as_data(), allow_nan=False)) == {
        "inv_freq": [1.0, 0.1],
        "scale": 1.5,
        "query_scale": {"kind": "LogScale", "trained_length": 16, "clip": True},
        "remap": {
            "kind": "Remap",
            "window": 4,
            "query": {**constant, "offset": 4},
            "key": {**constant, "offset": 0.0},
        },
        "mask": {"kind": "Window", "size": 8, "sinks": 2},
        "bias": {"kind": "Slopes", "slopes": [0.5]},
        "layers": [0, 2],
    }


WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: Attention(inv_freq=np.array([1.0, -0.1])), "at least 0"),
    (lambda: Attention(inv_freq=np.array([1.0, np.nan])), "finite"),
    (lambda: Attention(inv_freq=np.ones((2, 2))), "one dimension"),
    (lambda: Attention(scale=0.0), "scale must be finite and above 0"),
    (lambda: Attention(scale=math.inf), "scale must be finite and above 0"),
    (lambda: Remap(window=0, query=Line(), key=Line()), "window must be at least 1"),
    (lambda: Line(divisor=0), "divisor above 0"),
    (lambda: Line(offset=math.inf), "finite offset"),
    (lambda: LogScale(trained_length=1), "trained length above 1"),
    (lambda: Window(size=0), "size of at least 1"),
    (lambda: Window(size=4, sinks=-1), "no negative sinks"),
]


@pytest.mark.parametrize(("make", "said"), WRONG, ids=[said for _, said in WRONG])
def test_an_impossible_slot_is_refused_where_it_is_made(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()
