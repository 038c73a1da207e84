from collections.abc import Callable

import numpy as np
import pytest

from lexbench import Model
from lexbench.core.attention import Floats
from lexbench.methods.hope import Hope


def test_llama_2_keeps_the_46_pairs_that_came_round(llama2: Model, frequencies: Callable[..., Floats]) -> None:
    # 64 ln(4096 / 2 pi) / ln 10000 is 45.03: pair 45 turned once and a little, pair 46 did not.
    inv_freq = frequencies(Hope(), llama2, 10)
    np.testing.assert_array_equal(inv_freq[:46], llama2.inv_freq()[:46])
    assert not inv_freq[46:].any()


def test_a_trained_length_beyond_all_wavelengths_is_the_model(tiny: Model, frequencies: Callable[..., Floats]) -> None:
    np.testing.assert_array_equal(frequencies(Hope(trained_length=6284), tiny, 10), tiny.inv_freq())
    np.testing.assert_allclose(frequencies(Hope(trained_length=6283), tiny, 10), [1, 0.1, 0.01, 0], rtol=1e-14)


def test_a_trained_length_of_none_is_refused() -> None:
    with pytest.raises(ValueError, match="hope's trained_length must be at least 1, got 0"):
        Hope(trained_length=0)
