"""GLA as a state that is updated token by token."""

import math

import numpy as np
import pytest
import torch

from lexbench.core.attention import Attention
from lexbench.parts.lab.encodings.gla import Gla
from lexbench.parts.lab.native.attend import EncodingAttention
from tests.parts.lab.encodings.layouts import gated_layer, sigmoid

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("tokens", [1, 9, 35])  # within a chunk of 16, and over three
def test_outputs_are_those_of_the_recurrence(tokens: int) -> None:
    encoding = Gla(8, 4, 2, 12, rank=3)
    x, q, k, v = gated_layer(encoding, tokens)
    own = {name: weight.detach().numpy() for name, weight in encoding.named_parameters()}
    expected = np.zeros((2, 4, tokens, 8))
    for text in range(2):
        for head in range(4):
            state, group = np.zeros((8, 8)), head // 2
            mine = slice(group * 8, group * 8 + 8)
            for t in range(tokens):
                one = x[text, t].numpy()
                fade = (own["up"] @ (own["down"] @ one) + own["fade_bias"])[mine]
                alpha = np.array([sigmoid(value) ** (1 / 16) for value in fade])
                state = alpha[:, None] * state + np.outer(k[text, group, t], v[text, group, t])
                output = q[text, head, t].numpy() @ state / math.sqrt(8)
                output *= own["gain"] / math.sqrt((output**2).mean() + 1e-5)
                opened = (own["output_gate"] @ one)[head * 8 : head * 8 + 8]
                expected[text, head, t] = output * opened * np.array([sigmoid(value) for value in opened])
    gates, places = encoding.gates(x), torch.arange(tokens)
    layer = EncodingAttention(encoding.with_gates(gates), Attention(), q, k, places)
    for got in (layer.attention_output(v), layer.attention_output(v, chunk=4)):
        np.testing.assert_allclose(got.detach(), expected, rtol=1e-8, atol=1e-10)
    last = EncodingAttention(encoding.with_gates(gates), Attention(), q[:, :, -1:], k, places).attention_output(v)
    np.testing.assert_allclose(last.detach(), expected[:, :, -1:], rtol=1e-8, atol=1e-10)


def test_states_that_fade_at_once_stay_finite_in_long_texts() -> None:
    encoding = Gla(8, 4, 2, 12)
    x, q, k, v = (each.float() for each in gated_layer(encoding, 600))
    encoding.float().fade_bias.data.fill_(-80.0)  # ln alpha = -5 a token
    got = EncodingAttention(
        encoding.with_gates(encoding.gates(x)), Attention(), q, k, torch.arange(600)
    ).attention_output(v)
    assert got.isfinite().all()


def test_the_state_begins_to_fade_by_a_24th_a_token() -> None:
    encoding = Gla(32, 4, 4, 128)
    encoding.initialise(torch.Generator().manual_seed(0))
    x = torch.randn(1, 500, 128, generator=torch.Generator().manual_seed(1))
    fades = encoding.gates(x)[..., :32].detach()
    # W2 W1 x has rms 0.02 sqrt(128) = 0.23 around 0: ln sigmoid(0) / 16 = -ln 2 / 16.
    assert float(fades.mean()) == pytest.approx(-math.log(2) / 16, rel=0.05)
    assert float((16 * fades).std()) == pytest.approx(0.23 / 2, rel=0.3)  # the slope of ln sigmoid at 0 is 1/2
    with pytest.raises(ValueError, match="rank must be at least 1, got 0"):
        Gla(8, 4, 2, 12, rank=0)
