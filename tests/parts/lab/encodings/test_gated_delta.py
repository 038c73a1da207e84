"""The gated delta rule, token by token, and by transformers' own layer."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers import Qwen3NextConfig
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

from lexbench.core.attention import Attention, LogScale
from lexbench.parts.lab.encodings.gated_delta import GatedDelta, delta_rule
from lexbench.parts.lab.native.attend import EncodingAttention
from tests.parts.lab.encodings.layouts import drawn_twice_alike

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("tokens", [1, 33, 70])  # within a chunk of 32, and over three
def test_the_rule_is_the_recurrence(tokens: int) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v, g, b = (
        torch.randn(1, 2, *shape, generator=generator, dtype=torch.float64)
        for shape in ((3, tokens, 4), (tokens, 4), (tokens, 5), (tokens, 1), (tokens, 1))
    )
    k, fades, strength = F.normalize(k, dim=-1), -g.abs(), b.sigmoid()
    got = delta_rule(q, k, v, fades, strength)
    for head in range(2):
        state = np.zeros((4, 5))
        for t in range(tokens):
            state = state * float(fades[0, head, t].exp())
            key = k[0, head, t].numpy()
            state = state + np.outer(key, float(strength[0, head, t]) * (v[0, head, t].numpy() - key @ state))
            expected = q[0, head, :, t].numpy() @ state / 2
            np.testing.assert_allclose(got[0, head, :, t], expected, rtol=1e-9, atol=1e-12)


def test_outputs_are_those_of_transformers_layer() -> None:
    config = Qwen3NextConfig(
        hidden_size=24,
        linear_num_key_heads=4,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        num_hidden_layers=4,
    )
    torch.manual_seed(0)
    theirs, ours = Qwen3NextGatedDeltaNet(config, 0).eval(), GatedDelta(8, 4, 4, 24)
    for weight in theirs.parameters():
        nn.init.normal_(weight, std=0.5)
    whole, both = theirs.in_proj_qkvz.weight.reshape(4, 4, 8, 24), theirs.in_proj_ba.weight.reshape(4, 2, 24)
    ours.output_gate.data = whole[:, 3].flatten(0, 1).detach()
    ours.strength.data, ours.fade.data = both[:, 0].detach(), both[:, 1].detach()
    ours.fade_bias.data, ours.log_rate.data = theirs.dt_bias.detach(), theirs.A_log.detach()
    ours.mix_queries.data, ours.mix_keys.data, ours.mix_values.data = theirs.conv1d.weight.detach().split(32)
    ours.gain.data = theirs.norm.weight.detach()
    x = torch.randn(2, 40, 24)
    q, k, v = (F.linear(x, whole[:, place].flatten(0, 1)).reshape(2, 40, 4, 8).transpose(1, 2) for place in range(3))
    given = ours.with_gates(ours.cached_inputs(x, q))
    with torch.inference_mode():
        expected = theirs(x)
        for count in (40, 3):
            one = EncodingAttention(given, Attention(), q[:, :, -count:], k, torch.arange(40))
            got = theirs.out_proj(one.attention_output(v).transpose(1, 2).flatten(2))
            torch.testing.assert_close(got, expected[:, -count:], atol=1e-5, rtol=1e-5)


def test_it_begins_as_qwen3_next_and_takes_no_method() -> None:
    encoding = GatedDelta(8, 400, 200, 24)
    encoding.initialise(torch.Generator().manual_seed(0))
    rates = encoding.log_rate.detach().exp()
    assert 0 < float(rates.min()) < 1 and 15 < float(rates.max()) < 16
    assert float(rates.mean()) == pytest.approx(8, abs=1)
    drawn_twice_alike(GatedDelta(8, 4, 2, 12), GatedDelta(8, 4, 2, 12))
    with pytest.raises(ValueError, match="no attention that a method could change: use method=none"):
        encoding.rotation(Attention(query_scale=LogScale(4)))
    with pytest.raises(ValueError, match="no encoding can stand around gated_delta: use delta_hybrid"):
        encoding.gates(torch.zeros(1, 1, 24))
    with pytest.raises(ValueError, match="kernel must be at least 1 token, got 0"):
        GatedDelta(8, 4, 2, 12, kernel=0)
