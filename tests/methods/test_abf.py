import math
from collections.abc import Callable

import numpy as np
import pytest

from lexbench import Model, Refused
from lexbench.attention import Floats
from lexbench.methods.abf import Abf


def test_the_models_own_base_is_the_model(llama3_1: Model, frequencies: Callable[..., Floats]) -> None:
    np.testing.assert_array_equal(frequencies(Abf(base=500_000), llama3_1, 10**6), llama3_1.inv_freq())


def test_frequencies_are_powers_of_the_new_base_at_every_length(
    llama2: Model, frequencies: Callable[..., Floats]
) -> None:
    expected = [math.exp(-2 * pair / 128 * math.log(1e6)) for pair in range(64)]
    for length in (16, 4096, 65536):
        np.testing.assert_allclose(frequencies(Abf(base=1e6), llama2, length), expected, rtol=1e-13)


def test_a_quarter_of_the_head_rotates_with_its_own_dimensions(
    partial: Model, frequencies: Callable[..., Floats]
) -> None:
    expected = [500_000.0 ** (-pair / 8) for pair in range(8)]
    np.testing.assert_allclose(frequencies(Abf(), partial, 4096), expected, rtol=1e-13)


@pytest.mark.parametrize("base", [1, 0, -5, math.inf, math.nan])
def test_a_base_that_is_none_is_refused(base: float) -> None:
    with pytest.raises(ValueError, match="abf's base must be finite and above 1"):
        Abf(base=base)


def test_models_without_plain_rope_are_refused(nope: Model, scaled: Model) -> None:
    for model in (nope, scaled):
        with pytest.raises(Refused, match=model.name):
            Abf().attention(model, 1024)
