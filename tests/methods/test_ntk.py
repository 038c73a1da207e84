from collections.abc import Callable

import numpy as np
import pytest

from lexbench import Model, Refused
from lexbench.core.attention import Floats
from lexbench.methods.ntk import Ntk


def test_a_factor_of_one_is_the_model(llama2: Model, frequencies: Callable[..., Floats]) -> None:
    for method, length in ((Ntk(factor=1), 32768), (Ntk(), 4096), (Ntk(), 100)):
        np.testing.assert_array_equal(frequencies(method, llama2, length), llama2.inv_freq())


@pytest.mark.parametrize("factor", [1.5, 4.0, 32.0])
def test_pair_p_is_slowed_by_s_to_the_2p_over_d_minus_2(
    llama2: Model, factor: float, frequencies: Callable[..., Floats]
) -> None:
    expected = [10_000.0 ** (-2 * pair / 128) * factor ** (-2 * pair / 126) for pair in range(64)]
    np.testing.assert_allclose(frequencies(Ntk(factor=factor), llama2, 1), expected, rtol=1e-12)


def test_the_first_pair_is_kept_and_the_last_is_interpolated(
    partial: Model, frequencies: Callable[..., Floats]
) -> None:
    inv_freq = frequencies(Ntk(factor=8), partial, 1)
    assert inv_freq[0] == 1.0
    assert inv_freq[-1] == pytest.approx(10_000.0 ** (-14 / 16) / 8, rel=1e-12)


def test_the_factor_left_out_is_length_over_trained_length(llama2: Model, frequencies: Callable[..., Floats]) -> None:
    inv_freq = frequencies(Ntk(), llama2, 10240)
    assert inv_freq[-1] == pytest.approx(10_000.0 ** (-126 / 128) / 2.5, rel=1e-12)


@pytest.mark.parametrize("name", ["tiny", "llama2", "partial"])
def test_transformers_dynamic_form_at_rate_one_has_the_same_numbers(
    name: str, request: pytest.FixtureRequest, assert_as_transformers: Callable[..., None]
) -> None:
    model = request.getfixturevalue(name)
    length = 4 * model.trained_length
    assert_as_transformers(Ntk().attention(model, length), model, "dynamic", length=length, factor=1.0)


def test_two_rotary_dimensions_are_refused() -> None:
    model = Model(name="narrow", trained_length=16, head_dim=8, rotary_dim=2, rope_base=10_000.0)
    with pytest.raises(Refused, match="at least 4 rotary dimensions, narrow has 2"):
        Ntk().attention(model, 64)


def test_a_factor_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"ntk's factor must be finite and at least 1, got 0\.9"):
        Ntk(factor=0.9)
