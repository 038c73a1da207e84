"""Facts about a network, and its plain rotary angles."""

import math
from typing import Any

import numpy as np
import pytest

from lexbench import Model, Refused

LLAMA: dict[str, Any] = {"name": "tiny", "trained_length": 16, "head_dim": 8, "rope_base": 10_000.0}


def test_plain_angles_fall_from_one_radian_per_token_by_equal_ratios() -> None:
    # 10000^(-2p/8) = 10^-p
    np.testing.assert_allclose(Model(**LLAMA).inv_freq(), [1, 0.1, 0.01, 0.001], rtol=1e-15)


def test_only_the_rotated_part_of_a_head_counts() -> None:
    partial = Model(**LLAMA | {"head_dim": 64, "rotary_dim": 8})
    assert partial.rotated == 8
    np.testing.assert_allclose(partial.inv_freq(), [1, 0.1, 0.01, 0.001], rtol=1e-15)


def test_angles_of_another_base_keep_the_head() -> None:
    # 16^(-2p/8) = 2^-p
    np.testing.assert_allclose(Model(**LLAMA).inv_freq(base=16), [1, 0.5, 0.25, 0.125], rtol=1e-15)


def test_angles_equal_those_of_transformers() -> None:
    from transformers import PhiConfig
    from transformers.models.phi.modeling_phi import PhiRotaryEmbedding

    rope = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.4}
    theirs = PhiRotaryEmbedding(PhiConfig(hidden_size=2560, num_attention_heads=32, rope_parameters=rope)).inv_freq
    phi = Model(name="phi", trained_length=2048, head_dim=80, rotary_dim=32, rope_base=10_000.0)
    np.testing.assert_allclose(phi.inv_freq(), theirs.double().numpy(), rtol=1e-6)


REFUSALS = [
    ({"rope_base": None}, "no rotary positions"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, r"already scales its angles \(yarn\)"),
    (
        {"rope_base": None, "rope_scaling": {"full_attention": {"rope_theta": 1e6}}},
        r"already scales its angles \(layers of several kinds\)",
    ),
]


@pytest.mark.parametrize(("changed", "reason"), REFUSALS)
def test_a_model_without_plain_rope_refuses_to_give_angles(changed: dict[str, Any], reason: str) -> None:
    model = Model(**LLAMA | changed)
    with pytest.raises(Refused, match=reason):
        model.inv_freq()
    with pytest.raises(Refused, match=reason):
        model.inv_freq(base=5e5)


WRONG = [
    ({"layers": True}, "model.layers must be a whole number of at least 1, got True"),
    ({"trained_length": 0}, "model.trained_length must be a whole number of at least 1, got 0"),
    ({"trained_length": "long"}, "trained_length must be a whole number of at least 1, got 'long'"),
    ({"trained_length": None}, "trained_length must be a whole number"),
    ({"head_dim": 2.5}, "head_dim must be a whole number"),
    ({"layers": -1}, "layers must be a whole number"),
    ({"bos": "no"}, "model.bos must be true, false or null"),
    ({"rope_base": 1.0}, "rope_base must be finite and above 1"),
    ({"rope_base": math.inf}, "rope_base must be finite and above 1"),
    ({"rope_base": "1e4x"}, "rope_base must be finite and above 1"),
    ({"rotary_dim": 3}, "rotary_dim must be even and at most head_dim 8, got 3"),
    ({"rotary_dim": 10}, "rotary_dim must be even and at most head_dim 8, got 10"),
    ({"head_dim": 7}, "must be even and at most head_dim 7, got 7"),
    ({"rotary_layout": "spiral"}, "rotary_layout must be half or interleaved, got spiral"),
]


@pytest.mark.parametrize(("changed", "said"), WRONG)
def test_an_impossible_fact_is_said_in_one_line(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said) as raised:
        Model(**LLAMA | changed)
    assert "\n" not in str(raised.value)


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    assert Model(**LLAMA | {"trained_length": np.int64(32)}).trained_length == 32


def test_a_head_of_odd_size_may_stay_unrotated() -> None:
    assert Model(**LLAMA | {"head_dim": 7, "rope_base": None}).head_dim == 7


@pytest.mark.parametrize("length", [1 << 53, 10**18])
def test_a_length_that_no_cell_can_hold_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match=r"model\.trained_length must be below 2\^53"):
        Model(name="m", trained_length=length, head_dim=8)
    with pytest.raises(ValueError, match=r"model\.max_position_embeddings must be below 2\^53"):
        Model(name="m", trained_length=256, head_dim=8, max_position_embeddings=length)
