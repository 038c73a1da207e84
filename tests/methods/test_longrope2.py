import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lexbench import Model, Refused
from lexbench.core.attention import Floats
from lexbench.methods.abf import Abf
from lexbench.methods.longrope2 import Longrope2
from lexbench.methods.rotary import critical_dimension


def test_nothing_changes_within_the_trained_length(llama3_1: Model) -> None:
    for method in (Longrope2(), Longrope2(factor=16), Longrope2(factor=16, attention_factor=1.5)):
        for length in (1, 8192):
            attention = method.attention(llama3_1, length)
            np.testing.assert_array_equal(attention.inv_freq, llama3_1.inv_freq())
            assert attention.scale == 1.0


def test_theory_finds_the_papers_critical_dimensions(llama2: Model, llama3_1: Model) -> None:
    # Pairs 31 and 35 in LongRoPE2; 92 dimensions for Llama 2 in arXiv 2310.05209.
    phi3 = Model(name="Phi-3-mini", trained_length=2048, head_dim=96, rope_base=10_000.0)
    assert [critical_dimension(model) for model in (phi3, llama3_1, llama2)] == [62, 70, 92]


def test_the_critical_pair_is_the_first_that_never_came_round(
    gpt_oss: Model, partial: Model, tiny: Model, llama2: Model
) -> None:
    for model in (gpt_oss, partial, tiny, llama2, replace(llama2, trained_length=3)):
        turned = model.trained_length * model.inv_freq() >= 2 * math.pi
        assert critical_dimension(model) == 2 * np.count_nonzero(turned)
    assert critical_dimension(replace(llama2, trained_length=10**6)) == 128


@pytest.mark.parametrize(("given", "critical"), [({}, 35), ({"critical_pair": 30}, 30)])
def test_pairs_from_the_critical_one_on_are_slowed_by_s_and_those_before_by_another_base(
    llama3_1: Model, given: dict[str, Any], critical: int, frequencies: Callable[..., Floats]
) -> None:
    # The base at which the critical pair turns 16 times slower, b 16^(d / 2c).
    base = 500_000.0 * 16 ** (64 / critical)
    expected = [base ** (-pair / 64) if pair < critical else 500_000.0 ** (-pair / 64) / 16 for pair in range(64)]
    for method, length in ((Longrope2(**given), 131072), (Longrope2(factor=16, **given), 8193)):
        np.testing.assert_allclose(frequencies(method, llama3_1, length), expected, rtol=1e-12)


def test_where_theory_is_a_whole_pair_the_fast_ones_follow_the_scaling_law(frequencies: Callable[..., Floats]) -> None:
    # b^(3/8) = 40 is the number of radians within L.
    model = Model(name="whole", trained_length=round(80 * math.pi), head_dim=16, rope_base=40.0 ** (8 / 3))
    abf = frequencies(Abf(), model, 4 * model.trained_length)
    got = frequencies(Longrope2(critical_pair=3), model, 4 * model.trained_length)
    np.testing.assert_allclose(got[:4], abf[:4], rtol=1e-3)
    np.testing.assert_allclose(got[3:], model.inv_freq()[3:] / 4, rtol=1e-14)


def test_factors_given_are_taken_beyond_the_critical_pair(tiny: Model, frequencies: Callable[..., Floats]) -> None:
    got = frequencies(Longrope2(factor=4, critical_pair=2, upper_factors=[4.5, 8]), tiny, 64)
    np.testing.assert_allclose(got, [1, 0.1 / math.sqrt(4.5), 0.01 / 4.5, 0.001 / 8], rtol=1e-14)


def test_the_scale_is_that_of_longrope_beyond_the_trained_length(llama2: Model) -> None:
    assert Longrope2().attention(llama2, 131072).scale == pytest.approx(math.sqrt(17 / 12), rel=1e-14)
    assert Longrope2(factor=32).attention(llama2, 4097).scale == pytest.approx(math.sqrt(17 / 12), rel=1e-14)
    assert Longrope2(attention_factor=1.25).attention(llama2, 4097).scale == 1.25


def test_a_model_without_slow_pairs_is_scaled_by_a_base_alone(
    llama2: Model, frequencies: Callable[..., Floats]
) -> None:
    model = replace(llama2, trained_length=10**6)
    expected = [(10_000.0 * 2) ** (-pair / 64) for pair in range(64)]
    np.testing.assert_allclose(frequencies(Longrope2(), model, 2 * 10**6), expected, rtol=1e-12)


def test_a_model_without_fast_pairs_keeps_the_first_alone(tiny: Model, frequencies: Callable[..., Floats]) -> None:
    inv_freq = frequencies(Longrope2(), replace(tiny, trained_length=4), 8)
    np.testing.assert_allclose(inv_freq, [1, 0.05, 0.005, 0.0005], rtol=1e-13)


def test_a_trained_length_given_takes_the_place_of_the_models(
    llama2: Model, frequencies: Callable[..., Floats]
) -> None:
    inv_freq = frequencies(Longrope2(trained_length=1024), llama2, 4096)
    # 64 ln(1024 / 2 pi) / ln 10000 is 35.4.
    assert inv_freq[35] == pytest.approx(10_000.0 ** (-35 / 64) * 4 ** (-35 / 36), rel=1e-12)
    assert inv_freq[36] == pytest.approx(10_000.0 ** (-36 / 64) / 4, rel=1e-12)


def test_what_does_not_fit_the_model_is_refused(tiny: Model) -> None:
    with pytest.raises(Refused, match="critical_pair must be at most the 4 pairs of tiny, got 5: lower critical_pair"):
        Longrope2(critical_pair=5).attention(tiny, 64)
    with pytest.raises(Refused, match="longrope2 has 3 upper_factors, tiny has 2 pairs from pair 2 on: give one for"):
        Longrope2(factor=4, critical_pair=2, upper_factors=[4, 4, 4]).attention(tiny, 64)


def test_bad_parameters_are_refused() -> None:
    for critical in (0, -1, 2.5):
        with pytest.raises(ValueError, match="longrope2's critical_pair must be a whole number of at least 1, got"):
            Longrope2(critical_pair=critical)  # type: ignore[arg-type]
    for upper in ([3.9, 5], [4, 8.1], [5, 4.5]):
        with pytest.raises(ValueError, match="longrope2's upper_factors must rise from 4 to 8 at most, got"):
            Longrope2(factor=4, upper_factors=upper)
    with pytest.raises(ValueError, match="upper_factors were searched for one factor, got none: give factor as well"):
        Longrope2(upper_factors=[4, 5])
    wrong: list[Any] = [[], [1, 0], 4.0]
    for upper in wrong:
        with pytest.raises(ValueError, match="longrope2's upper_factors must be a list of finite numbers above 0"):
            Longrope2(factor=4, upper_factors=upper)
    with pytest.raises(ValueError, match="longrope2's factor must be finite and at least 1"):
        Longrope2(factor=0.5)
    with pytest.raises(ValueError, match="longrope2's attention_factor must be finite and above 0"):
        Longrope2(attention_factor=-1)
    with pytest.raises(ValueError, match="longrope2's trained_length must be at least 1"):
        Longrope2(trained_length=0)
