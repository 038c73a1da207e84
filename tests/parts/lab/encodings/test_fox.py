"""FoX's sums of logarithms of forget gates, by loops."""

import math

import numpy as np
import pytest
import torch

from lexbench.core.attention import Attention, Window
from lexbench.parts.lab.encodings.alibi import Alibi
from lexbench.parts.lab.encodings.base import Encoding
from lexbench.parts.lab.encodings.fox import Fox
from lexbench.parts.lab.encodings.rope import Rope
from lexbench.parts.lab.native.attend import EncodingAttention
from tests.parts.lab.encodings.layouts import gated_layer, sigmoid

pytestmark = pytest.mark.usefixtures("one_thread")


def made() -> Fox:
    return Fox(Encoding(), 4, 12)


def test_outputs_are_those_of_loops_over_queries_and_keys() -> None:
    encoding = made()
    x, q, k, v = gated_layer(encoding)
    w, b = (weight.detach().numpy() for weight in encoding.parameters())
    logits, expected = np.full((2, 4, 9, 9), -np.inf), np.zeros((2, 4, 9, 8))
    for text in range(2):
        for head in range(4):
            each = [math.log(sigmoid(float(x[text, t].numpy() @ w[head]) + b[head])) for t in range(9)]
            for i in range(9):
                for j in range(i + 1):
                    product = float(q[text, head, i] @ k[text, head // 2, j]) / math.sqrt(8)
                    logits[text, head, i, j] = product + sum(each[j + 1 : i + 1])
                weights = np.exp(logits[text, head, i, : i + 1])
                expected[text, head, i] = weights / weights.sum() @ v[text, head // 2, : i + 1].numpy()
    gates, places = encoding.gates(x), torch.arange(9)
    layer = EncodingAttention(encoding.with_gates(gates), Attention(), q, k, places)
    np.testing.assert_allclose(layer.logits(0, 9).detach(), logits, rtol=1e-9, atol=1e-12)
    for got in (layer.attention_output(v), layer.attention_output(v, chunk=4)):
        np.testing.assert_allclose(got.detach(), expected, rtol=1e-9)
    last = EncodingAttention(encoding.with_gates(gates), Attention(), q[:, :, 5:], k, places).attention_output(v)
    np.testing.assert_allclose(last.detach(), expected[:, :, 5:], rtol=1e-9)
    near = EncodingAttention(encoding.with_gates(gates), Attention(mask=Window(3)), q, k, places).logits(0, 9).detach()
    seen = np.tril(np.ones((9, 9), dtype=bool)) & ~np.tril(np.ones((9, 9), dtype=bool), -3)
    np.testing.assert_allclose(near[..., torch.from_numpy(seen)], logits[..., seen], rtol=1e-9, atol=1e-12)


def test_a_constant_gate_is_alibi() -> None:
    encoding, alibi, places = made(), Alibi(4), torch.arange(9, dtype=torch.float64)
    slopes = alibi.slopes
    encoding.forget_bias.data = (-slopes.expm1().log()).float()  # sigmoid(-ln(e^m - 1)) = e^-m
    gated = encoding.with_gates(encoding.gates(torch.ones(1, 9, 12)))
    seen = torch.ones(9, 9, dtype=torch.bool).tril()
    got = gated.bias(places, places)
    assert got is not None
    torch.testing.assert_close(got[0][:, seen].detach(), alibi.bias(places, places)[:, seen], atol=1e-5, rtol=1e-5)


def test_over_rope_both_act() -> None:
    encoding, rope = Fox(Rope(8), 4, 12), Rope(8)
    x, q, k, _ = gated_layer(encoding)
    places, gated = torch.arange(9, dtype=torch.float64), encoding.with_gates(encoding.gates(x))
    plain = EncodingAttention(rope, Attention(), q, k, places).logits(0, 9)
    both = EncodingAttention(gated, Attention(), q, k, places).logits(0, 9)
    bias = gated.bias(places, places)
    assert bias is not None
    torch.testing.assert_close(both.detach(), (plain + bias).detach())
    with pytest.raises(ValueError, match="fox cannot wrap fox, which has its own gates"):
        Fox(made(), 4, 12)


def test_every_layer_has_its_own_weights() -> None:
    assert not Fox.shared
    one, two = made(), made()
    for each in (one, two):
        each.initialise(torch.Generator().manual_seed(3))
    assert all(torch.equal(left, right) for left, right in zip(one.parameters(), two.parameters(), strict=True))
    w, b = one.parameters()
    assert float(w.detach().std()) == pytest.approx(0.02, rel=0.3) and not b.any()
