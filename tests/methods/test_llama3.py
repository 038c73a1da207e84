import math
from collections.abc import Callable

import numpy as np
import pytest

from lexbench import Model
from lexbench.core.attention import Floats
from lexbench.methods.llama3 import Llama3


def test_a_factor_of_one_is_the_model(llama3_1: Model, frequencies: Callable[..., Floats]) -> None:
    for method, length in ((Llama3(factor=1), 32768), (Llama3(), 8192), (Llama3(), 100)):
        np.testing.assert_array_equal(frequencies(method, llama3_1, length), llama3_1.inv_freq())


def test_frequencies_follow_the_wavelengths(llama3_1: Model, frequencies: Callable[..., Floats]) -> None:
    expected = []
    for pair in range(64):
        theta = 500_000.0 ** (-2 * pair / 128)
        wavelength = 2 * math.pi / theta
        if wavelength < 8192 / 4:
            expected.append(theta)
        elif wavelength > 8192 / 1:
            expected.append(theta / 8)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            expected.append((1 - smooth) * theta / 8 + smooth * theta)
    np.testing.assert_allclose(frequencies(Llama3(), llama3_1, 65536), expected, rtol=1e-13)


@pytest.mark.parametrize("name", ["tiny", "llama2", "llama3_1", "partial"])
@pytest.mark.parametrize("factor", [1.0, 8.0, 32.0])
@pytest.mark.parametrize("ends", [(1.0, 4.0), (2.0, 16.0)])
def test_transformers_has_the_same_numbers(
    name: str,
    factor: float,
    ends: tuple[float, float],
    request: pytest.FixtureRequest,
    assert_as_transformers: Callable[..., None],
) -> None:
    model = request.getfixturevalue(name)
    low, high = ends
    assert_as_transformers(
        Llama3(factor=factor, low_freq_factor=low, high_freq_factor=high).attention(model, 1),
        model,
        "llama3",
        factor=factor,
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position_embeddings=model.trained_length,
    )


def test_transformers_has_the_same_numbers_for_a_trained_length_given(
    llama3_1: Model, assert_as_transformers: Callable[..., None]
) -> None:
    assert_as_transformers(
        Llama3(trained_length=2048).attention(llama3_1, 8192),
        llama3_1,
        "llama3",
        factor=4.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=2048,
    )


def test_bad_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="needs 0 < low_freq_factor < high_freq_factor, got 4 and 4"):
        Llama3(low_freq_factor=4)
    with pytest.raises(ValueError, match="needs 0 < low_freq_factor < high_freq_factor, got 0 and 4"):
        Llama3(low_freq_factor=0)
    with pytest.raises(ValueError, match=r"llama3's factor must be finite and at least 1, got 0\.5"):
        Llama3(factor=0.5)
    with pytest.raises(ValueError, match="llama3's trained_length must be at least 1, got 0"):
        Llama3(trained_length=0)
