"""iRoPE: Llama 4's layers against its configuration in transformers, and by loops."""

import math

import numpy as np
import pytest
import torch

from lexbench.core.attention import Attention, LogScale, Segments, StepScale
from lexbench.parts.lab.encodings.irope import Irope
from lexbench.parts.lab.encodings.rope import Rope
from lexbench.parts.lab.native.attend import EncodingAttention
from tests.parts.lab.encodings.layouts import gated_layer

pytestmark = pytest.mark.usefixtures("one_thread")


def test_layers_without_positions_are_those_of_llama_4() -> None:
    from transformers import Llama4TextConfig

    config = Llama4TextConfig(num_hidden_layers=8)
    encoding = Irope(Rope(8), 8, 262144, chunk=config.attention_chunk_size)
    for layer, rotates in enumerate(config.no_rope_layers):
        slots = encoding.at(layer).attention
        assert slots.slots() == (("mask",) if rotates else ("query_scale",))
    assert encoding.steps == StepScale(int(config.floor_scale), config.attn_scale)
    assert encoding.chunks == Segments(8192)


def test_temperatures_are_those_of_transformers_expression() -> None:
    places = np.array([0, 8190, 8191, 16383, 262143])
    expected = [math.log(math.floor((p + 1.0) / 8192) + 1.0) * 0.1 + 1.0 for p in places]
    np.testing.assert_allclose(StepScale(8192, 0.1)(places), expected, rtol=1e-15)
    assert StepScale(8192, 0.1)(places)[[0, 1]].tolist() == [1, 1]


def test_logits_are_those_of_the_formula() -> None:
    encoding, rope = Irope(Rope(8), 2, 8, every=2, chunk=4, temperature=0.5), Rope(8)
    _, q, k, _ = gated_layer(encoding)
    places = torch.arange(9)
    turned, known = rope.rotate(q, places), rope.rotate(k, places)
    for layer in (0, 1):
        part = encoding.at(layer)
        got = EncodingAttention(part, part.attention, q, k, places).logits(0, 9)
        for head in range(4):
            for i in range(9):
                for j in range(9):
                    if j > i or (layer == 0 and i // 4 != j // 4):
                        assert got[0, head, i, j] == -torch.inf
                        continue
                    one, two = (turned, known) if layer == 0 else (q, k)
                    expected = float(one[0, head, i] @ two[0, head // 2, j]) / math.sqrt(8)
                    expected *= 1 if layer == 0 else 1 + 0.5 * math.log((i + 1) // 4 + 1)
                    assert float(got[0, head, i, j]) == pytest.approx(expected, rel=1e-9)


def test_chunks_follow_the_trained_length_and_methods_that_scale_queries_are_refused() -> None:
    encoding = Irope(Rope(8), 4, 130)
    assert encoding.chunks == Segments(33) and encoding.steps == StepScale(33, 0.1)
    assert (encoding.every, Irope(Rope(8), 3, 130).every) == (4, 3)
    with pytest.raises(ValueError, match="both set query_scale"):
        Attention(query_scale=LogScale(8)).merge_with(encoding.at(3).attention)
    with pytest.raises(ValueError, match="every must be from 2 to 3 layers, got 4"):
        Irope(Rope(8), 3, 130, every=4)
    with pytest.raises(ValueError, match="segments of at least 1 token, got 0"):
        Irope(Rope(8), 4, 130, chunk=0)
