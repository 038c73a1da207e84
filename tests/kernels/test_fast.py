"""Fast kernels against the dense one, which is proved against the formula in test_dense."""

import math
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from lexbench import Attention
from lexbench.core.attention import Bands, Blocks, Chunks, LogScale, PositionMap, Remap, Slopes, Stairs, Window
from lexbench.kernels import chunked, dense, fast, flash, near_far, spans
from tests.kernels.on_device import on_device

SCALING = 0.3
SCALE = 1.1
CONSTANT = PositionMap(divisor=math.inf)
INV_FREQ = torch.tensor([1.0, 0.2, 0.05], dtype=torch.float64)
LENGTH = 61
Vectors = tuple[Tensor, Tensor, Tensor]


pytestmark = pytest.mark.usefixtures("one_thread")


def rotate(vectors: Tensor, positions: Tensor) -> Tensor:
    """Pairs (p, p + 3) of eight dimensions, times the scale; the last two stay."""
    turn = positions.double().reshape(len(positions), -1) * INV_FREQ  # of three bands, each pair has its own
    spun = torch.complex(vectors[..., :3].double(), vectors[..., 3:6].double()) * torch.polar(
        torch.full_like(turn, SCALE), turn
    )
    return torch.cat([spun.real, spun.imag, vectors[..., 6:].double()], dim=-1).to(vectors.dtype)


