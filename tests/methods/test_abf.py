import math
from collections.abc import Callable

import numpy as np
import pytest

from lexbench import Model, Refused
from lexbench.core.attention import Floats
from lexbench.methods.abf import Abf


def test_nothing_changes_within_the_trained_length(
    llama2: Model, partial: Model, frequencies: Callable[..., Floats]
) -> None:
    for model in (llama2, partial):
        for length in (1, 100, model.trained_length):
            np.testing.assert_array_equal(frequencies(Abf(), model, length), model.inv_freq())


@pytest.mark.parametrize("length", [4097, 8192, 100_000])
def test_the_period_that_was_the_trained_length_becomes_the_length(llama2: Model, length: int) -> None:
    # The fractional pair x with period L turns once: b^(2x/d) = L / 2 pi. Under the new base its period is the length.
    exponent = math.log(4096 / (2 * math.pi), 10_000)
    base = Abf().rope_parameters(llama2, length)["rope_theta"]
    assert 2 * math.pi * base**exponent == pytest.approx(length, rel=1e-12)


def test_the_law_gives_the_published_bases(llama2: Model, llama3_1: Model) -> None:
    # arXiv 2310.05209: 71738 for Llama 2 at 16k; arXiv 2502.20082: 7.976e7 for Llama 3 at 128k.
    assert Abf().rope_parameters(llama2, 16384)["rope_theta"] == pytest.approx(71738.4, rel=1e-6)
    assert Abf().rope_parameters(llama3_1, 131072)["rope_theta"] == pytest.approx(7.976e7, rel=1e-4)


def test_a_base_given_holds_at_every_length(llama2: Model, frequencies: Callable[..., Floats]) -> None:
    expected = [math.exp(-2 * pair / 128 * math.log(1e6)) for pair in range(64)]
    for length in (16, 4096, 65536):
        np.testing.assert_allclose(frequencies(Abf(base=1e6), llama2, length), expected, rtol=1e-13)


def test_a_quarter_of_the_head_rotates_with_its_own_dimensions(
    partial: Model, frequencies: Callable[..., Floats]
) -> None:
    expected = [500_000.0 ** (-pair / 8) for pair in range(8)]
    np.testing.assert_allclose(frequencies(Abf(base=500_000), partial, 4096), expected, rtol=1e-13)


def test_the_law_needs_a_pair_that_can_turn_once(frequencies: Callable[..., Floats]) -> None:
    seven = Model(name="seven", trained_length=7, head_dim=8, rope_base=10_000.0)
    assert frequencies(Abf(), seven, 8)[0] == 1.0
    six = Model(name="six", trained_length=6, head_dim=8, rope_base=10_000.0)
    with pytest.raises(Refused, match="needs a trained length of at least 7, six has 6: give a base"):
        Abf().attention(six, 8)
    assert frequencies(Abf(base=2), six, 8)[-1] == pytest.approx(2**-0.75, rel=1e-13)


@pytest.mark.parametrize("base", [1, 0, -5, math.inf, math.nan])
def test_a_base_that_is_none_is_refused(base: float) -> None:
    with pytest.raises(ValueError, match="abf's base must be finite and above 1"):
        Abf(base=base)


def test_models_without_plain_rope_are_refused(nope: Model, scaled: Model) -> None:
    for model in (nope, scaled):
        for method in (Abf(), Abf(base=1e6)):
            with pytest.raises(Refused, match=model.name):
                method.attention(model, 1024)
