import math
from collections.abc import Callable

import numpy as np
import pytest

from lexbench import Model
from lexbench.core.attention import Floats
from lexbench.methods.ntk_old import NtkOld


def test_a_factor_of_one_is_the_model(llama2: Model, frequencies: Callable[..., Floats]) -> None:
    for method, length in ((NtkOld(factor=1), 32768), (NtkOld(), 4096), (NtkOld(), 100)):
        np.testing.assert_array_equal(frequencies(method, llama2, length), llama2.inv_freq())


@pytest.mark.parametrize(("factor", "length", "stretch"), [(4.0, 1, 4.0), (None, 10240, 2.5)])
def test_pair_p_is_slowed_by_s_to_the_2p_over_d(
    llama2: Model, factor: float | None, length: int, stretch: float, frequencies: Callable[..., Floats]
) -> None:
    expected = [math.exp(-pair / 64 * (math.log(10_000) + math.log(stretch))) for pair in range(64)]
    np.testing.assert_allclose(frequencies(NtkOld(factor=factor), llama2, length), expected, rtol=1e-12)


def test_the_last_pair_falls_short_of_s(partial: Model, frequencies: Callable[..., Floats]) -> None:
    # 16 rotated dimensions: s^(14/16) = 4 for s = 2^(16/7).
    inv_freq = frequencies(NtkOld(factor=2 ** (16 / 7)), partial, 1)
    assert inv_freq[-1] == pytest.approx(10_000.0 ** (-14 / 16) / 4, rel=1e-12)


def test_a_factor_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"ntk_old's factor must be finite and at least 1, got 0\.9"):
        NtkOld(factor=0.9)
