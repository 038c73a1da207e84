"""What methods that change frequencies share: bounds of parameters, bases and scales by hand."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lexbench import Model, Refused
from lexbench.methods import rotary


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (
            lambda value: rotary.check_factor("pi", value),
            (None, 1, 1.0, 1e6),
            (0.999, 0, -2, math.inf, math.nan, 1.1e6),
        ),
        (lambda value: rotary.check_trained_length("pi", value), (None, 1, 4096), (0, -1)),
        (
            lambda value: rotary.check_attention_factor("yarn", value, "m"),
            (None, 1e-9, 0.5, 2.0),
            (0, -1.0, math.inf, math.nan),
        ),
        (lambda value: rotary.check_ramp("yarn", *value), ((0, 1), (1, 32)), ((1, 1), (-0.1, 1), (2, 1))),
        (
            lambda value: rotary.check_pair_factors("long", value),
            (None, [1e-9], (1, 2.5)),
            ([], [0], [-1.0], [math.inf], [1, "2"], 3.0),
        ),
    ],
    ids=["factor", "trained length", "attention factor", "ramp", "factors of pairs"],
)
def test_bounds_are_those_that_the_messages_state(check: Callable[[Any], Any], good: Any, bad: Any) -> None:
    for value in good:
        check(value)
    for value in bad:
        with pytest.raises(ValueError, match=r"must|needs"):
            check(value)


def test_factors_of_pairs_become_a_tuple() -> None:
    assert rotary.check_pair_factors("long", [1, 2.5]) == (1, 2.5)
    assert rotary.check_pair_factors("long", None) is None


def test_a_factor_is_the_stretch_and_never_below_one(tiny: Model) -> None:
    assert [rotary.resolve_factor(None, tiny, length) for length in (8, 16, 17, 64)] == [1.0, 1.0, 17 / 16, 4.0]
    assert rotary.resolve_factor(2.5, tiny, 640) == 2.5


def test_an_ntk_base_slows_the_last_pair_by_the_factor_and_the_first_not_at_all(tiny: Model) -> None:
    base = rotary.ntk_base(tiny, 4.0)
    assert base == pytest.approx(10_000 * 4 ** (8 / 6), rel=1e-14)
    slowed = replace(tiny, rope_base=base).inv_freq()
    np.testing.assert_allclose(tiny.inv_freq()[[0, -1]] / slowed[[0, -1]], [1.0, 4.0], rtol=1e-12)
    assert rotary.ntk_base(replace(tiny, head_dim=4), 3.0) == pytest.approx(90_000.0)  # s^(4 / 2)
    with pytest.raises(Refused, match="at least 4 rotary dimensions, tiny has 2: use method=pi"):
        rotary.ntk_base(replace(tiny, head_dim=2), 4.0)


def test_the_base_for_a_length_gives_the_same_pair_one_turn(llama2: Model) -> None:
    for length, longest in ((100, 4096), (4096, 4096), (32768, 32768)):
        base = rotary.base_for_length(llama2, length)
        pair = 64 * math.log(4096 / (2 * math.pi)) / math.log(10_000)  # the one that turns once in training
        assert longest * base ** (-pair / 64) == pytest.approx(2 * math.pi, rel=1e-12)
    assert rotary.base_for_length(replace(llama2, trained_length=7), 7) == pytest.approx(10_000)
    with pytest.raises(Refused, match="trained length of at least 7, Llama-2 has 6"):
        rotary.base_for_length(replace(llama2, trained_length=6), 100)


def test_the_critical_dimension_counts_pairs_with_a_full_turn(llama2: Model, tiny: Model) -> None:
    assert rotary.critical_dimension(llama2) == 92  # published for Llama 2 (Liu et al. 2023)
    for model in (llama2, tiny, replace(tiny, trained_length=8), replace(llama2, trained_length=70_000)):
        turns = model.trained_length * model.inv_freq() / (2 * math.pi)
        assert rotary.critical_dimension(model) == 2 * int((turns > 1).sum())
    assert rotary.critical_dimension(replace(tiny, trained_length=1)) == 0
    assert rotary.critical_dimension(replace(tiny, trained_length=10**6)) == 8
    listed = replace(tiny, frequencies=(3.0, 0.5, 0.3, 0.0))  # turns in 16 tokens: 7.6, 1.3, 0.8, 0
    assert rotary.critical_dimension(listed) == 4


def test_the_pair_with_so_many_rotations_turns_so_often(llama2: Model, tiny: Model) -> None:
    for rotations in (0.5, 1, 32):
        pair = rotary.pair_with_rotations(llama2, rotations)
        assert 4096 * 10_000 ** (-pair / 64) == pytest.approx(2 * math.pi * rotations, rel=1e-12)
    listed = replace(tiny, trained_length=100, frequencies=(1.0, 0.5, 0.05, 0.0))
    turns = [100 * each / (2 * math.pi) for each in (1.0, 0.5, 0.05)]
    for place, turn in enumerate(turns):
        assert rotary.pair_with_rotations(listed, turn) == pytest.approx(place, abs=1e-12)
    between = math.sqrt(turns[1] * turns[2])  # half of the way by logarithms
    assert rotary.pair_with_rotations(listed, between) == pytest.approx(1.5)
    step = 10_000 ** (1 / 4)  # from a pair to the next: b^(2 / 8)
    assert rotary.pair_with_rotations(listed, turns[0] * step) == pytest.approx(-1)
    assert rotary.pair_with_rotations(listed, turns[2] / step**2) == pytest.approx(4)
    still = replace(tiny, trained_length=100, frequencies=(0.0, 0.0, 0.0, 0.0))
    assert rotary.pair_with_rotations(still, 100 / (2 * math.pi)) == pytest.approx(0)  # as one of 1 radian


def test_scales_of_cos_and_sin() -> None:
    model = Model(name="m", trained_length=2, head_dim=8, rope_base=1e4)
    assert rotary.su_scale(model, 8) == pytest.approx(2.0)  # sqrt(1 + 3)
    assert rotary.su_scale(replace(model, trained_length=1), 1) == 1.0
    with pytest.raises(Refused, match="trained length of at least 2, m has 1"):
        rotary.su_scale(replace(model, trained_length=1), 1.5)
    assert rotary.yarn_scale(math.exp(3)) == pytest.approx(1.3)
    assert rotary.yarn_scale(1) == 1.0


def test_transformers_gets_a_share_that_gives_back_the_rotated_dimensions(tiny: Model) -> None:
    assert rotary.transformers_rope_parameters(tiny, "linear", factor=4.0) == {
        "rope_type": "linear",
        "rope_theta": 10_000.0,
        "factor": 4.0,
    }
    for head, rotated in ((44, 30), (64, 16), (96, 72), (100, 58)):
        model = replace(tiny, head_dim=head, rotary_dim=rotated)
        share = rotary.transformers_rope_parameters(model, "default")["partial_rotary_factor"]
        assert int(head * share) == rotated and share == pytest.approx(rotated / head)
    with pytest.raises(Refused, match="tiny has frequencies of its own"):
        rotary.transformers_rope_parameters(replace(tiny, frequencies=(1.0, 0.5, 0.2, 0.1)), "default")


def test_pairs_are_slowed_the_less_the_more_they_turned(tiny: Model) -> None:
    model = replace(tiny, trained_length=1000)
    plain = np.array([1.0, 0.1, 0.01, 0.001])
    turns = 1000 * plain / (2 * math.pi)  # 159, 15.9, 1.59, 0.159
    kept = [1.0, (turns[1] - 1) / 31, (turns[2] - 1) / 31, 0.0]
    expected = [each * (share + (1 - share) / 4) for each, share in zip(plain, kept, strict=True)]
    np.testing.assert_allclose(rotary.blend_by_rotations(model, 4.0, 1.0, 32.0), expected, rtol=1e-12)
