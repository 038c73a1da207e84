import math
from collections.abc import Callable

import numpy as np
import pytest

from lexbench import Model, Refused
from lexbench.core.attention import Floats
from lexbench.methods.critical_base import CriticalBase


@pytest.mark.parametrize(("divisor", "base"), [(1, 2607.6), (2, 1303.8), (4, 651.9)])
def test_llama_2_has_the_published_bases(
    llama2: Model, divisor: int, base: float, frequencies: Callable[..., Floats]
) -> None:
    for length in (10, 4096, 65536):
        inv_freq = frequencies(CriticalBase(divisor=divisor), llama2, length)
        np.testing.assert_allclose(inv_freq, [base ** (-pair / 64) for pair in range(64)], rtol=1e-4)


@pytest.mark.parametrize(("divisor", "turns"), [(1, 1 / 4), (2, 1 / 2), (4, 1)])
def test_the_slowest_angle_makes_a_quarter_half_or_whole_turn(
    partial: Model, divisor: int, turns: float, frequencies: Callable[..., Floats]
) -> None:
    # The last of 8 pairs turns at base^(-7/8): to the power 8/7 it is 1 / base.
    last = frequencies(CriticalBase(divisor=divisor), partial, 1)[-1] ** (8 / 7)
    assert 2048 * last / (2 * math.pi) == pytest.approx(turns, rel=1e-12)


@pytest.mark.parametrize("divisor", [0, 3, 8])
def test_other_divisors_are_refused(divisor: int) -> None:
    with pytest.raises(ValueError, match=f"critical_base's divisor must be 1, 2 or 4, got {divisor}"):
        CriticalBase(divisor=divisor)


def test_a_base_of_one_is_refused(frequencies: Callable[..., Floats]) -> None:
    six = Model(name="six", trained_length=6, head_dim=8, rope_base=10_000.0)
    with pytest.raises(Refused, match=r"needs a base above 1, six with 6 trained tokens has 0\.955: lower divisor"):
        CriticalBase(divisor=4).attention(six, 8)
    assert frequencies(CriticalBase(divisor=1), six, 8)[0] == 1.0
