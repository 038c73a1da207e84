import math
from collections.abc import Callable

import numpy as np
import pytest

from lexbench import Model
from lexbench.core.attention import Floats
from lexbench.methods.pi import Pi


def test_a_factor_of_one_is_the_model(llama2: Model, frequencies: Callable[..., Floats]) -> None:
    for method, length in ((Pi(factor=1), 32768), (Pi(), 4096), (Pi(), 100)):
        np.testing.assert_array_equal(frequencies(method, llama2, length), llama2.inv_freq())


def test_position_s_times_t_has_the_angles_of_position_t(llama2: Model, frequencies: Callable[..., Floats]) -> None:
    inv_freq = frequencies(Pi(factor=8), llama2, 32768)
    for pair in (0, 1, 31, 63):
        angle = 4095 * 10_000.0 ** (-2 * pair / 128)
        np.testing.assert_allclose(8 * 4095 * inv_freq[pair], angle, rtol=1e-13)


def test_the_factor_left_out_is_length_over_trained_length(llama2: Model, frequencies: Callable[..., Floats]) -> None:
    left_out = frequencies(Pi(), llama2, 6144)
    np.testing.assert_array_equal(left_out, frequencies(Pi(factor=1.5), llama2, 123))


@pytest.mark.parametrize("name", ["tiny", "llama2", "partial"])
def test_transformers_has_the_same_numbers(
    name: str, request: pytest.FixtureRequest, assert_as_transformers: Callable[..., None]
) -> None:
    model = request.getfixturevalue(name)
    assert_as_transformers(Pi(factor=4).attention(model, 99), model, "linear", factor=4.0)


@pytest.mark.parametrize("factor", [0.5, 0, -2, math.inf, math.nan])
def test_a_factor_that_does_not_stretch_is_refused(factor: float) -> None:
    with pytest.raises(ValueError, match="pi's factor must be finite and at least 1"):
        Pi(factor=factor)
