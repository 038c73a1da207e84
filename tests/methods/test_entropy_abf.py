import math
from dataclasses import replace

import numpy as np
import pytest

from lexbench import Model, Refused
from lexbench.core.attention import Attention
from lexbench.methods.abf import Abf
from lexbench.methods.entropy_abf import EntropyAbf
from lexbench.methods.log_n import LogN


def layer(attention: Attention, number: int) -> dict[str, object]:
    return attention.at(number).as_data()


def test_the_first_two_layers_rotate_slower_and_the_others_are_sharpened_as_well(llama2: Model) -> None:
    attention = EntropyAbf().attention(llama2, 16384)
    abf = Abf().attention(llama2, 16384).as_data()
    log_n = LogN().attention(llama2, 16384).as_data()
    for number in (0, 1):
        assert layer(attention, number) == abf
    for number in (2, 3, 31):
        assert layer(attention, number) == {**abf, **log_n}


def test_nothing_changes_within_the_trained_length(llama2: Model) -> None:
    attention = EntropyAbf().attention(llama2, 4096)
    for number in (0, 2):
        np.testing.assert_array_equal(attention.at(number).inv_freq, llama2.inv_freq())
    scale = attention.at(2).query_scale
    assert scale is not None
    assert scale(np.array([0, 100, 4095])).tolist() == [1.0, 1.0, 1.0]
    assert scale(np.array([4096**2 - 1])) == pytest.approx(2, rel=1e-14)


def test_no_exempt_layers_is_what_the_released_code_runs(llama2: Model) -> None:
    attention = EntropyAbf(base=500_000, exempt_layers=0).attention(llama2, 16384)
    assert attention.slots() == ("inv_freq", "query_scale")
    expected = [math.exp(-pair / 64 * math.log(500_000)) for pair in range(64)]
    np.testing.assert_allclose(attention.inv_freq, expected, rtol=1e-13)  # type: ignore[arg-type]


@pytest.mark.parametrize(("layers", "named"), [(2, (0, 1)), (1, (0,)), (24, (0, 1))])
def test_only_layers_that_the_model_has_are_named(llama2: Model, layers: int, named: tuple[int, ...]) -> None:
    assert EntropyAbf().attention(replace(llama2, layers=layers), 16384).layers == named


def test_a_trained_length_given_takes_the_place_of_the_models(llama2: Model) -> None:
    attention = EntropyAbf(trained_length=1024).attention(llama2, 4096)
    base = Abf().rope_parameters(replace(llama2, trained_length=1024), 4096)["rope_theta"]
    assert attention.at(5).inv_freq[1] == pytest.approx(base ** (-1 / 64), rel=1e-13)  # type: ignore[index]
    scale = attention.at(5).query_scale
    assert scale is not None and scale(np.array([4095])) == pytest.approx(12 / 10, rel=1e-14)


def test_bad_parameters_are_refused() -> None:
    for base in (1, -5, math.inf, math.nan):
        with pytest.raises(ValueError, match="entropy_abf's base must be finite and above 1"):
            EntropyAbf(base=base)
    for exempt in (-1, 1.5):
        with pytest.raises(ValueError, match="entropy_abf's exempt_layers must be a whole number of at least 0, got"):
            EntropyAbf(exempt_layers=exempt)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="entropy_abf's trained_length must be at least 1, got 0"):
        EntropyAbf(trained_length=0)


def test_a_trained_length_of_one_is_refused() -> None:
    stub = Model(name="stub", trained_length=1, head_dim=8, rope_base=10_000.0)
    with pytest.raises(Refused, match="at least 2, stub has 1: give trained_length"):
        EntropyAbf(base=1e6).attention(stub, 64)
