"""InvLeaky ReRoPE: the article's distances in training, none of its own at use."""

import numpy as np
import pytest
import torch

from lexbench import Attention
from lexbench.core.attention import seen_distances
from lexbench.parts.lab.encodings.alibi import Alibi
from lexbench.parts.lab.encodings.inverse_leaky_rerope import InverseLeakyRerope
from lexbench.parts.lab.encodings.rope import Rope
from lexbench.parts.lab.native.attend import EncodingAttention
from lexbench.parts.lab.native.decoder import Decoder, DecoderShape

pytestmark = pytest.mark.usefixtures("one_thread")


def test_far_distances_grow_in_steps_of_twice_the_expansion() -> None:
    encoding = InverseLeakyRerope(Rope(8), 16, expansion=2)
    places = np.arange(12)
    got = seen_distances(encoding.attention.remap, places, places)
    assert got[11].tolist() == [32, 28, 24, 20, 16, 12, 8, 4, 3, 2, 1, 0]  # w = 4, 1 / k = 4
    rel = places[:, None] - places
    expected = np.where(rel < 4, rel, 4 + (rel - 4) * 4).astype(float)
    np.testing.assert_allclose(got, np.where(rel >= 0, expected, np.nan))


def test_the_articles_largest_trained_distance() -> None:
    remap = InverseLeakyRerope(Rope(64), 512).attention.remap
    assert seen_distances(remap, np.array([511]), np.array([0])) == 6256
    wide = InverseLeakyRerope(Rope(64), 512, window=200).attention.remap
    assert seen_distances(wide, np.array([511]), np.array([311, 310])).tolist() == [[200, 216]]


def test_logits_in_training_are_those_of_the_distances_and_plain_at_use() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, heads, 9, 8, generator=generator, dtype=torch.float64) for heads in (4, 2))
    rope, places = Rope(8), torch.arange(9)
    encoding = InverseLeakyRerope(rope, 8, expansion=1.5).train()  # w = 2, 1 / k = 3
    got = EncodingAttention(encoding, encoding.attention, q, k, places).logits(0, 9)
    for i in range(9):
        for j in range(i + 1):
            far = i - j if i - j < 2 else 2 + 3 * (i - j - 2)
            turned = rope.rotate(q[:, :, i : i + 1], torch.tensor([far]))[0, :, 0]
            expected = (turned * k[0, :, j].repeat_interleave(2, dim=0)).sum(-1) / 8**0.5
            torch.testing.assert_close(got[0, :, i, j], expected)
    encoding.eval()
    assert encoding.attention.slots() == ()
    plain = EncodingAttention(rope, Attention(), q, k, places).logits(0, 9)
    torch.testing.assert_close(EncodingAttention(encoding, encoding.attention, q, k, places).logits(0, 9), plain)


def test_training_has_gradients_and_leaves_the_inner_encoding() -> None:
    shape = DecoderShape(vocabulary=97, layers=2, width=32, heads=4, kv_heads=2, hidden=48)
    decoder = Decoder(shape, InverseLeakyRerope(rope := Rope(8), 16))
    decoder.initialise(0)
    tokens = torch.randint(0, 97, (2, 16), generator=torch.Generator().manual_seed(1))
    remapped = decoder.train()(tokens)
    remapped.logsumexp(-1).sum().backward()
    assert all(weight.grad is not None and weight.grad.abs().max() > 0 for weight in decoder.parameters())
    assert (remapped - decoder.eval()(tokens)).abs().max() > 1e-5
    torch.testing.assert_close(decoder.eval()(tokens[:, :4]), decoder.train()(tokens[:, :4]))  # inside the window
    assert decoder.encoding.used is rope


def test_bad_parameters_are_errors() -> None:
    with pytest.raises(ValueError, match="those of alibi cannot: over=rope"):
        InverseLeakyRerope(Alibi(4), 16)
    with pytest.raises(ValueError, match=r"expansion must be finite and at least 0.5, got 0.4: the article takes 8"):
        InverseLeakyRerope(Rope(8), 16, expansion=0.4)
    with pytest.raises(ValueError, match="window must be at least 1, got 0"):
        InverseLeakyRerope(Rope(8), 16, window=0)
