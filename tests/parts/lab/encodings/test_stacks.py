"""Encodings over one another: refused where they contradict each other, else all that holds of one holds of both."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lexbench import Attention
from lexbench.core.attention import LogScale
from lexbench.kernels.resolution import mean_logits
from lexbench.parts.lab.encodings.coca import Coca
from lexbench.parts.lab.encodings.rope import Rope
from lexbench.parts.lab.encodings.wrappers import UnrotatedLayer
from lexbench.parts.lab.native import build
from lexbench.parts.lab.native.attend import EncodingAttention
from lexbench.parts.lab.native.decoder import Decoder, DecoderCache, DecoderShape, attend_by_encoding

OUTER = [
    *("randomized", "shape", "cape", "pose", "bipe", "dape", "key_norm", "qk_norm", "cosine", "interleave"),
    *(
        "hwfa",
        "hwfa2",
        "zebra",
        "inverse_leaky_rerope",
        "ssmax",
        "fox",
        "irope",
        "abacus",
        "coupling",
        "tupe",
        "rerope",
    ),
]
INNER: list[str | dict[str, Any]] = [
    *("rope", "xpos", "clex", "coca", "fope", "alibi", "kerple", "t5", "shaw", "cope", "floater", "fox", "path"),
    {"name": "learned", "size": 2200},
    {"name": "sinusoidal"},
    {"name": "bipe", "separators": [3]},
    {"name": "qk_norm"},
]
TINY = DecoderShape(vocabulary=61, layers=4, width=32, heads=4, kv_heads=2, hidden=32)
TRAINED, TOKENS = 16, 14

pytestmark = pytest.mark.usefixtures("one_thread")


def stacked(outer: str, inner: str | dict[str, Any]) -> Decoder:
    """A decoder in float64 with one encoding over another; ValueError where they are refused."""
    given = {"bipe": {"separators": [3, 5]}, "abacus": {"digits": [3, 5]}, "coupling": {"digits": [3, 5]}}.get(
        outer, {}
    )
    decoder = Decoder(TINY, build.build_encoding({"name": outer, "over": inner, **given}, TINY, TRAINED))
    decoder.initialise(0)
    generator = torch.Generator().manual_seed(1)
    for key, weight in decoder.named_parameters():
        own = key.startswith("encoding.")
        noise = torch.rand(weight.shape, generator=generator, dtype=torch.float64) - 0.5
        weight.data = weight.data.double() * (1.0 if own or weight.dim() < 2 else 8.0) + (0.05 * noise if own else 0.0)
    return decoder


@pytest.mark.slow
@pytest.mark.parametrize("inner", INNER, ids=lambda inner: inner if isinstance(inner, str) else inner["name"])
@pytest.mark.parametrize("outer", OUTER)
def test_a_stack_is_refused_or_holds(outer: str, inner: str | dict[str, Any]) -> None:
    try:
        decoder = stacked(outer, inner)
    except ValueError as error:
        refused = str(error)
    else:
        refused = ""
    if refused:
        assert ": " in refused  # the remedy
        return
    text = torch.randint(0, TINY.vocabulary, (2, TOKENS), generator=torch.Generator().manual_seed(2))
    _every_weight_learns(decoder, text)
    decoder.eval()
    with torch.inference_mode():
        whole, cache = decoder(text), DecoderCache(TOKENS)
        pieces = [decoder(piece, cache=cache) for piece in torch.split(text, [9, 1, 1, 3], dim=1)]
        torch.testing.assert_close(torch.cat(pieces, dim=1), whole, atol=1e-8, rtol=1e-8)
        _probes_see_what_is_attended(decoder, text[:1])
    copied = copy.deepcopy(decoder)
    with torch.inference_mode():
        torch.testing.assert_close(copied(text), whole)


def _every_weight_learns(decoder: Decoder, text: Tensor) -> None:
    decoder.train()
    decoder(text, generator=torch.Generator().manual_seed(0)).logsumexp(-1).sum().backward()
    parts = [decoder.encoding.at(layer) for layer in range(TINY.layers)]
    idle = [n for n, part in enumerate(parts) if any(isinstance(each, UnrotatedLayer) for each in part.modules())]
    for key, weight in decoder.named_parameters():
        # A layer without positions needs none, and mixes of FoPE are drawn once.
        if weight.requires_grad and not any(f"encoding.over.layers.{layer}." in key for layer in idle):
            assert weight.grad is not None and weight.grad.abs().max() > 0, key


def _probes_see_what_is_attended(decoder: Decoder, text: Tensor) -> None:
    def attend(layer: int, encoding: Any, q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
        one = EncodingAttention(encoding, encoding.attention, q, k, positions)
        made = one.logits(0, TOKENS)[0]
        made = made.masked_fill(made == -torch.inf, torch.nan)
        means = torch.stack([torch.diagonal(made, -n, 1, 2).nanmean(1) for n in range(TOKENS)], dim=1)
        torch.testing.assert_close(mean_logits(*one.statistics_inputs()), means, atol=1e-8, rtol=1e-8, equal_nan=True)
        return attend_by_encoding(layer, encoding, q, k, v, positions)

    decoder(text, attend)


@pytest.mark.parametrize("form", ["slack", "strict"])
def test_a_scale_of_queries_scales_cocas_logits_once(form: str) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, heads, 12, 8, generator=generator, dtype=torch.float64) for heads in (4, 2))
    positions, scale = torch.arange(12, dtype=torch.float64), LogScale(4)
    without = EncodingAttention(Coca(8, form=form), Attention(), q, k, positions).logits(0, 12)
    scaled = EncodingAttention(Coca(8, form=form), Attention(query_scale=scale), q, k, positions)
    factors = torch.from_numpy(np.maximum(1.0, np.log(np.arange(1, 13)) / np.log(4)))[:, None]
    torch.testing.assert_close(scaled.logits(0, 12), without * factors)
    torch.testing.assert_close(scaled.logits(5, 9), (without * factors)[:, :, 5:9, :9])
    v = torch.eye(12, dtype=torch.float64)[None, None].expand(1, 2, -1, -1)
    torch.testing.assert_close(scaled.attention_output(v), (without * factors).softmax(-1))  # the fused kernel


def test_frequencies_stay_exact_in_a_network_of_another_dtype() -> None:
    moved = Rope(8).to(torch.bfloat16)
    np.testing.assert_array_equal(moved.inv_freq.numpy(), 10000.0 ** (-np.arange(4) / 4))


def test_rules_keep_the_trained_length_that_they_come_from() -> None:
    before = build.pin_parameters(build.resolve_spec({"name": "interleave", "over": "hope"}), 32)
    assert before["over"]["trained_length"] == 32
    again = build.pin_parameters(before, 128)  # as for a training that goes on with longer rows
    assert again == before
    angles = [build.build_encoding(spec, TINY, length).at(0) for spec, length in ((before, 32), (again, 128))]
    for encoding in angles:
        assert isinstance(encoding.get_buffer("inv_freq"), Tensor)
        np.testing.assert_array_equal(
            encoding.get_buffer("inv_freq") > 0, 10000.0 ** (-np.arange(4) / 4) >= 2 * np.pi / 32
        )
