import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lexbench import Model, Refused
from lexbench.core.attention import Floats
from lexbench.kernels.reference import Angles
from lexbench.methods.longrope import Longrope
from lexbench.methods.ntk import Ntk

SHORT, LONG = (1.0, 1.05, 1.1, 1.15), (1.0, 2.0, 3.5, 4.25)


def test_nothing_changes_within_the_trained_length(llama2: Model) -> None:
    for length in (1, 100, 4096):
        attention = Longrope().attention(llama2, length)
        np.testing.assert_array_equal(attention.inv_freq, llama2.inv_freq())
        assert attention.scale == 1.0


def test_without_factors_the_search_starts_from_ntk(
    llama2: Model, partial: Model, frequencies: Callable[..., Floats]
) -> None:
    for model in (llama2, partial):
        for length in (model.trained_length + 1, 5 * model.trained_length):
            expected = frequencies(Ntk(), model, length)
            np.testing.assert_allclose(frequencies(Longrope(), model, length), expected, rtol=1e-13)


@pytest.mark.parametrize(("length", "divided"), [(1, SHORT), (16, SHORT), (17, LONG), (64, LONG)])
def test_each_pair_is_divided_by_its_factor_short_up_to_the_trained_length_and_long_beyond(
    tiny: Model, length: int, divided: tuple[float, ...], frequencies: Callable[..., Floats]
) -> None:
    expected = [1 / divided[0], 0.1 / divided[1], 0.01 / divided[2], 0.001 / divided[3]]
    for given in ((LONG, SHORT), (list(LONG), list(SHORT))):
        np.testing.assert_allclose(frequencies(Longrope(*given), tiny, length), expected, rtol=1e-14)


def test_lists_are_kept_as_tuples() -> None:
    assert Longrope(list(LONG), list(SHORT)) == Longrope(LONG, SHORT)
    assert hash(Longrope(list(LONG))) == hash(Longrope(LONG))


def test_the_scale_goes_with_the_factor_at_every_length(llama2: Model) -> None:
    # Phi 3's: 32 times 4096 tokens; ln 32 / ln 4096 is 5/12.
    for length in (10, 4096, 131072):
        assert Longrope(factor=32).attention(llama2, length).scale == pytest.approx(math.sqrt(17 / 12), rel=1e-14)
    assert Longrope().attention(llama2, 131072).scale == pytest.approx(math.sqrt(17 / 12), rel=1e-14)
    assert Longrope(factor=32, attention_factor=1.25).attention(llama2, 10).scale == 1.25


def test_start_tokens_keep_the_models_own_cos_and_sin_also_without_the_scale(tiny: Model) -> None:
    # As MixedLongRoPEScaledRotaryEmbedding of microsoft/LongRoPE: rows below n are those of the unchanged embedding.
    own, places = np.array([1.0, 0.1, 0.01, 0.001]), np.arange(5)
    attention = Longrope(LONG, start_tokens=3).attention(tiny, 64)
    angles, scale = Angles(own).angles_and_scale(attention, places, places)
    m = math.sqrt(1 + math.log(4) / math.log(16))
    np.testing.assert_allclose(scale[:, 0], [1, 1, 1, m, m], rtol=1e-14)
    np.testing.assert_allclose(angles, [own * n if n < 3 else own / LONG * n for n in places], rtol=1e-14)
    assert Longrope().attention(tiny, 64).keep_first is None


def test_a_trained_length_given_takes_the_place_of_the_models(llama2: Model) -> None:
    attention = Longrope(trained_length=1024).attention(llama2, 4096)
    assert attention.inv_freq[-1] == pytest.approx(10_000.0 ** (-126 / 128) / 4, rel=1e-12)  # type: ignore[index]
    assert attention.scale == pytest.approx(math.sqrt(12 / 10), rel=1e-14)


@pytest.mark.parametrize("length", [15, 16, 17, 64])
@pytest.mark.parametrize("more", [{"factor": 4.0}, {"factor": 4.0, "attention_factor": 1.5}])
def test_transformers_has_the_same_numbers(
    tiny: Model, length: int, more: dict[str, Any], assert_as_transformers: Callable[..., None]
) -> None:
    assert_as_transformers(
        Longrope(LONG, SHORT, **more).attention(tiny, length),
        tiny,
        "longrope",
        length=length,
        long_factor=list(LONG),
        short_factor=list(SHORT),
        original_max_position_embeddings=16,
        **more,
    )


def test_another_number_of_factors_is_refused(partial: Model) -> None:
    with pytest.raises(Refused, match="longrope has 4 long_factors, partial has 8 pairs: give one for each pair"):
        Longrope(LONG).attention(partial, 4096)
    with pytest.raises(Refused, match="longrope has 4 short_factors, partial has 8 pairs: give one for each pair"):
        Longrope(short_factors=SHORT).attention(partial, 100)


def test_bad_parameters_are_refused() -> None:
    wrong: list[Any] = [[], [1, 0], [1, -2], [1, math.inf], [1, math.nan], 4.0, "1234", ["a"]]
    for factors in wrong:
        with pytest.raises(ValueError, match="longrope's long_factors must be a list of finite numbers above 0, got"):
            Longrope(long_factors=factors)
        with pytest.raises(ValueError, match="longrope's short_factors must be a list of finite numbers above 0, got"):
            Longrope(short_factors=factors)
    with pytest.raises(ValueError, match=r"longrope's factor must be finite and at least 1, got 0\.5"):
        Longrope(factor=0.5)
    with pytest.raises(ValueError, match=r"attention_factor must be finite and above 0, got 0: .* sqrt\(1 \+ ln s"):
        Longrope(attention_factor=0)
    for start in (-1, 1.5):
        with pytest.raises(ValueError, match="longrope's start_tokens must be a whole number of at least 0"):
            Longrope(start_tokens=start)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="longrope's trained_length must be at least 1, got 0"):
        Longrope(trained_length=0)


def test_models_that_cannot_be_stretched_are_refused(nope: Model, scaled: Model) -> None:
    for model in (nope, scaled):
        with pytest.raises(Refused, match=model.name):
            Longrope().attention(model, 1024)
    stub = Model(name="stub", trained_length=1, head_dim=8, rope_base=10_000.0)
    with pytest.raises(Refused, match="a trained length of at least 2, stub has 1: give attention_factor"):
        Longrope().attention(stub, 64)
    assert Longrope(attention_factor=1.5).attention(stub, 64).scale == 1.5
