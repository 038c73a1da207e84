"""Keys of methods: data that a label shows, and that comes back from it."""

import json
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lexbench.core.method_key import BASELINE_METHOD, MethodKey, Purpose, label_of, parse_label, sort_by_name
from lexbench.core.text import plain_text

NUMBERS = st.one_of(st.integers(), st.floats(allow_nan=False), st.sampled_from([1e-05, 1e22, 8, 8.0, True, 0, -0.0]))
PLAIN = st.one_of(st.none(), st.booleans(), NUMBERS, st.text())
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=4)
NAMES = st.one_of(
    st.text(), st.sampled_from(["yarn", "a+b", "x(a=1)", "pi #2", "'q'", "", " ", "a  b", "at", "##[x]", "a=b"])
)
PARTS = st.tuples(NAMES, st.dictionaries(NAMES, VALUES, max_size=3).map(lambda each: tuple(each.items())))
KEYS = st.builds(
    MethodKey,
    st.lists(PARTS, min_size=1, max_size=3).map(tuple),
    at=st.none() | st.integers(1, 1 << 27),
    over=st.sampled_from(["scaled", "plain"]),
    layers=st.sampled_from([None, "all", "global"]),
    twin=st.integers(1, 3),
)


def facts(key: MethodKey) -> str:
    """All fields of a key, types of values included."""
    return repr((key.parts, key.at, key.over, key.layers, key.twin))


@settings(max_examples=100, deadline=None)
@given(KEYS)
@example(MethodKey((("rope(rope_type=yarn)", ()),), twin=2))
@example(MethodKey((("rope(rope_type=yarn) #2", ()),)))
@example(MethodKey((("a", ()), ("b", (("at", 8),)))))
@example(MethodKey((("a", ()), ("b", ())), at=8))
def test_a_label_gives_its_key_back_and_stays_as_it_is_in_one_line(key: MethodKey) -> None:
    label = label_of(key)
    assert facts(parse_label(label)) == facts(key)
    assert plain_text(label) == label, "reports print it as it is"


@settings(max_examples=100, deadline=None)
@given(KEYS, KEYS)
def test_two_keys_never_share_a_label(one: MethodKey, other: MethodKey) -> None:
    assert (label_of(one) == label_of(other)) == (facts(one) == facts(other)) == (one == other)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(KEYS)
def test_a_key_goes_through_a_file(key: MethodKey) -> None:
    assert facts(MethodKey.from_data(json.loads(json.dumps(key.as_data())))) == facts(key)
    purpose = Purpose(key, 8.0, price_only=True)
    assert Purpose.from_data(json.loads(json.dumps(purpose.as_data()))) == purpose


@given(st.text())
def test_any_text_is_a_method(text: str) -> None:
    """A file of another program may call a method anything."""
    key = parse_label(text)
    assert facts(parse_label(label_of(key))) == facts(key)


@pytest.mark.parametrize(
    ("label", "key"),
    [
        ("none", BASELINE_METHOD),
        ("yarn(factor=8.0)", MethodKey.of_method("yarn", factor=8.0)),
        ("x(rate=1e-05)", MethodKey.of_method("x", rate=1e-05)),
        ("x(rate=1e+22)", MethodKey.of_method("x", rate=1e22)),
        ("x(a=(1, 2), b='y(z)')", MethodKey.of_method("x", a=[1, 2], b="y(z)")),
        ("yarn(factor=8.0, at=2048)", MethodKey((("yarn", (("factor", 8.0),)),), at=2048)),
        ("yarn(over='plain', layers='all')", MethodKey((("yarn", ()),), over="plain", layers="all")),
        (
            "yarn(factor=8.0)+log_n(over='plain')(at=1024)",
            MethodKey((("yarn", (("factor", 8.0),)), ("log_n", ())), at=1024, over="plain"),
        ),
        ("pi #2", MethodKey((("pi", ()),), twin=2)),
        ("rope(rope_type=yarn, factor=4.0)", MethodKey.of_method("rope(rope_type=yarn, factor=4.0)")),
        ("yarn at 512", MethodKey.of_method("yarn at 512")),
    ],
)
def test_labels_of_earlier_versions(label: str, key: MethodKey) -> None:
    assert parse_label(label) == key
    assert label_of(key) == label


def test_numbers_of_different_types_are_different_parameters() -> None:
    """As in an identity, where 8 and 8.0 are two cells."""
    assert len({MethodKey.of_method("x", a=value) for value in (1, 1.0, True, "1")}) == 4


@pytest.mark.parametrize("value", [math.nan, [1.0, math.nan], {"a": math.nan}])
def test_a_parameter_that_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"method\.rate of x must be a number"):
        MethodKey.of_method("x", rate=value)


def test_rows_stand_by_name_with_the_baseline_first() -> None:
    keys = [MethodKey.of_method(name) for name in ("yarn", "alibi", "none", "pi")]
    twin = MethodKey((("none", ()),), twin=2)
    assert [str(key) for key in sort_by_name([*keys, twin])] == ["none", "none #2", "alibi", "pi", "yarn"]


@pytest.mark.parametrize("data", [None, {}, {"parts": []}, {"parts": [["x", []]], "more": 1}, {"parts": [[1, []]]}])
def test_a_wrong_key_in_a_file_is_an_error(data: Any) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        MethodKey.from_data(data)
