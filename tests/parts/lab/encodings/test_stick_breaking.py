"""Stick-breaking weights, broken off one after the other by loops."""

import math

import numpy as np
import pytest
import torch

from lexbench.core.attention import Attention, Window
from lexbench.parts.lab.encodings.stick_breaking import StickBreaking
from lexbench.parts.lab.native.attend import EncodingAttention
from tests.parts.lab.encodings.layouts import gated_layer, sigmoid

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("window", [99, 4])
def test_outputs_are_those_of_a_stick_that_is_broken(window: int) -> None:
    encoding = StickBreaking()
    _, q, k, v = gated_layer(encoding)
    weights = np.zeros((2, 4, 9, 9))
    for text in range(2):
        for head in range(4):
            for i in range(9):
                left = 1.0
                for j in range(i - 1, max(-1, i - window), -1):
                    beta = sigmoid(float(q[text, head, i] @ k[text, head // 2, j]) / math.sqrt(8))
                    weights[text, head, i, j] = left * beta
                    left *= 1 - beta
                weights[text, head, i, i] = left
    expected = np.einsum("bhij,bhjd->bhid", weights, v.repeat_interleave(2, 1).numpy())
    layer = EncodingAttention(encoding, attention := Attention(mask=Window(window)), q, k, torch.arange(9))
    np.testing.assert_allclose(layer.logits(0, 9).exp(), weights, rtol=1e-9, atol=1e-14)  # the weights themselves
    for got in (layer.attention_output(v), layer.attention_output(v, chunk=4)):
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12)
    last = EncodingAttention(encoding, attention, q[:, :, 5:], k, torch.arange(9)).attention_output(v)
    np.testing.assert_allclose(last, expected[:, :, 5:], rtol=1e-9, atol=1e-12)


def test_without_content_each_key_halves_what_is_left() -> None:
    q = torch.zeros(1, 1, 60, 8)
    weights = (
        EncodingAttention(StickBreaking(), Attention(), q, q, torch.arange(60)).logits(59, 60).softmax(-1)[0, 0, 0]
    )
    assert weights.flip(0)[1:].tolist() == pytest.approx([2.0**-n for n in range(1, 60)], rel=1e-4)
    assert float(weights[-1]) == pytest.approx(2.0**-59, rel=1e-4)


def test_far_keys_of_sure_queries_underflow_without_nan() -> None:
    q = torch.full((1, 1, 50, 8), 10.0)
    layer = EncodingAttention(StickBreaking(), Attention(), q.requires_grad_(), q, torch.arange(50))
    layer.attention_output(torch.ones(1, 1, 50, 8)).sum().backward()  # type: ignore[no-untyped-call]
    assert q.grad is not None and q.grad.isfinite().all()
