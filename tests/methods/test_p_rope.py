import math
from collections.abc import Callable

import numpy as np
import pytest

from lexbench import Model
from lexbench.core.attention import Floats
from lexbench.methods.p_rope import PRope


def test_a_fraction_of_one_is_the_model(llama2: Model, frequencies: Callable[..., Floats]) -> None:
    np.testing.assert_array_equal(frequencies(PRope(fraction=1), llama2, 65536), llama2.inv_freq())


def test_a_fraction_of_zero_has_no_positions(llama2: Model, frequencies: Callable[..., Floats]) -> None:
    assert not frequencies(PRope(fraction=0), llama2, 1).any()


def test_the_slowest_quarter_stands_still_and_the_rest_is_as_it_was(
    llama2: Model, partial: Model, frequencies: Callable[..., Floats]
) -> None:
    expected = [10_000.0 ** (-pair / 64) if pair < 48 else 0.0 for pair in range(64)]
    np.testing.assert_allclose(frequencies(PRope(), llama2, 99), expected, rtol=1e-13)
    expected = [10_000.0 ** (-pair / 8) if pair < 6 else 0.0 for pair in range(8)]
    np.testing.assert_allclose(frequencies(PRope(), partial, 99), expected, rtol=1e-13)


def test_a_fraction_of_a_pair_is_dropped(tiny: Model, frequencies: Callable[..., Floats]) -> None:
    np.testing.assert_allclose(frequencies(PRope(fraction=0.74), tiny, 1), [1, 0.1, 0, 0], rtol=1e-13)


@pytest.mark.parametrize("fraction", [-0.1, 1.1, math.nan])
def test_a_fraction_that_is_none_is_refused(fraction: float) -> None:
    with pytest.raises(ValueError, match="p_rope's fraction must be from 0 to 1"):
        PRope(fraction=fraction)
