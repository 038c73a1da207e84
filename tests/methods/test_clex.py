import math
from collections.abc import Callable

import numpy as np
import pytest

from lexbench import Model, Refused
from lexbench.core.attention import Floats
from lexbench.methods.clex import Clex


def test_nothing_changes_within_the_trained_length(llama2: Model, frequencies: Callable[..., Floats]) -> None:
    for method, length in ((Clex(t=1), 32768), (Clex(), 4096), (Clex(), 1)):
        np.testing.assert_array_equal(frequencies(method, llama2, length), llama2.inv_freq())


@pytest.mark.parametrize("t", [2, 4.5, 16])
def test_frequencies_solve_the_untrained_equation(partial: Model, t: float, frequencies: Callable[..., Floats]) -> None:
    # d ln theta_p / dt = -2p/(d-2) * 2/(2t-1), integrated by Simpson's rule with d = 16.
    at = np.linspace(1, t, 20001)
    weights = np.where(np.arange(20001) % 2, 4.0, 2.0)
    weights[[0, -1]] = 1.0
    integral = float((weights * 2 / (2 * at - 1)).sum() * (t - 1) / 20000 / 3)
    expected = [10_000.0 ** (-pair / 8) * math.exp(-2 * pair / 14 * integral) for pair in range(8)]
    np.testing.assert_allclose(frequencies(Clex(t=t), partial, 1), expected, rtol=1e-9)


@pytest.mark.parametrize(("length", "slowed"), [(4097, 3), (8192, 3), (8193, 5), (65536, 31), (10**6, 31)])
def test_t_goes_by_whole_steps_up_to_the_cap(
    llama2: Model, length: int, slowed: float, frequencies: Callable[..., Floats]
) -> None:
    assert frequencies(Clex(), llama2, length)[-1] == pytest.approx(10_000.0 ** (-126 / 128) / slowed, rel=1e-12)


def test_the_cap_can_be_lowered(llama2: Model, frequencies: Callable[..., Floats]) -> None:
    inv_freq = frequencies(Clex(max_factor=4), llama2, 65536)
    assert inv_freq[-1] == pytest.approx(10_000.0 ** (-126 / 128) / 7, rel=1e-12)


def test_bad_parameters_are_refused() -> None:
    for t in (0.5, 17, math.nan):
        with pytest.raises(ValueError, match="clex's t must be from 1 to max_factor 16, got"):
            Clex(t=t)
    for cap in (0.5, math.inf, math.nan):
        with pytest.raises(ValueError, match="clex's max_factor must be finite and at least 1"):
            Clex(max_factor=cap)


def test_models_without_plain_rope_of_four_dimensions_are_refused(nope: Model, scaled: Model) -> None:
    narrow = Model(name="narrow", trained_length=16, head_dim=2, rope_base=10_000.0)
    for model in (nope, scaled, narrow):
        with pytest.raises(Refused, match=model.name):
            Clex().attention(model, 1024)