def banded(w: int) -> Remap:
    """Far positions of three bands: by groups of 4, unchanged, all the same."""
    query = Bands((PositionMap(4.0, w - w // 4, floor=True), PositionMap(), PositionMap(math.inf, w)))
    return Remap(w, query, Bands((PositionMap(4.0, floor=True), PositionMap(), CONSTANT)))


def attentions(w: int, sinks: int) -> dict[str, Attention]:
    """What methods ask for with a window of w, and the kernel that has to answer it."""
    rerope = Remap(w, PositionMap(math.inf, w), CONSTANT)
    return {
        "sdpa": Attention(),
        "near_far rerope": Attention(remap=rerope),
        "near_far constant keys elsewhere": Attention(
            remap=Remap(w, PositionMap(math.inf, w + 3), PositionMap(math.inf, 3))
        ),
        "near_far leaky": Attention(remap=Remap(w, PositionMap(3.0, w - w / 3), PositionMap(3.0))),
        "near_far self_extend": Attention(
            remap=Remap(w, PositionMap(4.0, w - w // 4, floor=True), PositionMap(4.0, floor=True))
        ),
        "near_far bands": Attention(remap=banded(w)),
        "near_far string": Attention(remap=Remap(w, PositionMap(offset=2.0 - w), PositionMap())),
        "near_far jet_long": Attention(remap=Remap(w + 1, PositionMap(3.0, floor=True), PositionMap(3.0, floor=True))),
        "lambda lm_infinite": Attention(remap=rerope, mask=Window(w, sinks)),
        "lambda bands": Attention(remap=banded(w), mask=Window(w, sinks)),
        "lambda streaming": Attention(
            remap=Remap(w, PositionMap(cap=sinks + w - 1), PositionMap()), mask=Window(w, sinks)
        ),
        "banded": Attention(mask=Window(w)),
        "banded sinks": Attention(mask=Window(w, sinks)),
        "blocks": Attention(mask=Blocks(w)),
        "chunks paper": Attention(remap=Chunks(w, w + w // 3)),
        "chunks no room": Attention(remap=Chunks(w, w)),
        "chunks wide": Attention(remap=Chunks(w, 2 * w - 1)),
        "dense bias": Attention(bias=Slopes((0.5, 0.25, 0.125, 0.0))),
        "dense remap of another window": Attention(remap=rerope, mask=Window(w + 1, sinks)),
        "dense remap in blocks": Attention(remap=rerope, mask=Blocks(w)),
        "dense chunks in a window": Attention(remap=Chunks(w, w), mask=Window(w)),
        "dense stairs": Attention(remap=Stairs(((w, 1), (2, 2), (1, 3)))),
    }


def vectors(asked: int, total: int, kv_heads: int = 2, batch: int = 1, dtype: torch.dtype = torch.float64) -> Vectors:
    generator = torch.Generator().manual_seed(asked + 1000 * total)
    shapes = [(batch, 4, asked, 8), (batch, kv_heads, total, 8), (batch, kv_heads, total, 8)]
    q, k, v = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return (2 * q).to(dtype), (2 * k).to(dtype), v.to(dtype)


def ours(x: Vectors, attention: Attention) -> Tensor:
    return fast.attend(*x, torch.arange(x[1].shape[2])[x[1].shape[2] - x[0].shape[2] :], attention, rotate, SCALING)


def expected(x: Vectors, attention: Attention) -> Tensor:
    q, k, v = (each.double() for each in x)
    return dense.attend(q, k, v, torch.arange(k.shape[2] - q.shape[2], k.shape[2]), attention, rotate, SCALING)


@pytest.mark.parametrize("name", attentions(5, 2))
def test_each_structure_has_its_kernel(name: str) -> None:
    assert fast.kernel_name(attentions(5, 2)[name]) == name.split()[0]


@pytest.mark.everyday(
    "sdpa-7-40",
    "near_far rerope-30-61",
    "near_far leaky-60-40",
    "near_far self_extend-61-1",
    "near_far bands-30-61",
    "near_far string-70-61",
    "lambda lm_infinite-30-61",
    "lambda streaming-7-40",
    "banded sinks-60-61",
    "blocks-30-40",
    "chunks paper-30-61",
    "chunks wide-7-61",
)
@pytest.mark.parametrize("asked", [LENGTH, 40, 1])
@pytest.mark.parametrize("window", [1, 7, 30, LENGTH - 1, LENGTH, LENGTH + 9])
@pytest.mark.parametrize("name", [name for name in attentions(5, 2) if not name.startswith("dense")])
def test_it_is_the_dense_kernel(name: str, window: int, asked: int) -> None:
    for sinks in (
        (1, 4, 50) if name in ("banded sinks", "lambda bands", "lambda lm_infinite", "lambda streaming") else (0,)
    ):
        x = vectors(asked, LENGTH)
        attention = attentions(window, sinks)[name]
        torch.testing.assert_close(ours(x, attention), expected(x, attention), atol=1e-12, rtol=0)


@pytest.mark.everyday("1", "5", "8")
@pytest.mark.parametrize("seed", range(30))
def test_it_is_the_dense_kernel_at_any_shape_and_cut(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    rows = draw.choice([1, 7, 20, 2048])
    monkeypatch.setattr(spans, "MAX_CPU_SPAN_QUERIES", rows)
    monkeypatch.setattr(near_far, "MAX_NEAR_BLOCK_QUERIES", min(rows, draw.choice([1, 3, 5, 128])))
    total = draw.randint(1, 90)
    x = vectors(draw.choice([1, total, draw.randint(1, total)]), total, draw.choice([1, 2, 4]), draw.choice([1, 2]))
    for name, attention in attentions(draw.randint(1, 40), draw.randint(0, 30)).items():
        scaled = replace(attention, query_scale=LogScale(5, clip=draw.random() < 0.5))
        difference = (ours(x, scaled) - expected(x, scaled)).abs().max()
        assert difference < 1e-12, name


@pytest.mark.everyday("sdpa", "near_far rerope", "lambda streaming", "banded sinks", "blocks", "chunks paper")
@pytest.mark.parametrize("name", attentions(5, 2))
def test_one_token_at_a_time_is_all_at_once(name: str) -> None:
    q, k, v = vectors(30, 30)
    attention = attentions(5, 2)[name]
    single = [ours((q[:, :, i : i + 1], k[:, :, : i + 1], v[:, :, : i + 1]), attention) for i in range(30)]
    torch.testing.assert_close(torch.cat(single, dim=2), ours((q, k, v), attention), atol=1e-12, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.bfloat16, 0.1), (torch.float16, 0.02)])
@pytest.mark.parametrize("asked", [200, 90, 1])
@pytest.mark.parametrize("name", attentions(40, 3))
def test_lower_precision_keeps_its_dtype_and_stays_near(
    name: str, asked: int, dtype: torch.dtype, error: float
) -> None:
    x = vectors(asked, 200, dtype=dtype)
    got = ours(x, attentions(40, 3)[name])
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), expected(x, attentions(40, 3)[name]), atol=error, rtol=0)


def test_values_with_scattered_dimensions_are_read_right() -> None:
    q, k, v = vectors(30, 30)
    scattered = v.mT.contiguous().mT
    assert scattered.stride(3) != 1
    for attention in attentions(7, 2).values():
        got, plain = ours((q, k, scattered), attention), expected((q, k, v), attention)
        torch.testing.assert_close(got, plain, atol=1e-12, rtol=0)


def test_values_of_another_width_are_answered_too() -> None:
    q, k, v = vectors(30, 30)
    for attention in attentions(7, 2).values():
        got, plain = ours((q, k, v[..., :3]), attention), expected((q, k, v), attention)
        torch.testing.assert_close(got, plain[..., :3], atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", ["near_far leaky", "banded", "chunks paper"])
def test_gradients_are_the_dense_kernels(name: str) -> None:
    attention, grads = attentions(7, 2)[name], []
    for attend in (ours, expected):
        q, k, v = (each.requires_grad_() for each in vectors(30, 30))
        grads.append(torch.autograd.grad(attend((q, k, v), attention).square().sum(), (q, k, v)))
    for got, plain in zip(*grads, strict=True):
        torch.testing.assert_close(got, plain, atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("name", "rotated"),
    [
        # one query for each side, the unit vector, and the keys that the newest query sees near
        ("near_far rerope", 1 + 1 + 1 + (7 + 1)),
        # one query for each side, the window, and every far key
        ("near_far leaky", 1 + 1 + (7 + 1) + (LENGTH - 7)),
        ("banded", 1 + (7 + 1)),
        # the third token of its block of seven
        ("blocks", 1 + 5 + 7),
    ],
)
def test_decoding_rotates_no_more_than_it_must(name: str, rotated: int) -> None:
    turned = []

    def counting(x: Tensor, positions: Tensor) -> Tensor:
        turned.append(len(positions))
        return rotate(x, positions)

    q, k, v = vectors(1, LENGTH)
    fast.attend(q, k, v, torch.tensor([LENGTH - 1]), attentions(7, 2)[name], counting, SCALING)
    assert sum(turned) == rotated


def test_no_call_sees_more_scores_than_the_pairs_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fifth above the band or the triangle: what blocks of queries cost beside their window."""
    scores = 0
    plain = flash._call_fused_kernel

    def counted(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scaling: float) -> flash.PartialAttention:
        nonlocal scores
        rows = len(q) * q.shape[2] * k.shape[2]
        scores += rows // 2 if is_causal else rows
        return plain(q, k, v, is_causal, scaling)

    for module in (near_far, chunked):
        monkeypatch.setattr(module.flash, "_call_fused_kernel", counted)
    n, w = 4096, 256
    triangle, band = n * n // 2, n * w
    remap = Remap(w, PositionMap(math.inf, w), CONSTANT)
    pairs = {
        Attention(remap=remap): triangle,
        Attention(mask=Window(w)): band,
        Attention(mask=Window(w, 4), remap=remap): band + 4 * n,
        Attention(mask=Blocks(w)): 3 * band // 2,
        Attention(remap=Chunks(w, w)): triangle,
    }
    for attention, count in pairs.items():
        scores = 0
        ours(vectors(n, n, dtype=torch.float32), attention)
        assert 0.9 * count < scores < 1.1 * count


@pytest.mark.parametrize("name", [name for name in attentions(5, 2) if not name.startswith(("dense", "sdpa"))])
def test_texts_of_a_batch_share_their_calls(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, plain = list[int](), flash._call_fused_kernel

    def counted(q: Tensor, *rest: Any) -> flash.PartialAttention:
        calls.append(len(q))
        return plain(q, *rest)

    monkeypatch.setattr(flash, "_call_fused_kernel", counted)
    found = []
    for batch in (1, 3):
        ours(vectors(LENGTH, LENGTH, batch=batch), attentions(5, 2)[name])
        found.append(len(calls))
        calls.clear()
    assert found[0] == found[1]


def test_queries_anywhere_but_last_are_our_bug() -> None:
    q, k, v = vectors(3, 9)
    for attention in attentions(4, 2).values():
        with pytest.raises(AssertionError, match="last positions"):
            fast.attend(q, k, v, torch.arange(3), attention, rotate, SCALING)


def test_positions_come_from_the_host_once() -> None:
    # A copy from the host holds a GPU up in each layer.
    sides = near_far.sides(attentions(5, 2)["near_far rerope"])
    assert sides is not None
    queries, scaled = vectors(40, LENGTH)[0], Attention(query_scale=LogScale(20))
    first = near_far.far_queries_of(queries, sides, 21, rotate), dense.scale_queries(queries, scaled, LENGTH)
    with on_device():
        again = near_far.far_queries_of(queries, sides, 21, rotate), dense.scale_queries(queries, scaled, LENGTH)
    # Far keys of ReRoPE are all 5 tokens away; what is rotated has the scale of the unrotated keys, too.
    turned = rotate(queries, torch.full((40,), 5.0)) * rotate(torch.ones_like(queries), torch.zeros(40))
    torch.testing.assert_close(again[0], turned)
    torch.testing.assert_close(again[1], queries * (torch.arange(22.0, 62.0).double().log() / math.log(20))[:, None])
    assert all(map(torch.equal, first, again))
