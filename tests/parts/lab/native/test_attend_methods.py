"""Methods in our own decoder's layer: the same scores as of their formulas, and as of the dense kernel."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from lexbench import Model
from lexbench.core.attention import Attention
from lexbench.kernels import dense
from lexbench.methods.dynamic_ntk import DynamicNtk
from lexbench.methods.lambda_mask import LambdaMask
from lexbench.parts.lab.encodings.rope import Rope
from lexbench.parts.lab.native.attend import EncodingAttention
from tests.methods.test_dynamic_ntk import closed_form


@pytest.fixture
def tiny() -> Model:
    """Four pairs with frequencies 1, 0.1, 0.01, 0.001."""
    return Model(name="tiny", trained_length=16, head_dim=8, rope_base=10_000.0)


def test_per_position_each_query_sees_the_frequencies_of_a_text_that_ends_with_it(tiny: Model) -> None:
    attention = DynamicNtk(factor=2, policy="per_position").attention(tiny, 64)
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, heads, 40, 8, generator=generator, dtype=torch.float64) for heads in (4, 2))
    places, rope = torch.arange(40), Rope(8, 10_000.0)
    layer = EncodingAttention(rope, attention, q, k, places)
    got, later = layer.logits(0, 40)[0], EncodingAttention(rope, attention, q[:, :, 30:], k, places).logits(0, 10)[0]
    torch.testing.assert_close(later, got[:, 30:])
    for i in range(40):
        theta = np.array(closed_form(tiny, 2, max(16, i + 1)))
        for j in range(i + 1):
            turn = np.exp(1j * (i - j) * theta)
            for head in (0, 3):
                one = q[0, head, i, :4].numpy() + 1j * q[0, head, i, 4:].numpy()
                two = k[0, head // 2, j, :4].numpy() + 1j * k[0, head // 2, j, 4:].numpy()
                expected = (one * two.conj() * turn).sum().real / math.sqrt(8)
                assert float(got[head, i, j]) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    plain = EncodingAttention(rope, Attention(), q, k, places).logits(0, 40)[0]
    torch.testing.assert_close(got[:, :16], plain[:, :16])  # up to the trained length the model itself
    v = torch.eye(40, dtype=torch.float64).expand(1, 2, -1, -1)
    torch.testing.assert_close(layer.attention_output(v)[0], got.softmax(-1))


def test_the_best_keys_of_the_middle_are_seen_by_each_head(tiny: Model) -> None:
    attention = LambdaMask(window=6, sinks=2, middle=3, middle_from=0).attention(replace(tiny, layers=2), 30).at(1)
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, heads, 30, 8, generator=generator, dtype=torch.float64) for heads in (4, 2))
    rope, v = Rope(8, tiny.rope_base or 0), torch.eye(30, dtype=torch.float64).expand(1, 2, -1, -1)
    scores = dense.masked_scores(q, k, attention, rope.rotate)[0] / 8**0.5  # against the formula: test_lambda_mask.py
    layer = EncodingAttention(rope, attention, q, k, torch.arange(30))
    torch.testing.assert_close(layer.logits(0, 30)[0], scores)
    torch.testing.assert_close(layer.attention_output(v)[0], scores.softmax(-1))
