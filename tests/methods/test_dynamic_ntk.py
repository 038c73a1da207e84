import math
from collections.abc import Callable

import numpy as np
import pytest

from lexbench import Model, Refused
from lexbench.core.attention import Floats
from lexbench.methods.dynamic_ntk import DynamicNtk


def closed_form(model: Model, rate: float, longest: int) -> list[float]:
    """The frequencies slowed one by one, without ever making a base."""
    d = model.rotated
    stretch = 1 + rate * (longest / model.trained_length - 1)
    assert model.rope_base is not None
    return [model.rope_base ** (-2 * pair / d) * stretch ** (-2 * pair / (d - 2)) for pair in range(d // 2)]


@pytest.mark.parametrize("rate", [1.0, 4.0])
def test_nothing_changes_within_the_trained_length(
    llama2: Model, rate: float, frequencies: Callable[..., Floats]
) -> None:
    for length in (1, 100, 4096):
        np.testing.assert_array_equal(frequencies(DynamicNtk(factor=rate), llama2, length), llama2.inv_freq())


@pytest.mark.parametrize("rate", [1.0, 2.0, 4.0])
def test_the_base_grows_with_the_cells_length(llama2: Model, rate: float, frequencies: Callable[..., Floats]) -> None:
    for length in (4097, 8192, 20000):
        expected = closed_form(llama2, rate, length)
        np.testing.assert_allclose(frequencies(DynamicNtk(factor=rate), llama2, length), expected, rtol=1e-12)


def test_at_s_times_the_trained_length_the_last_pair_is_slowed_by_s_squared_minus_s_plus_1(
    tiny: Model, frequencies: Callable[..., Floats]
) -> None:
    inv_freq = frequencies(DynamicNtk(factor=4), tiny, 64)
    assert inv_freq[-1] == pytest.approx(0.001 / 13, rel=1e-12)


def test_what_was_measured_before_leaves_no_trace(tiny: Model, frequencies: Callable[..., Floats]) -> None:
    method = DynamicNtk(factor=2)
    for length, longest in ((16, 16), (64, 64), (32, 32), (16, 16), (15, 16), (64, 64)):
        expected = closed_form(tiny, 2, longest)
        np.testing.assert_allclose(frequencies(method, tiny, length), expected, rtol=1e-12)


def test_the_static_policy_has_the_targets_frequencies_at_every_length(
    llama2: Model, frequencies: Callable[..., Floats]
) -> None:
    method = DynamicNtk(policy="static", target_length=16384)
    for length in (10, 4096, 16384, 50000):
        np.testing.assert_allclose(frequencies(method, llama2, length), closed_form(llama2, 1, 16384), rtol=1e-12)


def test_hf_dynamic_leaves_the_frequencies_to_transformers(llama2: Model) -> None:
    for length in (10, 16384):
        attention = DynamicNtk(factor=2, policy="hf_dynamic").attention(llama2, length)
        assert attention.as_data() == {"dynamic": {"kind": "Dynamic", "factor": 2, "trained_length": 4096}}
    given = DynamicNtk(factor=2, policy="hf_dynamic", trained_length=1024).attention(llama2, 10)
    assert given.as_data()["dynamic"]["trained_length"] == 1024


@pytest.mark.parametrize("name", ["tiny", "llama2", "partial"])
@pytest.mark.parametrize("rate", [1.0, 3.0])
@pytest.mark.parametrize("multiple", [0.5, 1, 1.25, 8])
def test_a_fresh_transformers_model_has_the_same_numbers(
    name: str, rate: float, multiple: float, request: pytest.FixtureRequest, assert_as_transformers: Callable[..., None]
) -> None:
    model = request.getfixturevalue(name)
    length = int(multiple * model.trained_length)
    attention = DynamicNtk(factor=rate).attention(model, length)
    assert_as_transformers(attention, model, "dynamic", length=length, factor=rate)


def test_a_trained_length_given_takes_the_place_of_the_models(
    llama2: Model, frequencies: Callable[..., Floats]
) -> None:
    inv_freq = frequencies(DynamicNtk(trained_length=1024), llama2, 4096)
    assert inv_freq[-1] == pytest.approx(10_000.0 ** (-126 / 128) / 4, rel=1e-12)


def test_bad_parameters_are_refused(llama2: Model) -> None:
    for rate in (0.5, math.inf, math.nan):
        with pytest.raises(ValueError, match="dynamic_ntk's factor must be finite and at least 1"):
            DynamicNtk(factor=rate)
    with pytest.raises(
        ValueError, match="policy must be local_static or static or hf_dynamic or per_position, got hf: choose one"
    ):
        DynamicNtk(policy="hf")
    with pytest.raises(ValueError, match="target_length belongs to policy=static, got None"):
        DynamicNtk(policy="static")
    with pytest.raises(ValueError, match="target_length belongs to policy=static, got 8192"):
        DynamicNtk(target_length=8192)
    with pytest.raises(ValueError, match="target_length belongs to policy=static, got 8192 with policy=hf_dynamic"):
        DynamicNtk(policy="hf_dynamic", target_length=8192)
    with pytest.raises(ValueError, match="trained_length must be at least 1, got 0"):
        DynamicNtk(trained_length=0)
    with pytest.raises(Refused, match="at least the trained length 4096, got 2048"):
        DynamicNtk(policy="static", target_length=2048).attention(llama2, 8192)


def test_models_without_plain_rope_of_four_dimensions_are_refused(nope: Model, scaled: Model) -> None:
    narrow = Model(name="narrow", trained_length=16, head_dim=2, rope_base=10_000.0)
    for model in (nope, scaled, narrow):
        with pytest.raises(Refused, match=model.name):
            DynamicNtk().attention(model, 1024)
        with pytest.raises(Refused, match=model.name):
            DynamicNtk(policy="hf_dynamic").attention(model, 1024)


def test_frequencies_per_position_have_no_export(tiny: Model) -> None:
    with pytest.raises(Refused, match="its frequencies differ by query"):
        DynamicNtk(policy="per_position").rope_parameters(tiny, 64)
