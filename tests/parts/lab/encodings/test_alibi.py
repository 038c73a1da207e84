"""ALiBi's slopes and biases."""

import pytest
import torch

from lexbench.kernels.logits import Logits
from lexbench.kernels.resolution import curve_resolution, mean_logits
from lexbench.parts.lab.encodings.alibi import Alibi, head_slopes
from lexbench.parts.lab.native.decoder import attend_by_encoding


def test_slopes_are_those_of_the_paper() -> None:
    assert head_slopes(4) == [0.25, 0.0625, 0.015625, 0.00390625]
    assert head_slopes(8) == [2.0**-k for k in range(1, 9)]
    assert head_slopes(1) == [2.0**-8]
    # 12 heads: those of 8, then every second of 16's
    assert head_slopes(12) == pytest.approx([*head_slopes(8), 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5])
    with pytest.raises(ValueError, match="at least 1 head, got 0"):
        head_slopes(0)


@pytest.mark.slow
def test_slopes_are_those_of_transformers_bloom() -> None:
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    for heads in (4, 12, 20):
        theirs = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]  # at key 1
        torch.testing.assert_close(torch.tensor(head_slopes(heads)), theirs)


@pytest.mark.slow
def test_slopes_and_biases_are_those_of_x_transformers() -> None:
    theirs = pytest.importorskip("x_transformers.x_transformers").AlibiPositionalBias
    here, there = (torch.sort(torch.rand(2, n, dtype=torch.float64) * 50).values for n in (5, 9))
    for heads in (1, 4, 6, 12, 20):
        bias, ours = theirs(heads), Alibi(heads)
        torch.testing.assert_close(torch.tensor(head_slopes(heads)), bias.slopes[:, 0, 0])
        everyone = torch.arange(40)
        torch.testing.assert_close(ours.bias(everyone[-7:], everyone).tril(33), bias(7, 40).double().tril(33))
        custom, own = bias.forward_custom_pos(here, there), ours.bias(here, there)
        seen = there[:, None, None, :] <= here[:, None, :, None]
        torch.testing.assert_close(own * seen, custom.double() * seen)


def test_each_text_may_have_positions_of_its_own() -> None:
    positions = torch.tensor([[0.0, 1, 2, 3], [0, 2.5, 7, 100]], dtype=torch.float64)
    bias = Alibi(2).bias(positions[:, 2:], positions)
    assert bias.shape == (2, 2, 2, 4)
    assert bias.dtype == torch.float64
    for text in range(2):
        for head, slope in enumerate((2**-4, 2**-8)):
            for row in (0, 1):
                i = float(positions[text, 2 + row])
                expected = [-slope * (i - float(positions[text, j])) for j in range(3 + row)]
                assert bias[text, head, row, : 3 + row].tolist() == pytest.approx(expected, abs=0)
    # half a token in 100,000 is told apart in float32, not in bfloat16: the bias is float64 until it is added
    far = Alibi(8).bias(torch.tensor([100000.0]), torch.tensor([0.0, 0.5]))
    assert float(far[0, 0, 1] - far[0, 0, 0]) == 0.25


def test_the_bias_is_the_slope_times_the_distance() -> None:
    bias = Alibi(8).bias(torch.arange(4), torch.arange(4))
    assert bias.shape == (8, 4, 4)
    assert bias[0].tril().tolist() == [[0, 0, 0, 0], [-0.5, 0, 0, 0], [-1, -0.5, 0, 0], [-1.5, -1, -0.5, 0]]
    assert bias[7, 3, 0] == -3 / 256


def test_attention_falls_off_geometrically_where_contents_are_alike() -> None:
    encoding, tokens = Alibi(4), 50
    q, k = torch.zeros(1, 4, tokens, 8), torch.zeros(1, 2, tokens, 8)
    v = torch.eye(tokens)[None, None].expand(1, 2, -1, -1)
    weights = attend_by_encoding(0, encoding, q, k, v, torch.arange(tokens))[0, :, -1].double()
    ratio = torch.tensor(head_slopes(4), dtype=torch.float64).neg().exp()[:, None]
    back = torch.arange(tokens - 1, -1, -1)
    torch.testing.assert_close(weights, ratio**back * (1 - ratio) / (1 - ratio**tokens), atol=1e-6, rtol=1e-5)

    curves = mean_logits(q, k, Logits(rotate=encoding.rotate, scaling=1.0, bias=encoding.bias))
    torch.testing.assert_close(curves, ratio.log() * torch.arange(tokens))
    p = (ratio**back * (1 - ratio) / (1 - ratio**tokens)).flip(1)
    torch.testing.assert_close(curve_resolution(curves), (p**2).sum(1) - (p[:, 1:] * p[:, :-1]).sum(1))
