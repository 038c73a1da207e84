import math
from collections.abc import Callable

import numpy as np
import pytest

from lexbench import Model
from lexbench.core.attention import Floats
from lexbench.methods.ntk_by_parts import NtkByParts


def test_a_factor_of_one_is_the_model(llama2: Model, frequencies: Callable[..., Floats]) -> None:
    for method, length in ((NtkByParts(factor=1), 32768), (NtkByParts(), 4096), (NtkByParts(), 100)):
        np.testing.assert_array_equal(frequencies(method, llama2, length), llama2.inv_freq())


def test_frequencies_follow_the_papers_definition(llama2: Model, frequencies: Callable[..., Floats]) -> None:
    expected = []
    for pair in range(64):
        theta = 10_000.0 ** (-2 * pair / 128)
        wavelength = 2 * math.pi / theta
        rotations = 4096 / wavelength
        ramp = 0.0 if rotations < 1 else 1.0 if rotations > 32 else (rotations - 1) / (32 - 1)
        expected.append((1 - ramp) * theta / 8 + ramp * theta)
    np.testing.assert_allclose(frequencies(NtkByParts(factor=8), llama2, 1), expected, rtol=1e-13)


def test_fast_pairs_are_kept_and_slow_ones_interpolated(llama2: Model, frequencies: Callable[..., Floats]) -> None:
    inv_freq = frequencies(NtkByParts(), llama2, 16384)
    # 32 rotations in 4096 tokens is a wavelength of 128, between pairs 20 and 21; one rotation lies between 45 and 46.
    np.testing.assert_array_equal(inv_freq[:21], llama2.inv_freq()[:21])
    np.testing.assert_allclose(inv_freq[46:], llama2.inv_freq()[46:] / 4, rtol=1e-15)
    between = llama2.inv_freq()[21:46] / inv_freq[21:46]
    assert (between > 1).all() and (between < 4).all() and (np.diff(between) > 0).all()


def test_a_trained_length_given_sets_rotations_and_factor(llama2: Model, frequencies: Callable[..., Floats]) -> None:
    # Pair 16 turns once in 2 pi 10 tokens; within 1257 tokens 20.006 times.
    inv_freq = frequencies(NtkByParts(trained_length=1257), llama2, 2514)
    ramp = (1257 / (20 * math.pi) - 1) / 31
    assert inv_freq[16] == pytest.approx(0.1 * ((1 - ramp) / 2 + ramp), rel=1e-13)


def test_bad_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="needs 0 <= alpha < beta, got alpha 32 and beta 32"):
        NtkByParts(alpha=32)
    with pytest.raises(ValueError, match="needs 0 <= alpha < beta, got alpha -1"):
        NtkByParts(alpha=-1)
    with pytest.raises(ValueError, match=r"ntk_by_parts's factor must be finite and at least 1, got 0\.5"):
        NtkByParts(factor=0.5)
    with pytest.raises(ValueError, match="ntk_by_parts's trained_length must be at least 1, got -4"):
        NtkByParts(trained_length=-4)
