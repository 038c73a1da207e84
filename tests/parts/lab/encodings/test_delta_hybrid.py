"""Which layers have attention, and that methods act there alone."""

import numpy as np
import pytest
import torch
from transformers import Qwen3NextConfig

from lexbench import Attention
from lexbench.parts.lab.encodings.base import Encoding
from lexbench.parts.lab.encodings.delta_hybrid import DeltaHybrid, DeltaLayer
from lexbench.parts.lab.encodings.rope import Rope
from lexbench.parts.lab.native.decoder import Decoder, DecoderShape

pytestmark = pytest.mark.usefixtures("one_thread")
SHAPE = DecoderShape(vocabulary=31, layers=8, width=32, heads=4, kv_heads=2, hidden=32)


def hybrid(over: Encoding, layers: int = 8, every: int | None = None) -> DeltaHybrid:
    return DeltaHybrid(over, 8, 4, 2, 32, layers, every)


def test_layers_are_those_of_transformers() -> None:
    encoding = hybrid(Rope(8))
    found = [
        "linear_attention" if isinstance(encoding.at(layer), DeltaLayer) else "full_attention" for layer in range(8)
    ]
    assert found == list(Qwen3NextConfig(num_hidden_layers=8).layer_types)
    assert [layer for layer in range(3) if not isinstance(hybrid(Rope(8), 3).at(layer), DeltaLayer)] == [2]


def test_a_method_changes_the_layers_of_attention_alone() -> None:
    slow = Attention(inv_freq=np.array([0.5, 0.1, 0, 0]))
    vectors, places = torch.randn(1, 4, 5, 8), torch.arange(5)
    encoding = hybrid(Rope(8))
    assert torch.equal(encoding.at(0).rotation(slow)(vectors, places), vectors)
    torch.testing.assert_close(encoding.at(3).rotation(slow)(vectors, places), Rope(8).rotation(slow)(vectors, places))


def test_without_positions_the_states_still_know_the_order() -> None:
    decoder = Decoder(SHAPE, hybrid(Encoding())).eval()
    decoder.initialise(0)
    tokens = torch.arange(12)[None]
    swapped = tokens.clone()
    swapped[0, [2, 5]] = swapped[0, [5, 2]]
    with torch.inference_mode():
        assert (decoder(tokens)[0, -1] - decoder(swapped)[0, -1]).abs().max() > 1e-6
    with pytest.raises(ValueError, match="every must be from 2 to 8 layers, got 9: Qwen3-Next has 4"):
        hybrid(Rope(8), every=9)
