import math
from collections.abc import Callable

import numpy as np
import pytest

from lexbench import Model
from lexbench.core.attention import Floats
from lexbench.methods.ntk_fixed import NtkFixed
from lexbench.methods.ntk_mixed import NtkMixed
from lexbench.methods.pi import Pi


def test_a_factor_of_one_is_the_model(llama2: Model, frequencies: Callable[..., Floats]) -> None:
    for method, length in ((NtkMixed(factor=1), 32768), (NtkMixed(), 4096), (NtkMixed(), 100)):
        np.testing.assert_array_equal(frequencies(method, llama2, length), llama2.inv_freq())


def test_an_exponent_of_one_is_ntk_fixed_and_of_zero_is_pi(partial: Model, frequencies: Callable[..., Floats]) -> None:
    for exponent, limit in ((1, NtkFixed(factor=6)), (0, Pi(factor=6))):
        inv_freq = frequencies(NtkMixed(factor=6, exponent=exponent), partial, 1)
        np.testing.assert_allclose(inv_freq, frequencies(limit, partial, 1), rtol=1e-13)


@pytest.mark.parametrize(("given", "power"), [({}, 0.625), ({"exponent": 0.75}, 0.75)])
def test_frequencies_are_the_articles(
    llama2: Model, given: dict[str, float], power: float, frequencies: Callable[..., Floats]
) -> None:
    a = math.log(12) / 64**power
    expected = [10_000.0 ** (-(m - 1) / 64) * math.exp(-a * m**power) for m in range(1, 65)]
    np.testing.assert_allclose(frequencies(NtkMixed(**given), llama2, 12 * 4096), expected, rtol=1e-12)


@pytest.mark.parametrize("exponent", [-0.1, 1.1, math.nan])
def test_an_exponent_outside_its_range_is_refused(exponent: float) -> None:
    with pytest.raises(ValueError, match=r"ntk_mixed's exponent must be from 0 \(pi\) to 1 \(ntk_fixed\), got"):
        NtkMixed(exponent=exponent)


def test_a_factor_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"ntk_mixed's factor must be finite and at least 1, got 0\.9"):
        NtkMixed(factor=0.9)
