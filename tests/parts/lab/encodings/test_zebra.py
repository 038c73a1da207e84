"""Zebra's stripes."""

import pytest
import torch

from lexbench.parts.lab.encodings.qk_norm import QkNorm
from lexbench.parts.lab.encodings.rope import Rope
from lexbench.parts.lab.encodings.zebra import Zebra
from lexbench.parts.lab.native.attend import EncodingAttention
from lexbench.parts.lab.native.decoder import Decoder, DecoderShape

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(("group", "full"), [(1, [0, 1, 2, 3, 4, 5, 6, 7]), (2, [0, 2, 4, 6]), (4, [0, 4]), (9, [0])])
def test_one_layer_of_each_group_sees_all(group: int, full: list[int]) -> None:
    encoding = Zebra(Rope(8), 64, group)
    assert [layer for layer in range(8) if encoding.at(layer).attention.mask is None] == full


def test_window_layers_are_those_of_the_inner_encoding_within_the_window() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, heads, 9, 8, generator=generator, dtype=torch.float64) for heads in (4, 2))
    inner = QkNorm(Rope(8), 8, 64)
    encoding, places = Zebra(inner, 24), torch.arange(9)
    full, near = (
        EncodingAttention(here, here.attention, q, k, places).logits(0, 9)[0]
        for here in (encoding.at(0), encoding.at(1))
    )
    torch.testing.assert_close(full, EncodingAttention(inner, inner.attention, q, k, places).logits(0, 9)[0])
    for i in range(9):
        for j in range(9):
            expected = full[:, i, j] if 0 <= i - j < 3 else torch.full_like(full[:, i, j], -torch.inf)
            torch.testing.assert_close(near[:, i, j], expected)


def test_what_a_token_can_know_reaches_as_far_as_windows_and_global_layers() -> None:
    shape = DecoderShape(vocabulary=97, layers=4, width=32, heads=4, kv_heads=2, hidden=48)
    tokens = torch.randint(0, 97, (1, 24), generator=torch.Generator().manual_seed(1))
    other = tokens.clone()
    other[:, 0] = (other[:, 0] + 1) % 97
    # Layer 0 sees all; without it, three windows of 3 tokens pass on 2 tokens each.
    for first, reached in ((True, 24), (False, 9)):
        encoding = Zebra(Rope(8), 24, group=4)
        if not first:
            encoding.at = lambda layer, at=encoding.at: at(layer or 1)  # type: ignore[method-assign, misc]
        decoder = Decoder(shape, encoding).double().eval()
        decoder.initialise(0)
        changed = (decoder(tokens) - decoder(other)).abs().amax((0, 2)) > 1e-12
        assert int(changed.sum()) == reached and changed[:reached].all()


def test_bad_parameters_are_errors() -> None:
    with pytest.raises(ValueError, match="zebra's group must be at least 1 layer, got 0: take 4"):
        Zebra(Rope(8), 64, group=0)
    with pytest.raises(ValueError, match="size of at least 1"):
        Zebra(Rope(8), 64, window=0)
