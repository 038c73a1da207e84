"""Training with ReRoPE: the method's logits, in training and at use."""

import pytest
import torch

from lexbench.methods.rerope import Rerope as Method
from lexbench.parts.lab.encodings.alibi import Alibi
from lexbench.parts.lab.encodings.rerope import Rerope
from lexbench.parts.lab.encodings.rope import Rope
from lexbench.parts.lab.native.attend import EncodingAttention
from lexbench.parts.lab.native.decoder import Decoder, DecoderShape

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("training", [True, False])
def test_no_key_is_farther_than_the_window(training: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, heads, 9, 8, generator=generator, dtype=torch.float64) for heads in (4, 2))
    rope = Rope(8)
    encoding = Rerope(rope, 6).train(training)  # w = 3
    got = EncodingAttention(encoding, encoding.attention, q, k, torch.arange(9)).logits(0, 9)
    for i in range(9):
        for j in range(i + 1):
            turned = rope.rotate(q[:, :, i : i + 1], torch.tensor([min(i - j, 3)]))[0, :, 0]
            expected = (turned * k[0, :, j].repeat_interleave(2, dim=0)).sum(-1) / 8**0.5
            torch.testing.assert_close(got[0, :, i, j], expected)


def test_the_remap_is_the_methods_and_it_trains() -> None:
    assert Rerope(Rope(8), 99).window == 49
    shape = DecoderShape(vocabulary=97, layers=2, width=32, heads=4, kv_heads=2, hidden=48)
    decoder = Decoder(shape, Rerope(Rope(8), 8)).train()
    decoder.initialise(0)
    decoder(torch.randint(0, 97, (2, 16), generator=torch.Generator().manual_seed(1))).logsumexp(-1).sum().backward()
    assert all(weight.grad is not None and weight.grad.abs().max() > 0 for weight in decoder.parameters())
    assert isinstance(decoder.encoding.used, Rerope)
    assert Method(window=4).window == Rerope(Rope(8), 8).window


def test_bad_parameters_are_errors() -> None:
    with pytest.raises(ValueError, match="those of alibi cannot: over=rope"):
        Rerope(Alibi(4), 16)
    with pytest.raises(ValueError, match="window must be at least 1 token, got 0"):
        Rerope(Rope(8), 16, window=0)
