import math

import numpy as np
import pytest

from lexbench import Model
from lexbench.core.attention import Floats
from lexbench.methods.attention_buckets import AttentionBuckets

PAPER = [10_000.0, 17_500.0, 18_000.0, 19_000.0, 20_000.0, 25_000.0]


def passes(method: AttentionBuckets, model: Model, length: int = 1024) -> list[Floats]:
    """[passes] of [pairs] radians per token."""
    attention = method.attention(model, length)
    assert attention.slots() == ("mixture",)
    assert attention.mixture is not None
    found = [part.inv_freq for part in attention.mixture if part.slots() == ("inv_freq",)]
    assert len(found) == len(attention.mixture)
    return [inv_freq for inv_freq in found if inv_freq is not None]


def test_bases_left_out_are_the_papers_on_its_models(llama2: Model) -> None:
    expected = [[base ** (-2 * pair / 128) for pair in range(64)] for base in PAPER]
    np.testing.assert_allclose(passes(AttentionBuckets(), llama2), expected, rtol=1e-12)
    np.testing.assert_allclose(passes(AttentionBuckets(), llama2, 100_000), expected, rtol=1e-12)


def test_on_another_base_they_keep_their_ratios(llama3_1: Model) -> None:
    expected = [[(50 * base) ** (-2 * pair / 128) for pair in range(64)] for base in PAPER]
    np.testing.assert_allclose(passes(AttentionBuckets(), llama3_1), expected, rtol=1e-12)


def test_bases_given_are_taken_in_their_order(partial: Model) -> None:
    expected = [[base ** (-2 * pair / 16) for pair in range(8)] for base in (2e4, 1e4, 3e4)]
    np.testing.assert_allclose(passes(AttentionBuckets(bases=[2e4, 1e4, 3e4]), partial), expected, rtol=1e-12)


def test_the_models_own_base_twice_is_the_model(llama2: Model) -> None:
    for inv_freq in passes(AttentionBuckets(bases=[1e4, 1e4]), llama2):
        np.testing.assert_array_equal(inv_freq, llama2.inv_freq())


def test_bases_of_a_list_are_hashable() -> None:
    assert hash(AttentionBuckets(bases=[1e4, 2e4])) == hash(AttentionBuckets(bases=(1e4, 2e4)))


def test_bad_bases_are_refused() -> None:
    for bases in ([], [1e4], [1e4, 1.0], [1e4, math.inf], [1e4, math.nan]):
        with pytest.raises(ValueError, match="attention_buckets needs at least 2 bases, finite and above 1"):
            AttentionBuckets(bases=bases)
