"""p-RoPE's frequencies, and what stands still."""

import numpy as np
import pytest
import torch

from lexbench.parts.lab.encodings.p_rope import PRope


def test_the_slowest_quarter_stands_still() -> None:
    np.testing.assert_allclose(PRope(8).inv_freq, [1, 0.1, 0.01, 0])
    np.testing.assert_allclose(PRope(8, share=0.25).inv_freq, [1, 0, 0, 0])
    assert not PRope(8, share=0).inv_freq.any()
    np.testing.assert_allclose(PRope(8, share=1, base=16.0).inv_freq, [1, 0.5, 0.25, 0.125])
    assert PRope(12, share=0.3).inv_freq.count_nonzero() == 1  # floor(1.8)


@pytest.mark.parametrize("share", [0.25, 0.3, 0.75, 1.0])
def test_it_is_transformers_proportional(share: float) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {"rope_type": "proportional", "rope_theta": 500.0, "partial_rotary_factor": share}
    config = LlamaConfig(head_dim=24, hidden_size=96, num_attention_heads=4, rope_parameters=rope)
    theirs, scale = ROPE_INIT_FUNCTIONS["proportional"](config)
    np.testing.assert_allclose(PRope(24, 500.0, share).inv_freq, theirs.numpy(), rtol=1e-6)
    assert scale == 1


def test_only_both_dimensions_of_the_fast_pairs_change() -> None:
    vectors = torch.arange(1.0, 9, dtype=torch.float64).expand(1, 1, 1, 8)
    got = PRope(8).rotate(vectors, torch.tensor([50.0]))[0, 0, 0]
    turn = 50 * np.array([1, 0.1, 0.01])
    first, second = np.arange(1.0, 4), np.arange(5.0, 8)
    np.testing.assert_allclose(got[:3], first * np.cos(turn) - second * np.sin(turn))
    np.testing.assert_allclose(got[4:7], second * np.cos(turn) + first * np.sin(turn))
    assert got[3] == 4 and got[7] == 8


def test_no_method_takes_its_angles_for_plain_ones() -> None:
    assert PRope(8).facts == {"rope_parameters": {"rope_type": "p_rope"}}


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_bad_shares_are_errors(share: float) -> None:
    with pytest.raises(ValueError, match=f"p_rope's share must be from 0 to 1, got {share}: the paper takes 0.75"):
        PRope(8, share=share)
