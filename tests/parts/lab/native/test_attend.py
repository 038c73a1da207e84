"""Attention of a layer: in chunks, under masks and remaps, and what is told to those who look on."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from lexbench.core.attention import (
    Attention,
    Bands,
    Blocks,
    Chunks,
    LogScale,
    PositionMap,
    Remap,
    Slopes,
    Stairs,
    Window,
)
from lexbench.kernels import dense
from lexbench.kernels.heads import Rotate
from lexbench.kernels.observed import Observer, average_weights
from lexbench.kernels.resolution import mean_logits
from lexbench.parts.lab.encodings.base import Encoding
from lexbench.parts.lab.encodings.rope import Rope
from lexbench.parts.lab.native import build
from lexbench.parts.lab.native.attend import EncodingAttention
from lexbench.parts.lab.native.decoder import DecoderShape

pytestmark = pytest.mark.usefixtures("one_thread")

Array = NDArray[np.float64]
TINY = DecoderShape(vocabulary=97, layers=2, width=32, heads=4, kv_heads=2, hidden=48)
TOKENS = 23
"""A prime number: no block, window or chunk divides it."""
RESCORING: Mapping[str, Mapping[str, Any]] = {
    "dape over kerple": {"name": "dape"},
    "dape v2 over fire": {"name": "dape", "form": "v2", "over": {"name": "fire", "threshold": 6}},
    "cope": {"name": "cope", "size": 5},
    "shaw": {"name": "shaw", "size": 4, "values": False},
}
ADDING: Mapping[str, Mapping[str, Any]] = {
    "t5": {"name": "t5", "buckets": 8, "max_distance": 12, "gain": 1.0},
    "fire": {"name": "fire", "threshold": 6},
    "alibi": {"name": "alibi"},
}
ENCODINGS = {**RESCORING, **ADDING}
ATTENTIONS = {
    "plain": Attention(),
    "window": Attention(mask=Window(5, sinks=2)),
    "blocks": Attention(mask=Blocks(4)),
    "log n": Attention(query_scale=LogScale(4)),
    "bias": Attention(bias=Slopes((0.5, 0.25, 0.125, 0.0))),
    "all three": Attention(mask=Window(7), query_scale=LogScale(4, clip=False), bias=Slopes((1.0, 0.5, 0.0, 0.25))),
}
GROUPS = (2, 4)
BY_BAND = Bands(tuple(PositionMap(group, floor=True) for group in GROUPS))
REMAPS = {
    "rerope": Attention(
        remap=Remap(5, query=PositionMap(divisor=math.inf, offset=5), key=PositionMap(divisor=math.inf))
    ),
    "leaky": Attention(remap=Remap(5, query=PositionMap(divisor=4, offset=3.75), key=PositionMap(divisor=4))),
    "bands": Attention(remap=Remap(4, Bands(tuple(PositionMap(g, 4 - 4 / g, floor=True) for g in GROUPS)), BY_BAND)),
    "stairs": Attention(remap=Stairs(((4, 1), (1, 3)))),
    "chunks": Attention(remap=Chunks(6, 8)),
    "all": Attention(
        remap=Remap(5, query=PositionMap(divisor=2, offset=2.5), key=PositionMap(divisor=2)),
        mask=Window(9, sinks=1),
        query_scale=LogScale(4),
        bias=Slopes((0.5, 0.25, 0.125, 0.0)),
    ),
}


def made(spec: Mapping[str, Any]) -> Encoding:
    """In float64, with weights large enough that they matter."""
    encoding = build.build_encoding(spec, TINY, 16)
    encoding.initialise(torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1)
    for weight in encoding.parameters():
        weight.data = weight.data.double() + 0.3 * torch.rand(weight.shape, generator=generator, dtype=torch.float64)
    return encoding.eval().at(0)


def vectors(tokens: int = TOKENS, batch: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(batch, heads, tokens, 8, generator=generator, dtype=torch.float64) for heads in (4, 2, 2))
    return 2 * q, 2 * k, v


def everyone(tokens: int = TOKENS) -> Tensor:
    return torch.arange(tokens, dtype=torch.float64)


def by_distance(logits: Array) -> Array:
    """[H, T] mean of what is seen at each distance, NaN where nothing is."""
    heads, total, _ = logits.shape
    curve = np.full((heads, total), np.nan)
    for head in range(heads):
        for distance in range(total):
            found = [logits[head, i, i - distance] for i in range(distance, total)]
            found = [value for value in found if np.isfinite(value)]
            if found:
                curve[head, distance] = sum(found) / len(found)
    return curve


def looked_at(logits: Array, first: int, last: int) -> tuple[Array, Array, Array]:
    """Mass at each distance, entropy, weight on the first keys: means over the last queries."""
    heads, total, _ = logits.shape
    mass, entropy, begun = np.zeros((heads, total)), np.zeros(heads), np.zeros(heads)
    for head in range(heads):
        for i in range(total - last, total):
            row = np.exp(logits[head, i, : i + 1] - logits[head, i, : i + 1].max())
            for j, weight in enumerate(row / row.sum()):
                mass[head, i - j] += weight / last
                entropy[head] -= weight * math.log(weight) / last if weight > 0 else 0.0
                begun[head] += weight / last if j < first else 0.0
    return mass, entropy, begun


@pytest.mark.slow
@pytest.mark.parametrize("held", [1 << 21, 150], ids=["at once", "chunks"])
@pytest.mark.parametrize("attention", ATTENTIONS.values(), ids=ATTENTIONS.keys())
@pytest.mark.parametrize("name", ENCODINGS)
@torch.inference_mode()
def test_those_who_look_on_see_the_logits(
    name: str, attention: Attention, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, _ = vectors()
    layer = EncodingAttention(made(ENCODINGS[name]), attention, q, k, everyone())
    logits = layer.logits(0, TOKENS)[0].numpy()
    monkeypatch.setattr(dense, "MAX_SCORES_IN_MEMORY", held)
    told = layer.statistics_inputs()
    np.testing.assert_allclose(mean_logits(*told), by_distance(logits), atol=1e-9, rtol=1e-9)
    for last in (TOKENS, 5):
        seen = average_weights(*told, first=3, last=last)
        expected = looked_at(logits, 3, last)
        for got, wanted in zip((seen.mass, seen.entropy, seen.first), expected, strict=True):
            np.testing.assert_allclose(got, wanted, atol=1e-10, rtol=1e-9)


@torch.inference_mode()
def test_a_learned_bias_is_seen_as_the_formula_has_it() -> None:
    encoding = made(ADDING["t5"])
    q, k, _ = vectors()
    table = dict(encoding.named_parameters())["table"].numpy()
    # 8 buckets up to 12 tokens: 0 to 3, then 4 (12/4)^(m/4) = 5.3, 6.9, 9.1 begin the next
    bucket = np.array([0, 1, 2, 3, 4, 4, 5, 6, 6, 6, 7, 7] + [7] * 11)
    logits = np.full((4, TOKENS, TOKENS), -np.inf)
    for head in range(4):
        for i in range(TOKENS):
            for j in range(i + 1):
                product = float(q[0, head, i] @ k[0, head // 2, j])
                logits[head, i, j] = product / math.sqrt(8) + table[bucket[i - j], head]
    layer = EncodingAttention(encoding, Attention(), q, k, everyone())
    np.testing.assert_allclose(layer.logits(0, TOKENS)[0], logits, atol=1e-10)
    np.testing.assert_allclose(mean_logits(*layer.statistics_inputs()), by_distance(logits), atol=1e-9)
    np.testing.assert_allclose(
        average_weights(*layer.statistics_inputs(), first=2).mass, looked_at(logits, 2, TOKENS)[0], atol=1e-10
    )


@pytest.mark.parametrize("name", ADDING)
def test_what_is_kept_of_a_bias_is_that_of_these_weights_places_and_masks(name: str) -> None:
    encoding = made(ADDING[name])
    q, k, values = vectors()

    def check(attention: Attention, positions: Tensor) -> None:
        layer = EncodingAttention(encoding, attention, q, k, positions)
        with torch.no_grad():
            for _ in range(2):  # the second time from what was kept
                np.testing.assert_allclose(
                    layer.attention_output(values), layer.attention_output(values, chunk=5), atol=1e-12
                )

    check(Attention(), everyone())
    check(Attention(), everyone() * 2)
    check(Attention(mask=Window(5)), everyone())
    check(Attention(mask=Window(6)), everyone())
    check(ATTENTIONS["bias"], everyone())
    with torch.no_grad():
        for weight in encoding.parameters():
            weight.mul_(1.5)
    check(ATTENTIONS["bias"], everyone())


@pytest.mark.parametrize("name", ["t5", "shaw", "dape over kerple"])
@torch.inference_mode()
def test_those_who_look_on_see_tokens_where_they_stand(name: str) -> None:
    rng = np.random.default_rng(0)
    positions = torch.from_numpy(np.sort(rng.choice(60, TOKENS, replace=False)).astype(np.float64))
    q, k, _ = vectors()
    layer = EncodingAttention(made(ENCODINGS[name]), Attention(), q, k, positions)
    logits = layer.logits(0, TOKENS)[0].numpy()
    np.testing.assert_allclose(mean_logits(*layer.statistics_inputs()), by_distance(logits), atol=1e-9)


@torch.inference_mode()
def test_an_observer_sees_what_rescores() -> None:
    q, k, _ = vectors()
    layer = EncodingAttention(made(RESCORING["cope"]), Attention(), q, k, everyone())
    observer = Observer(TOKENS, first=3)
    observer(0, *layer.statistics_inputs())
    found = observer.statistics()
    mass, entropy, begun = looked_at(layer.logits(0, TOKENS)[0].numpy(), 3, TOKENS)
    np.testing.assert_allclose(found["entropy"][0], entropy, rtol=1e-9)
    np.testing.assert_allclose(found["first_mass"][0], begun, rtol=1e-9)
    np.testing.assert_allclose(found["distance"][0], mass @ np.arange(TOKENS), rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("attention", ATTENTIONS.values(), ids=ATTENTIONS.keys())
@pytest.mark.parametrize("name", [*ENCODINGS, "rope", "xpos"])
@torch.inference_mode()
def test_chunks_are_the_whole(name: str, attention: Attention) -> None:
    encoding = made(ENCODINGS.get(name, {"name": name}))
    q, k, v = vectors(batch=2)
    for asked in (TOKENS, 6, 1):
        layer = EncodingAttention(encoding, attention, q[:, :, TOKENS - asked :], k, everyone())
        whole = layer.logits(0, asked).softmax(-1)
        expected = whole @ v.repeat_interleave(2, dim=1)
        torch.testing.assert_close(layer.attention_output(v), expected, atol=1e-10, rtol=1e-10)
        for chunk in (1, 3, 50):
            torch.testing.assert_close(layer.attention_output(v, chunk=chunk), expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("name", ENCODINGS)
@torch.inference_mode()
def test_chunks_are_the_whole_where_each_text_has_positions_of_its_own(name: str) -> None:
    encoding = made(ENCODINGS[name])
    q, k, v = vectors(batch=2)
    rng = np.random.default_rng(0)
    rows = [np.sort(rng.choice(60, TOKENS, replace=False)).astype(np.float64) for _ in range(2)]
    positions = torch.from_numpy(np.stack(rows))
    layer = EncodingAttention(encoding, Attention(mask=Window(9)), q, k, positions)
    both = layer.attention_output(v)
    torch.testing.assert_close(layer.attention_output(v, chunk=3), both, atol=1e-10, rtol=1e-10)
    for text in range(2):
        one = slice(text, text + 1)
        alone = EncodingAttention(
            encoding, Attention(mask=Window(9)), q[one], k[one], positions[text]
        ).attention_output(v[one])
        torch.testing.assert_close(both[one], alone, atol=1e-10, rtol=1e-10)


def by_pair(base: float) -> Rotate:
    """Rotation of pairs (p, p + 4) as complex numbers; of two bands, each of two pairs has its own positions."""

    def rotate(x: Tensor, positions: Tensor) -> Tensor:
        each = positions.double().reshape(len(positions), -1)
        turn = each.repeat_interleave(4 // each.shape[1], dim=1) * base ** (-torch.arange(4, dtype=torch.float64) / 4)
        spun = torch.complex(x[..., :4], x[..., 4:]) * torch.polar(torch.ones_like(turn), turn)
        return torch.cat([spun.real, spun.imag], dim=-1)

    return rotate


@pytest.mark.parametrize("asked", [TOKENS, 6, 1])
@pytest.mark.parametrize("attention", [*ATTENTIONS.values(), *REMAPS.values()], ids=[*ATTENTIONS, *REMAPS])
def test_rotations_are_those_of_the_dense_kernel(attention: Attention, asked: int) -> None:
    rope = Rope(8, 100.0)
    q, k, v = vectors(batch=2)
    asking, here = q[:, :, TOKENS - asked :], torch.arange(TOKENS)[TOKENS - asked :]
    expected = dense.attend(asking, k, v, here, attention, by_pair(100.0), 8**-0.5)
    layer = EncodingAttention(rope, attention, asking, k, everyone())
    for chunk in (None, 3):
        torch.testing.assert_close(layer.attention_output(v, chunk=chunk), expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("attention", REMAPS.values(), ids=REMAPS.keys())
@torch.inference_mode()
def test_those_who_look_on_see_remapped_logits(attention: Attention) -> None:
    q, k, _ = vectors()
    layer = EncodingAttention(Rope(8, 100.0), attention, q, k, everyone())
    logits = layer.logits(0, TOKENS)[0].numpy()
    np.testing.assert_allclose(mean_logits(*layer.statistics_inputs()), by_distance(logits), atol=1e-9)
    np.testing.assert_allclose(
        average_weights(*layer.statistics_inputs(), first=2).mass, looked_at(logits, 2, TOKENS)[0], atol=1e-10
    )


@pytest.mark.parametrize("name", ENCODINGS)
def test_encodings_that_know_their_own_distances_refuse_a_remap(name: str) -> None:
    q, k, _ = vectors()
    own = made(ENCODINGS[name])
    with pytest.raises(ValueError, match=f"{own.name} cannot remap its distances: use a method without remap"):
        EncodingAttention(own, REMAPS["rerope"], q, k, everyone())


@pytest.mark.parametrize("name", ENCODINGS)
def test_training_in_half_precision_is_training(name: str) -> None:
    encoding = build.build_encoding(ENCODINGS[name], TINY, 16).at(0)
    encoding.initialise(torch.Generator().manual_seed(0))
    q, k, v = (x.float().requires_grad_() for x in vectors())
    precise = EncodingAttention(encoding, Attention(), q, k, everyone()).attention_output(v)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        coarse = EncodingAttention(encoding, Attention(), q.bfloat16(), k.bfloat16(), everyone()).attention_output(
            v.bfloat16()
        )
        far = EncodingAttention(encoding, Attention(), q, k, everyone() + 10000).logits(0, TOKENS)
    assert coarse.dtype == torch.bfloat16
    assert far.dtype == torch.float32
    torch.testing.assert_close(coarse.float(), precise, atol=0.15, rtol=0.05)
    coarse.float().square().sum().backward()  # type: ignore[no-untyped-call]
    for weight in (*encoding.parameters(), q, k, v):
        assert weight.grad is not None and weight.grad.isfinite().all()
