import math
from collections.abc import Callable

import numpy as np
import pytest

from lexbench import Model, Refused
from lexbench.core.attention import Floats
from lexbench.methods.yarn import Yarn


def test_a_factor_of_one_is_the_model(llama2: Model) -> None:
    for method, length in ((Yarn(factor=1), 32768), (Yarn(), 4096), (Yarn(), 100)):
        attention = method.attention(llama2, length)
        np.testing.assert_array_equal(attention.inv_freq, llama2.inv_freq())
        assert attention.scale == 1.0


def test_llama_2_ramps_from_pair_20_to_pair_46(llama2: Model, frequencies: Callable[..., Floats]) -> None:
    # 128 ln(4096 / (2 pi n)) / (2 ln 10000) is 20.94 for n = 32 and 45.03 for n = 1.
    inv_freq = frequencies(Yarn(factor=8), llama2, 1)
    expected = []
    for pair in range(64):
        slowed = min(max((pair - 20) / (46 - 20), 0.0), 1.0)
        theta = 10_000.0 ** (-pair / 64)
        expected.append(theta * (1 - slowed) + theta / 8 * slowed)
    np.testing.assert_allclose(inv_freq, expected, rtol=1e-13)


def test_untruncated_the_ramp_begins_and_ends_between_pairs(llama2: Model, frequencies: Callable[..., Floats]) -> None:
    inv_freq = frequencies(Yarn(factor=8, truncate=False), llama2, 1)
    low = 64 * (math.log(128) - math.log(2 * math.pi)) / math.log(10_000)
    high = 64 * (math.log(4096) - math.log(2 * math.pi)) / math.log(10_000)
    slowed = (33 - low) / (high - low)
    assert inv_freq[33] == pytest.approx(10_000.0 ** (-33 / 64) * (1 - slowed + slowed / 8), rel=1e-13)


@pytest.mark.parametrize(("factor", "scale"), [(2, 1.0693147), (8, 1.2079442), (32, 1.3465736)])
def test_cos_and_sin_grow_by_a_tenth_of_the_factors_logarithm(llama2: Model, factor: float, scale: float) -> None:
    assert Yarn(factor=factor).attention(llama2, 1).scale == pytest.approx(scale, rel=1e-7)
    assert Yarn().attention(llama2, int(factor * 4096)).scale == pytest.approx(scale, rel=1e-7)


def test_an_attention_factor_given_is_taken_as_it_is(llama2: Model) -> None:
    assert Yarn(factor=40, attention_factor=1.25).attention(llama2, 1).scale == 1.25


@pytest.mark.parametrize("name", ["tiny", "llama2", "llama3_1", "gpt_oss", "partial"])
@pytest.mark.parametrize("factor", [1.0, 2.5, 32.0])
@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize("betas", [(32, 1), (128, 2)])
def test_transformers_has_the_same_numbers(
    name: str,
    factor: float,
    truncate: bool,
    betas: tuple[float, float],
    request: pytest.FixtureRequest,
    assert_as_transformers: Callable[..., None],
) -> None:
    model = request.getfixturevalue(name)
    fast, slow = betas
    ours = Yarn(factor=factor, truncate=truncate, beta_fast=fast, beta_slow=slow).attention(model, 1)
    assert_as_transformers(
        ours,
        model,
        "yarn",
        factor=factor,
        truncate=truncate,
        beta_fast=fast,
        beta_slow=slow,
        original_max_position_embeddings=model.trained_length,
    )


@pytest.mark.parametrize("trained_length", [7, 4096])
def test_transformers_has_the_same_numbers_for_a_trained_length_given(
    llama2: Model, trained_length: int, assert_as_transformers: Callable[..., None]
) -> None:
    assert_as_transformers(
        Yarn(trained_length=trained_length).attention(llama2, 3 * trained_length),
        llama2,
        "yarn",
        factor=3.0,
        original_max_position_embeddings=trained_length,
    )


