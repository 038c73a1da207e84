"""NoPE knows an order by the causal mask alone."""

import torch

from lexbench.parts.lab.encodings.nope import Nope
from lexbench.parts.lab.native.decoder import Decoder, DecoderShape

TINY = DecoderShape(vocabulary=97, layers=1, width=32, heads=4, kv_heads=2, hidden=48)


def test_one_layer_sees_a_set_of_tokens_before_the_last() -> None:
    decoder = Decoder(TINY, Nope())
    decoder.initialise(0)
    tokens = torch.randint(0, 97, (1, 30), generator=torch.Generator().manual_seed(1))
    shuffled = tokens.clone()
    shuffled[0, :29] = shuffled[0, torch.randperm(29, generator=torch.Generator().manual_seed(2))]
    with torch.inference_mode():
        torch.testing.assert_close(decoder(tokens)[:, -1], decoder(shuffled)[:, -1], atol=1e-5, rtol=1e-5)


def test_it_has_no_weights_and_no_longest_text() -> None:
    assert not list(Nope().parameters())
    assert Nope().longest is None
