import math
from collections.abc import Callable

import numpy as np
import pytest

from lexbench import Model
from lexbench.core.attention import Floats
from lexbench.methods.ntk_by_parts import NtkByParts
from lexbench.methods.yarn import Yarn
from lexbench.methods.yarn_paper import YarnPaper


def test_a_factor_of_one_is_the_model(llama2: Model) -> None:
    for method, length in ((YarnPaper(factor=1), 32768), (YarnPaper(), 4096), (YarnPaper(), 100)):
        attention = method.attention(llama2, length)
        np.testing.assert_array_equal(attention.inv_freq, llama2.inv_freq())
        assert attention.scale == 1.0


def test_pairs_mix_linearly_in_their_rotations(llama3_1: Model, frequencies: Callable[..., Floats]) -> None:
    expected = []
    for pair in range(64):
        theta = 500_000.0 ** (-pair / 64)
        turns = 8192 * theta / (2 * math.pi)
        if turns < 2:
            expected.append(theta / 8)
        elif turns > 16:
            expected.append(theta)
        else:
            expected.append(theta / 8 + (theta - theta / 8) * (turns - 2) / 14)
    np.testing.assert_allclose(frequencies(YarnPaper(alpha=2, beta=16), llama3_1, 65536), expected, rtol=1e-12)


def test_frequencies_are_those_of_ntk_by_parts_with_its_defaults(
    partial: Model, frequencies: Callable[..., Floats]
) -> None:
    np.testing.assert_array_equal(frequencies(YarnPaper(), partial, 9999), frequencies(NtkByParts(), partial, 9999))


def test_the_scale_is_that_of_yarn(llama2: Model) -> None:
    for factor, scale in ((2, 1.0693147), (8, 1.2079442), (32, 1.3465736)):
        assert YarnPaper(factor=factor).attention(llama2, 1).scale == pytest.approx(scale, rel=1e-7)
    assert YarnPaper(factor=40, attention_factor=1.25).attention(llama2, 1).scale == 1.25


def test_pair_36_of_llama_2_turns_less_than_half_as_fast_as_in_the_code(
    llama2: Model, frequencies: Callable[..., Floats]
) -> None:
    paper, code = frequencies(YarnPaper(factor=8), llama2, 1), frequencies(Yarn(factor=8), llama2, 1)
    assert paper[36] / code[36] == pytest.approx(0.43, abs=0.005)


def test_a_trained_length_given_takes_the_place_of_the_models(
    llama2: Model, frequencies: Callable[..., Floats]
) -> None:
    inv_freq = frequencies(YarnPaper(trained_length=1024), llama2, 4096)
    assert inv_freq[-1] == pytest.approx(10_000.0 ** (-126 / 128) / 4, rel=1e-12)


def test_bad_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="yarn_paper needs 0 <= alpha < beta, got alpha 32 and beta 1"):
        YarnPaper(alpha=32, beta=1)
    with pytest.raises(ValueError, match="yarn_paper needs 0 <= alpha < beta, got alpha -1"):
        YarnPaper(alpha=-1)
    with pytest.raises(ValueError, match="yarn_paper's factor must be finite and at least 1, got 0"):
        YarnPaper(factor=0)
    for scale in (0, -1, math.inf, math.nan):
        with pytest.raises(ValueError, match="yarn_paper's attention_factor must be finite and above 0"):
            YarnPaper(attention_factor=scale)
    with pytest.raises(ValueError, match="yarn_paper's trained_length must be at least 1, got 0"):
        YarnPaper(trained_length=0)
