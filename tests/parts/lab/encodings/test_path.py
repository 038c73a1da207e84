"""PaTH by products of Householder matrices, one pair of tokens after the other."""

import math

import numpy as np
import pytest
import torch

from lexbench.core.attention import Attention
from lexbench.parts.lab.encodings.path import Path
from lexbench.parts.lab.native.attend import EncodingAttention
from tests.parts.lab.encodings.layouts import gated_layer, sigmoid

pytestmark = pytest.mark.usefixtures("one_thread")


def test_logits_are_products_of_matrices_between_key_and_query() -> None:
    encoding = Path(8, 2, 12)
    x, q, k, v = gated_layer(encoding)
    own = {name: weight.detach().numpy() for name, weight in encoding.named_parameters()}
    logits = np.full((2, 4, 9, 9), -np.inf)
    for text in range(2):
        raw = [own["direction"] @ x[text, t].numpy() for t in range(9)]
        for head in range(4):
            group, steps = head // 2, []
            for t in range(9):
                mixed = np.zeros(8)
                for back in range(min(3, t + 1)):  # the last weight of a kernel is the token's own
                    mixed += (raw[t - back] * own["convolution"][:, 0, 2 - back])[group * 8 : group * 8 + 8]
                w = np.array([one * sigmoid(one) for one in mixed])
                w /= math.sqrt(w @ w)
                beta = 2 * sigmoid(float(x[text, t].numpy() @ own["strength"][group]) + own["strength_bias"][group])
                steps.append(np.eye(8) - beta * np.outer(w, w))
            for i in range(9):
                query = q[text, head, i].numpy()
                for j in range(i, -1, -1):
                    logits[text, head, i, j] = query @ k[text, group, j].numpy() / math.sqrt(8)
                    query = query @ steps[j]
    places = torch.arange(9)
    gates = encoding.gates(x)
    layer = EncodingAttention(encoding.with_gates(gates), Attention(), q, k, places)
    np.testing.assert_allclose(layer.logits(0, 9).detach(), logits, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(layer.logits(3, 7).detach(), logits[:, :, 3:7, :7], rtol=1e-8, atol=1e-10)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    expected = np.einsum("bhij,bhjd->bhid", weights, v.repeat_interleave(2, 1).numpy())
    np.testing.assert_allclose(layer.attention_output(v).detach(), expected, rtol=1e-8)
    last = EncodingAttention(encoding.with_gates(gates), Attention(), q[:, :, 8:], k, places).attention_output(v)
    np.testing.assert_allclose(last.detach(), expected[:, :, 8:], rtol=1e-8)


def test_matrices_begin_as_projections_that_change_a_logit_by_a_small_share_a_token() -> None:
    # c = 0 and b . x near 0: beta near 1, H removes one of d directions, so |H q|^2 is (d - 1) / d of |q|^2.
    encoding = Path(32, 4, 128)
    encoding.initialise(torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(1, 128, 128, generator=generator)
    q = torch.randn(1, 4, 128, 32, generator=generator)
    gated = encoding.with_gates(encoding.gates(x).detach())
    found = gated.products(q, torch.eye(32).repeat(1, 4, 4, 1), torch.arange(128), torch.arange(128), lambda v, _: v)
    # Keys are the unit vectors in turn: the last 32 hold dimensions of the query after 0 to 31 matrices.
    kept = (found[0, :, -1, -32:].square().mean() / q[0, :, -1].square().mean()).item()
    mean = np.mean([(31 / 32) ** n for n in range(32)])
    assert kept == pytest.approx(mean, rel=0.35)


def test_without_matrices_it_has_no_positions() -> None:
    encoding = Path(8, 2, 12)
    x, q, k, _ = gated_layer(encoding)
    encoding.strength_bias.data.fill_(-800.0)
    gated = encoding.with_gates(encoding.gates(x))
    got = EncodingAttention(gated, Attention(), q, k, torch.arange(9)).logits(0, 9).detach()
    seen = torch.ones(9, 9, dtype=torch.bool).tril()
    plain = q @ k.repeat_interleave(2, 1).mT / math.sqrt(8)
    torch.testing.assert_close(got[..., seen], plain[..., seen])
    with pytest.raises(ValueError, match="kernel must be at least 1 token, got 0"):
        Path(8, 2, 12, kernel=0)