def test_transformers_ends_the_ramp_at_the_same_limit(assert_as_transformers: Callable[..., None]) -> None:
    # 8 ln(300 / 2 pi) / (2 ln 5) is 9.6: one rotation lies beyond the head, the ramp ends at 8 - 1.
    model = Model(name="fast", trained_length=300, head_dim=8, rope_base=5.0)
    attention = Yarn(factor=4).attention(model, 1)
    assert_as_transformers(attention, model, "yarn", factor=4.0, original_max_position_embeddings=300)


def test_a_ramp_of_no_width_is_a_step(frequencies: Callable[..., Floats]) -> None:
    # Pair 0 alone turns within 6 tokens at all, and not even once: both ends of the ramp fall on it.
    model = Model(name="short", trained_length=6, head_dim=8, rope_base=10_000.0)
    inv_freq = frequencies(Yarn(factor=2), model, 12)
    np.testing.assert_allclose(inv_freq, [1, 0.05, 0.005, 0.0005], rtol=1e-13)


def test_bad_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="needs 0 < beta_slow < beta_fast, got beta_slow 32 and beta_fast 1"):
        Yarn(beta_fast=1, beta_slow=32)
    with pytest.raises(ValueError, match="needs 0 < beta_slow < beta_fast, got beta_slow 0"):
        Yarn(beta_slow=0)
    with pytest.raises(ValueError, match="yarn's factor must be finite and at least 1, got 0"):
        Yarn(factor=0)
    for scale in (0, -1, math.inf, math.nan):
        with pytest.raises(ValueError, match="yarn's attention_factor must be finite and above 0"):
            Yarn(attention_factor=scale)
    with pytest.raises(ValueError, match="yarn's trained_length must be at least 1, got 0"):
        Yarn(trained_length=0)


@pytest.mark.parametrize(
    ("length", "factor"),
    [(1, 1), (4096, 1), (4097, 2), (8192, 2), (8193, 4), (16384, 4)],
)
def test_the_least_profile_that_covers_the_length_is_taken(llama2: Model, length: int, factor: float) -> None:
    found, wanted = Yarn(profiles=[4, 1, 2]).attention(llama2, length), Yarn(factor=factor).attention(llama2, 1)
    assert found.as_data() == wanted.as_data()
    stated = Yarn(profiles=[4, 1, 2]).rope_parameters(llama2, length)
    assert stated == Yarn(factor=factor).rope_parameters(llama2, 1) and stated["factor"] == factor


def test_a_length_beyond_all_profiles_is_refused_with_a_remedy(llama2: Model) -> None:
    reach = "reach 16,384 tokens on Llama-2, asked for 20,480: give a profile of at least 5, or leave profiles out"
    for asked in (Yarn(profiles=(1, 2, 4)).attention, Yarn(profiles=(1, 2, 4)).rope_parameters):
        with pytest.raises(Refused, match=reach):
            asked(llama2, 20_480)


def test_profiles_count_in_the_trained_length_given(llama2: Model) -> None:
    method = Yarn(profiles=[1, 2, 4], trained_length=2048)
    assert (
        method.attention(llama2, 4096).as_data() == Yarn(factor=2, trained_length=2048).attention(llama2, 1).as_data()
    )
    with pytest.raises(Refused, match="reach 8,192 tokens"):
        method.attention(llama2, 8193)


def test_bad_profiles_are_refused() -> None:
    for profiles in ([], [0.5, 2], [1, math.nan], [math.inf], ["2"], [1e7], 2):
        with pytest.raises(ValueError, match=r"yarn's profiles must be a list of factors from 1 to 1,000,000, got"):
            Yarn(profiles=profiles)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"yarn takes factor or profiles, got factor 2 and profiles \[1, 2\]"):
        Yarn(factor=2, profiles=[1, 2])


def test_profiles_are_compared_and_hashed_by_value() -> None:
    assert Yarn(profiles=[1, 2]) == Yarn(profiles=(2.0, 1.0)) and len({Yarn(profiles=[1, 2]), Yarn()}) == 2


def test_a_factor_has_a_bound() -> None:
    with pytest.raises(ValueError, match=r"yarn's factor must be at most 1,000,000, got 1e\+20: e\.g\. 8"):
        Yarn(factor=1e20)
