"""SSMax: n to the power of s z, one pair of tokens at a time."""

import math

import numpy as np
import pytest
import torch

from lexbench.core.attention import Attention
from lexbench.parts.lab.encodings.coca import Coca
from lexbench.parts.lab.encodings.rope import Rope
from lexbench.parts.lab.encodings.ssmax import Ssmax
from lexbench.parts.lab.native.attend import EncodingAttention
from tests.parts.lab.encodings.layouts import gated_layer

pytestmark = pytest.mark.usefixtures("one_thread")


def test_weights_are_powers_of_the_number_of_keys() -> None:
    encoding = Ssmax(rope := Rope(8), 4, 16)
    _, q, k, v = gated_layer(encoding)
    s, places = encoding.s.tolist(), torch.arange(9)
    turned, known = rope.rotate(q, places).numpy(), rope.rotate(k, places).numpy()
    expected = np.zeros((2, 4, 9, 8))
    for text in range(2):
        for head in range(4):
            for i in range(9):
                z = [turned[text, head, i] @ known[text, head // 2, j] / math.sqrt(8) for j in range(i + 1)]
                powers = np.array([(i + 1) ** (s[head] * one) for one in z])
                expected[text, head, i] = (powers / powers.sum()) @ v[text, head // 2, : i + 1].numpy()
    layer = EncodingAttention(encoding, Attention(), q, k, places)
    np.testing.assert_allclose(layer.attention_output(v).detach(), expected, rtol=1e-9)
    last = EncodingAttention(encoding, Attention(), q[:, :, 6:], k, places)
    np.testing.assert_allclose(last.attention_output(v).detach(), expected[:, :, 6:], rtol=1e-9)


def test_its_mean_factor_over_the_trained_length_begins_at_1() -> None:
    encoding = Ssmax(Rope(8), 4, 100)
    q, k = torch.ones(1, 4, 100, 8), torch.ones(1, 2, 100, 8)
    factors = encoding.prepare(q, k)[0][0, :, :, 0].detach()
    assert factors.mean(1).tolist() == pytest.approx([1.0] * 4, rel=1e-5)
    assert float(factors[0, 99]) == pytest.approx(1.2663, rel=1e-3)  # ln 100 over the mean 3.6366 of ln 1 .. ln 100
    assert float(Ssmax(Rope(8), 1, 1024).s.detach()) == pytest.approx(1 / 5.93575, rel=1e-5)  # by Stirling's formula


def test_encodings_that_use_queries_twice_are_refused() -> None:
    with pytest.raises(ValueError, match="ssmax cannot wrap coca, which has its own qk"):
        Ssmax(Coca(8), 4, 16)
    with pytest.raises(ValueError, match="trained length of at least 2, got 1"):
        Ssmax(Rope(8), 4, 1)
