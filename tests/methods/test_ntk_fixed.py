import math
from collections.abc import Callable

import numpy as np
import pytest

from lexbench import Model
from lexbench.core.attention import Floats
from lexbench.methods.ntk_fixed import NtkFixed


def test_a_factor_of_one_is_the_model(llama2: Model, frequencies: Callable[..., Floats]) -> None:
    for method, length in ((NtkFixed(factor=1), 32768), (NtkFixed(), 4096), (NtkFixed(), 100)):
        np.testing.assert_array_equal(frequencies(method, llama2, length), llama2.inv_freq())


@pytest.mark.parametrize(("factor", "length", "stretch"), [(4.0, 1, 4.0), (None, 10240, 2.5)])
def test_each_pair_is_slowed_by_the_same_ratio_more_than_the_one_before(
    llama2: Model, factor: float | None, length: int, stretch: float, frequencies: Callable[..., Floats]
) -> None:
    slowed = llama2.inv_freq() / frequencies(NtkFixed(factor=factor), llama2, length)
    ratio = math.exp(math.log(stretch) / 64)
    assert slowed[0] == pytest.approx(ratio, rel=1e-12)
    np.testing.assert_allclose(slowed[1:] / slowed[:-1], ratio, rtol=1e-12)


def test_the_last_pair_is_interpolated(partial: Model, frequencies: Callable[..., Floats]) -> None:
    inv_freq = frequencies(NtkFixed(factor=8), partial, 1)
    assert inv_freq[-1] == pytest.approx(10_000.0 ** (-14 / 16) / 8, rel=1e-12)


def test_a_factor_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"ntk_fixed's factor must be finite and at least 1, got 0\.9"):
        NtkFixed(factor=0.9)
