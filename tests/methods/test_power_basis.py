import math
from collections.abc import Callable

import numpy as np
import pytest

from lexbench import Model
from lexbench.core.attention import Floats
from lexbench.methods.power_basis import PowerBasis


def test_a_power_of_zero_is_the_model(llama2: Model, frequencies: Callable[..., Floats]) -> None:
    np.testing.assert_array_equal(frequencies(PowerBasis(power=0), llama2, 65536), llama2.inv_freq())


def test_a_power_of_one_falls_linearly_to_the_last_pair(partial: Model, frequencies: Callable[..., Floats]) -> None:
    kept = frequencies(PowerBasis(power=1), partial, 1) / partial.inv_freq()
    np.testing.assert_allclose(kept, [1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8], rtol=1e-14)


def test_the_default_is_a_tenth(llama2: Model, frequencies: Callable[..., Floats]) -> None:
    # The last of 64 pairs falls by 64^0.1 = 2^0.6.
    inv_freq = frequencies(PowerBasis(), llama2, 1)
    assert inv_freq[0] == 1.0
    assert inv_freq[-1] == pytest.approx(10_000.0 ** (-126 / 128) / 2**0.6, rel=1e-13)


@pytest.mark.parametrize("power", [-0.1, math.inf, math.nan])
def test_a_power_that_does_not_slow_is_refused(power: float) -> None:
    with pytest.raises(ValueError, match="power_basis's power must be finite and at least 0"):
        PowerBasis(power=power)
