from dataclasses import replace

import numpy as np
import pytest
import torch

from lexbench import Model
from lexbench.core.attention import TopKMask, Window
from lexbench.core.record import Refused
from lexbench.kernels import dense
from lexbench.kernels.reference import Angles, attention_weights
from lexbench.methods.lambda_mask import LambdaMask
from tests.methods.remaps import distances, plain


@pytest.mark.parametrize(("window", "sinks"), [(5, 2), (4, 0), (1, 1), (8, 10), (30, 2)])
def test_the_last_keys_and_the_first_are_seen_none_further_than_the_window(
    tiny: Model, window: int, sinks: int
) -> None:
    expected = [
        [min(i - j, window) if j <= i and (i - j < window or j < sinks) else -1 for j in range(30)] for i in range(30)
    ]
    np.testing.assert_array_equal(distances(LambdaMask(window=window, sinks=sinks), tiny, 30), expected)


def test_left_out_the_window_is_the_trained_length_and_ten_tokens_are_kept(tiny: Model) -> None:
    last = distances(LambdaMask(), tiny, 40)[39]
    np.testing.assert_array_equal(last, [16] * 10 + [-1] * 14 + list(range(15, -1, -1)))


def test_up_to_the_window_it_is_the_model(tiny: Model) -> None:
    np.testing.assert_array_equal(distances(LambdaMask(), tiny, 16), plain(16))


def test_models_that_scale_their_angles_keep_them(scaled: Model) -> None:
    assert LambdaMask().attention(scaled, 8192).slots() == ("remap", "mask")


def test_bad_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="lambda_mask's window must be a whole number of at least 1, got 0"):
        LambdaMask(window=0)
    with pytest.raises(ValueError, match="lambda_mask's sinks must be a whole number of at least 0, got -1"):
        LambdaMask(sinks=-1)


def test_the_best_keys_of_the_middle_are_seen_by_each_head(tiny: Model) -> None:
    attention = LambdaMask(window=6, sinks=2, middle=3, middle_from=0).attention(replace(tiny, layers=2), 30).at(1)
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, heads, 30, 8, generator=generator, dtype=torch.float64) for heads in (4, 2))
    frequencies = tiny.inv_freq()

    def rotate(vectors: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        turn = places.double()[:, None] * torch.from_numpy(frequencies.copy())
        one, two = vectors.chunk(2, dim=-1)
        return torch.cat([one * turn.cos() - two * turn.sin(), two * turn.cos() + one * turn.sin()], dim=-1)

    scores = dense.masked_scores(q, k, attention, rotate)[0]
    for head in range(4):
        for i in range(30):
            logits = {}
            for j in range(i + 1):
                turned = rotate(q[:, head, i : i + 1], torch.tensor([float(min(i - j, 6))]))
                logits[j] = float(turned[0, 0] @ k[0, head // 2, j])
            middle = sorted((j for j in logits if i - j >= 6 and j >= 2), key=lambda j: logits[j])[-3:]
            seen = {j for j in logits if i - j < 6 or j < 2} | set(middle)
            found = {j: float(scores[head, i, j]) for j in range(30) if scores[head, i, j] > -torch.inf}
            assert found.keys() == seen
            assert all(found[j] == pytest.approx(logits[j], rel=1e-9, abs=1e-12) for j in seen)
    own = Angles(frequencies)
    reference = attention_weights(attention, own, q[0, 3, 29].numpy(), k[0, 1].numpy(), 29, 1.0, 3)
    np.testing.assert_allclose(scores[3, 29].softmax(-1), reference, rtol=1e-9, atol=1e-14)


def test_keys_of_the_middle_are_for_later_layers_alone_and_off_by_default(tiny: Model) -> None:
    attention = LambdaMask(middle=5).attention(replace(tiny, layers=8), 40)
    assert attention.at(4).mask == Window(16, sinks=10) and attention.at(5).mask == TopKMask(16, 10, 5)
    assert attention.layers == (5, 6, 7)
    with pytest.raises(Refused, match="middle keys begin at layer 5, tiny has 4 layers: lower middle_from"):
        LambdaMask(middle=5).attention(replace(tiny, layers=4), 40)
    with pytest.raises(ValueError, match="count of at least 1"):
        TopKMask(4, 0, 0)
