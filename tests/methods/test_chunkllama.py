import math

import numpy as np
import pytest

from lexbench import Model, Refused
from lexbench.methods.chunkllama import Chunkllama
from tests.methods.remaps import distances, plain, trained_on


@pytest.mark.parametrize(("trained_length", "chunk", "limit"), [(32, 20, 24), (16, 10, 12), (30, 19, 22), (1, 1, 1)])
def test_chunks_are_those_of_the_released_code(trained_length: int, chunk: int, limit: int) -> None:
    # floor(3L/4) - floor(L/8): 30 tokens give 22 - 3.
    expected = np.full((60, 60), -1)
    for i in range(60):
        for j in range(i + 1):
            apart, inside = i // chunk - j // chunk, i % chunk
            asking = inside if apart == 0 else min(inside + chunk, limit) if apart == 1 else limit
            expected[i, j] = asking - j % chunk
    np.testing.assert_array_equal(distances(Chunkllama(), trained_on(trained_length), 60), expected)


@pytest.mark.parametrize(("length", "scale"), [(8192, 1.034657359), (16384, 1.069314718), (32768, 1.103972077)])
def test_cos_and_sin_grow_with_the_logarithm_of_the_length(llama2: Model, length: int, scale: float) -> None:
    assert Chunkllama().attention(llama2, length).scale == pytest.approx(scale, rel=1e-9)


def test_a_factor_of_one_is_no_scale(llama2: Model) -> None:
    assert Chunkllama(attention_factor=1).attention(llama2, 32768).slots() == ("remap",)
    assert Chunkllama(attention_factor=1.25).attention(llama2, 100).scale == 1.25


@pytest.mark.parametrize("length", [1, 10])
def test_up_to_a_chunk_it_is_the_model(tiny: Model, length: int) -> None:
    np.testing.assert_array_equal(distances(Chunkllama(), tiny, length), plain(length))
    assert Chunkllama().attention(tiny, length).scale is None


def test_within_the_trained_length_there_is_no_scale(llama2: Model) -> None:
    assert Chunkllama().attention(llama2, 4096).scale is None


def test_a_scale_never_replaces_the_models_own(scaled: Model) -> None:
    with pytest.raises(Refused, match=r"scaled already scales its rotation, chunkllama would replace that by 1\.035"):
        Chunkllama().attention(scaled, 8192)
    assert Chunkllama(attention_factor=1).attention(scaled, 8192).slots() == ("remap",)


def test_bad_factors_are_refused() -> None:
    for factor in (0, -1, math.inf, math.nan):
        with pytest.raises(ValueError, match="chunkllama's attention_factor must be finite and above 0"):
            Chunkllama(attention_factor=factor)
