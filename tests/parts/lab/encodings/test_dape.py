"""DAPE by loops over pairs, heads and neighbouring keys; chunks and the cache; what it refuses."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from lexbench.core.attention import Attention, Window
from lexbench.parts.lab.encodings.base import Encoding
from lexbench.parts.lab.encodings.dape import Dape
from lexbench.parts.lab.encodings.fire import Fire
from lexbench.parts.lab.encodings.wrappers import EncodingPerLayer
from lexbench.parts.lab.native import build
from lexbench.parts.lab.native.attend import EncodingAttention
from lexbench.parts.lab.native.decoder import Decoder, DecoderCache, DecoderShape
from tests.parts.lab.encodings.layouts import doubled, drawn_twice_alike

pytestmark = pytest.mark.usefixtures("one_thread")

Array = NDArray[np.float64]
TINY = DecoderShape(vocabulary=97, layers=3, width=32, heads=4, kv_heads=2, hidden=48)
FORMS = [{"form": "v1"}, {"form": "v2"}, {"form": "v2", "kernel": 5, "hidden": 7}]


def made(over: str = "kerple", **parameters: Any) -> Dape:
    whole = build.build_encoding({"name": "dape", "over": over, **parameters}, TINY, 24)
    assert isinstance(whole, EncodingPerLayer)
    one = doubled(whole.first, seed=4)
    assert isinstance(one, Dape)
    return one


def vectors(tokens: int, batch: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(batch, heads, tokens, 8, generator=generator, dtype=torch.float64) for heads in (4, 2, 2))
    return 2 * q, 2 * k, v


def changed(encoding: Dape, scores: Array, bias: Array) -> Array:
    """[H, T, T] scores + bias + f of [H, T, T] both, one pair after the other; 0 wherever nothing is seen."""
    inner, first, outer, second = (
        weight.detach().numpy() for weight in (encoding.inner, encoding.inner_bias, encoding.outer, encoding.outer_bias)
    )
    total = scores.shape[1]
    reach = inner.shape[-1] // 2
    result = np.zeros_like(scores)
    for i in range(total):
        row = np.concatenate([scores[:, i, : i + 1], bias[:, i, : i + 1]])
        between = np.zeros((len(inner), i + 1))
        for j in range(i + 1):
            for step in range(-reach, reach + 1):
                if 0 <= j + step <= i:
                    between[:, j] += inner[:, :, 0, step + reach] @ row[:, j + step]
            between[:, j] += first
        between = np.where(between > 0, between, 0.01 * between)
        for j in range(i + 1):
            added = second.copy()
            for step in range(-reach, reach + 1):
                if 0 <= j + step <= i:
                    added += outer[:, :, 0, step + reach] @ between[:, j + step]
            result[:, i, j] = scores[:, i, j] + bias[:, i, j] + added
    return result


@pytest.mark.parametrize("parameters", FORMS, ids=str)
@pytest.mark.parametrize("over", ["kerple", "alibi", "fire"])
def test_logits_are_those_of_the_formula(over: str, parameters: dict[str, Any]) -> None:
    encoding, total = made(over, **parameters), 11
    q, k, _ = vectors(total)
    positions = torch.arange(total, dtype=torch.float64)
    bias = encoding.over.bias(positions, positions)
    assert bias is not None
    scores = np.stack([q[0, h].numpy() @ k[0, h // 2].numpy().T / 8**0.5 for h in range(4)])
    expected = torch.from_numpy(changed(encoding, scores, bias.detach().numpy()))
    logits = EncodingAttention(encoding, Attention(), q, k, positions).logits(0, total)[0].detach()
    seen = torch.ones(total, total, dtype=torch.bool).tril()
    torch.testing.assert_close(logits[:, seen], expected[:, seen], atol=1e-10, rtol=1e-10)
    assert bool((logits[:, ~seen] == -torch.inf).all())


def test_v1_is_the_released_codes_layers_over_channels() -> None:
    encoding, total = made("alibi"), 9
    q, k, _ = vectors(total)
    positions = torch.arange(total, dtype=torch.float64)
    scores = (q @ k.repeat_interleave(2, dim=1).mT / 8**0.5).tril()
    bias = encoding.over.bias(positions, positions)
    assert bias is not None
    mlp = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.LeakyReLU(), torch.nn.Linear(32, 4)).double()
    mlp.load_state_dict(
        {
            "0.weight": encoding.inner.data[:, :, 0, 0],
            "0.bias": encoding.inner_bias.data,
            "2.weight": encoding.outer.data[:, :, 0, 0],
            "2.bias": encoding.outer_bias.data,
        }
    )
    both = torch.cat([scores, bias[None]], dim=1).permute(0, 2, 3, 1)
    expected = (scores + bias + mlp(both).permute(0, 3, 1, 2)).tril()
    logits = (
        EncodingAttention(encoding, Attention(), q, k, positions)
        .logits(0, total)
        .masked_fill(torch.ones(total, total, dtype=torch.bool).triu(1), 0.0)
    )
    torch.testing.assert_close(logits, expected, atol=1e-10, rtol=1e-10)


def test_v2_is_the_released_codes_convolutions_in_a_texts_last_row() -> None:
    # elsewhere theirs lets the place after a query's own key count between the two
    encoding, total = made("alibi", form="v2"), 9
    q, k, _ = vectors(total)
    positions = torch.arange(total, dtype=torch.float64)
    scores = (q @ k.repeat_interleave(2, dim=1).mT / 8**0.5).tril()
    bias = encoding.over.bias(positions, positions)
    assert bias is not None
    first, second = torch.nn.Conv2d(8, 32, (1, 3), padding=(0, 1)), torch.nn.Conv2d(32, 4, (1, 3), padding=(0, 1))
    for ours, weight in (
        (encoding.inner, first.weight),
        (encoding.inner_bias, first.bias),
        (encoding.outer, second.weight),
        (encoding.outer_bias, second.bias),
    ):
        assert weight is not None
        weight.data = ours.data
    mixed = second(torch.nn.functional.leaky_relu(first(torch.cat([scores, bias.tril()[None]], dim=1))))
    logits = EncodingAttention(encoding, Attention(), q, k, positions).logits(total - 1, total)
    torch.testing.assert_close(logits, (scores + bias + mixed)[:, :, -1:], atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("parameters", FORMS, ids=str)
def test_a_row_is_the_same_in_a_longer_text_and_chunk_by_chunk(parameters: dict[str, Any]) -> None:
    encoding, total = made("fire", **parameters), 13
    q, k, v = vectors(total, batch=2)
    positions = torch.arange(total, dtype=torch.float64)
    for attention in (Attention(), Attention(mask=Window(4, sinks=1))):
        whole = EncodingAttention(encoding, attention, q, k, positions)
        outputs = whole.attention_output(v)
        for chunk in (1, 3, 5):
            torch.testing.assert_close(whole.attention_output(v, chunk=chunk), outputs, atol=1e-12, rtol=1e-12)
        part = EncodingAttention(encoding, attention, q[:, :, :7], k[:, :, :7], positions[:7]).attention_output(
            v[:, :, :7]
        )
        torch.testing.assert_close(part, outputs[:, :, :7], atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("over", ["kerple", "alibi", "fire"])
@pytest.mark.parametrize("parameters", FORMS[:2], ids=str)
def test_cached_decoding_equals_the_full_forward(over: str, parameters: dict[str, Any]) -> None:
    decoder = Decoder(TINY, build.build_encoding({"name": "dape", "over": over, **parameters}, TINY, 24))
    decoder.initialise(0)
    for weight in decoder.parameters():
        weight.data = weight.data.double() * (8.0 if weight.dim() == 2 else 1.0)
    text = torch.randint(0, 97, (2, 20), generator=torch.Generator().manual_seed(2))
    cache = DecoderCache(20)
    with torch.inference_mode():
        parts = [decoder.eval()(piece, cache=cache) for piece in torch.split(text, [9, 1, 1, 2, 7], dim=1)]
        torch.testing.assert_close(torch.cat(parts, dim=1), decoder(text), atol=1e-9, rtol=1e-9)


def test_texts_at_positions_of_their_own_have_biases_of_their_own() -> None:
    encoding, total = made("alibi"), 6
    q, k, v = vectors(total, batch=2)
    positions = torch.tensor([[0.0, 1, 2, 3, 4, 5], [0, 2, 4, 6, 8, 10]], dtype=torch.float64)
    both = EncodingAttention(encoding, Attention(), q, k, positions).attention_output(v)
    for text in range(2):
        one = slice(text, text + 1)
        alone = EncodingAttention(encoding, Attention(), q[one], k[one], positions[text]).attention_output(v[one])
        torch.testing.assert_close(both[one], alone, atol=1e-12, rtol=1e-12)


def test_without_a_change_it_is_the_bias_alone() -> None:
    encoding, total = made("alibi"), 8
    for weight in (encoding.outer, encoding.outer_bias):
        weight.data.zero_()
    q, k, v = vectors(total)
    positions = torch.arange(total, dtype=torch.float64)
    plain = EncodingAttention(encoding.over, Attention(), q, k, positions).attention_output(v)
    torch.testing.assert_close(EncodingAttention(encoding, Attention(), q, k, positions).attention_output(v), plain)


def test_each_layer_has_its_own_that_begins_as_pytorchs_layers() -> None:
    whole = build.build_encoding({"name": "dape", "over": "kerple"}, TINY, 24)
    assert len(list(whole.parameters())) == 3 * 6
    wide = Dape(Fire(64, 64), 64, form="v2", hidden=200)
    wide.initialise(torch.Generator().manual_seed(0))
    for weight, bound in ((wide.inner, (128 * 3) ** -0.5), (wide.outer, (200 * 3) ** -0.5)):
        assert 0.99 * bound < float(weight.detach().abs().max()) <= bound
    drawn_twice_alike(Dape(Fire(4, 64), 4), Dape(Fire(4, 64), 4))


def test_it_says_how_much_it_holds() -> None:
    assert made("alibi").held == 6 + 24
    assert Dape(Fire(32, 64), 32).held == 6 + 3


def test_what_has_no_bias_and_bad_parameters_are_errors() -> None:
    for over in ("rope", "cope"):
        with pytest.raises(ValueError, match=f"needs an encoding with a bias, {over} adds none: use over=kerple"):
            made(over)
    with pytest.raises(ValueError, match="form must be one of v1, v2, got v3"):
        made(form="v3")
    with pytest.raises(ValueError, match="an odd kernel, got 32 and 4"):
        made(form="v2", kernel=4)
    with pytest.raises(ValueError, match="needs an encoding with a bias"):
        Dape(Encoding(), 4)
