import math
from collections.abc import Callable

import numpy as np
import pytest

from lexbench import Model
from lexbench.core.attention import Floats
from lexbench.methods.truncated_basis import TruncatedBasis


def test_wavelengths_above_the_cutoff_are_sixteen_of_it_or_none(
    llama2: Model, frequencies: Callable[..., Floats]
) -> None:
    inv_freq = frequencies(TruncatedBasis(), llama2, 10)
    for pair in range(64):
        wavelength = 2 * math.pi * 10_000.0 ** (pair / 64)
        if wavelength <= 4096:
            assert inv_freq[pair] == llama2.inv_freq()[pair]
        elif wavelength <= 8 * 4096:
            assert inv_freq[pair] == pytest.approx(2 * math.pi / (16 * 4096), rel=1e-14)
        else:
            assert inv_freq[pair] == 0
    assert np.count_nonzero(inv_freq == 0) == 4  # of 35333, 40802, 47117 and 54410 tokens


def test_the_parameters_are_multiples_of_the_cutoff(tiny: Model, frequencies: Callable[..., Floats]) -> None:
    # Wavelengths 6.3, 63, 628 and 6283.
    inv_freq = frequencies(TruncatedBasis(cutoff=50, stop=13, slow=2), tiny, 1)
    np.testing.assert_allclose(inv_freq, [1, 2 * math.pi / 100, 2 * math.pi / 100, 0], rtol=1e-14)


def test_a_cutoff_beyond_all_wavelengths_is_the_model(tiny: Model, frequencies: Callable[..., Floats]) -> None:
    np.testing.assert_array_equal(frequencies(TruncatedBasis(cutoff=6284), tiny, 10**6), tiny.inv_freq())


def test_bad_parameters_are_refused() -> None:
    for cutoff in (0, -1, math.inf, math.nan):
        with pytest.raises(ValueError, match="truncated_basis's cutoff must be finite and above 0"):
            TruncatedBasis(cutoff=cutoff)
    with pytest.raises(ValueError, match=r"needs stop and slow finite and at least 1, got 0\.5 and 16"):
        TruncatedBasis(stop=0.5)
    with pytest.raises(ValueError, match=r"needs stop and slow finite and at least 1, got 8\.0 and inf"):
        TruncatedBasis(slow=math.inf)
