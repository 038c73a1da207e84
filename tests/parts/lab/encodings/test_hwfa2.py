"""HWFA2's full layers: where they are, and what distances they know at use."""

import numpy as np
import pytest
import torch

from lexbench import Attention
from lexbench.core.attention import seen_distances
from lexbench.parts.lab.encodings.alibi import Alibi
from lexbench.parts.lab.encodings.hwfa2 import Hwfa2
from lexbench.parts.lab.encodings.rope import Rope
from lexbench.parts.lab.native.attend import EncodingAttention, merge_slots
from lexbench.parts.lab.native.decoder import Decoder, DecoderShape

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    ("layers", "full", "places"),
    [(24, 1, [12]), (24, 2, [8, 16]), (24, 3, [6, 12, 18]), (4, 2, [1, 2]), (2, 2, [0, 1]), (3, 3, [0, 1, 2])],
)
def test_full_layers_stand_evenly(layers: int, full: int, places: list[int]) -> None:
    encoding = Hwfa2(Rope(8), layers, 512, full).train()
    assert [layer for layer in range(layers) if encoding.at(layer).attention.mask is None] == places


def test_defaults_are_the_articles() -> None:
    encoding = Hwfa2(Rope(8), 24, 512)
    assert encoding.full == {8, 16} and encoding.window.size == 64 and encoding.remap.window == 256


def test_at_use_full_layers_are_rerope_and_in_training_rope() -> None:
    rope, places = Rope(8), torch.arange(9)
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, heads, 9, 8, generator=generator, dtype=torch.float64) for heads in (4, 2))
    encoding = Hwfa2(rope, 3, 16, full=1, window=2, rerope=4)

    def logits(layer: int) -> torch.Tensor:
        here = encoding.at(layer)
        return EncodingAttention(here, here.attention, q, k, places).logits(0, 9)[0]

    for use in (False, True):
        encoding.train(not use)
        for i in range(9):
            for j in range(i + 1):
                for layer, distance in ((0, i - j), (1, min(i - j, 4) if use else i - j)):
                    turned = rope.rotate(q[:, :, i : i + 1], torch.tensor([distance]))[0, :, 0]
                    expected = (turned * k[0, :, j].repeat_interleave(2, dim=0)).sum(-1) / 8**0.5
                    if layer == 0 and distance >= 2:
                        expected = torch.full_like(expected, -torch.inf)
                    torch.testing.assert_close(logits(layer)[:, i, j], expected)


def test_rerope_distances_stop_at_the_window() -> None:
    remap = Hwfa2(Rope(8), 3, 512).eval().at(1).attention.remap
    got = seen_distances(remap, np.array([2000]), np.array([2000, 1900, 1745, 1744, 1743, 0]))
    assert got.tolist() == [[0, 100, 255, 256, 256, 256]]


def test_a_decoder_knows_whether_it_learns() -> None:
    shape = DecoderShape(vocabulary=97, layers=3, width=32, heads=4, kv_heads=2, hidden=48)
    decoder = Decoder(shape, Hwfa2(Rope(8), 3, 16, rerope=4))
    decoder.initialise(0)
    tokens = torch.randint(0, 97, (2, 16), generator=torch.Generator().manual_seed(1))
    learning, used = decoder.train()(tokens), decoder.eval()(tokens)
    torch.testing.assert_close(learning[:, :5], used[:, :5])  # distances up to 4
    assert (learning[:, 5:] - used[:, 5:]).abs().max() > 1e-5


def test_a_method_that_remaps_full_layers_is_refused() -> None:
    encoding = Hwfa2(Rope(8), 3, 16).eval()
    method = Attention(remap=encoding.remap)
    assert merge_slots(method, encoding.at(0).attention, "hwfa2").remap is encoding.remap
    with pytest.raises(ValueError, match=r"hwfa2 and the method exclude each other \(both set remap\)"):
        merge_slots(method, encoding.at(1).attention, encoding.at(1).name)


def test_bad_parameters_are_errors() -> None:
    with pytest.raises(ValueError, match="those of alibi cannot: over=rope"):
        Hwfa2(Alibi(4), 3, 16)
    for full in (0, 4):
        with pytest.raises(ValueError, match=f"hwfa2's full must be from 1 to 3 layers, got {full}"):
            Hwfa2(Rope(8), 3, 16, full)
    with pytest.raises(ValueError, match="remap window must be at least 1, got 0"):
        Hwfa2(Rope(8), 3, 16, rerope=0)
    with pytest.raises(ValueError, match="size of at least 1"):
        Hwfa2(Rope(8), 3, 16, window=0)
