"""The dense kernel against its formula, one pair of positions at a time in float64."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from lexbench import Attention
from lexbench.core.attention import (
    Bands,
    Blocks,
    Chunks,
    ConstantScale,
    LogScale,
    PositionMap,
    Remap,
    Slopes,
    Stairs,
    Window,
)
from lexbench.kernels import dense

Array = NDArray[np.float64]
INV_FREQ = np.array([1.0, 0.2, 0.05])
SCALE = 1.1
SCALING = 0.3
CONSTANT = PositionMap(divisor=math.inf)


pytestmark = pytest.mark.usefixtures("one_thread")


def rotate(vectors: Tensor, positions: Tensor) -> Tensor:
    """Pairs (p, p + 3) of six dimensions, times the scale."""
    turn = positions.double().reshape(len(positions), -1) * torch.from_numpy(INV_FREQ)
    spun = torch.complex(vectors[..., :3].double(), vectors[..., 3:].double()) * torch.polar(
        torch.full_like(turn, SCALE), turn
    )
    return torch.cat([spun.real, spun.imag], dim=-1).to(vectors.dtype)


def turned(vector: Array, positions: list[float]) -> Array:
    out = np.empty(6)
    for pair, (frequency, position) in enumerate(zip(INV_FREQ, positions, strict=True)):
        cos, sin = math.cos(position * frequency), math.sin(position * frequency)
        a, b = vector[pair], vector[pair + 3]
        out[pair], out[pair + 3] = SCALE * (a * cos - b * sin), SCALE * (a * sin + b * cos)
    return out


def definition(q: Array, k: Array, v: Array, attention: Attention) -> Array:
    """The formula of lexbench.core.attention's docstring for every (i, j), query i being one of the last."""
    batch, heads, asked, _ = q.shape
    group, total = heads // k.shape[1], k.shape[2]
    out = np.zeros((batch, heads, asked, v.shape[3]))
    for b, h, row in np.ndindex(batch, heads, asked):
        i = total - asked + row
        logits, seen = [], []
        for j in range(i + 1):
            mask = attention.mask
            if isinstance(mask, Window) and not (i - j < mask.size or j < mask.sinks):
                continue
            if isinstance(mask, Blocks) and j < (i // mask.size - 1) * mask.size:
                continue
            at_q, at_k = places(attention.remap, i, j)
            logit = SCALING * turned(q[b, h, row], at_q) @ turned(k[b, h // group, j], at_k)
            if isinstance(attention.query_scale, LogScale):
                logit *= max(1.0, math.log(i + 1) / math.log(attention.query_scale.trained_length))
            if isinstance(attention.query_scale, ConstantScale) and i >= attention.query_scale.begin:
                logit *= attention.query_scale.factor
            if attention.bias is not None:
                logit -= attention.bias.slopes[h] * (i - j)
            logits.append(logit)
            seen.append(j)
        weights = np.exp(np.array(logits) - max(logits))
        out[b, h, row] = (weights / weights.sum()) @ v[b, h // group, seen]
    return out


def places(remap: object, i: int, j: int) -> tuple[list[float], list[float]]:
    """Where each pair of query i and key j is rotated: any two places as far apart as the method sees them."""
    if isinstance(remap, Remap) and i - j >= remap.window:
        rules = remap.query, remap.key
        of_query, of_key = (rule.lines if isinstance(rule, Bands) else (rule,) * 3 for rule in rules)
        return [line(rule, i) for rule in of_query], [line(rule, j) for rule in of_key]
    here, there = all_pairs(remap, i, j)
    return [here] * 3, [there] * 3


def all_pairs(remap: object, i: int, j: int) -> tuple[float, float]:
    if isinstance(remap, Chunks):
        older = i // remap.size - j // remap.size
        return float(
            [i % remap.size, min(i % remap.size + remap.size, remap.limit), remap.limit][min(older, 2)]
        ), float(j % remap.size)
    if isinstance(remap, Stairs):
        left, level = i - j, 0
        for count, repeat in remap.steps:
            last = (count, repeat) == remap.steps[-1]
            if last or left < count * repeat:
                return float(level + left // repeat), 0.0
            left, level = left - count * repeat, level + count
    return float(i), float(j)


def line(rule: PositionMap, position: int) -> float:
    if math.isinf(rule.divisor):
        return rule.offset
    quotient = position / rule.divisor
    return min((math.floor(quotient) if rule.floor else quotient) + rule.offset, rule.cap)


GROUPED = Bands((PositionMap(4.0, 6 - 6 // 4, floor=True), PositionMap(), PositionMap(math.inf, 6)))
ATTENTIONS = {
    "plain": Attention(),
    "query_scale": Attention(query_scale=LogScale(4)),
    "gain": Attention(query_scale=ConstantScale(1.5, begin=9)),
    "rerope": Attention(remap=Remap(5, PositionMap(math.inf, 5), CONSTANT)),
    "window_1": Attention(remap=Remap(1, PositionMap(math.inf, 1), CONSTANT)),
    "window_beyond": Attention(remap=Remap(99, PositionMap(math.inf, 99), CONSTANT)),
    "window_of_all": Attention(remap=Remap(23, PositionMap(math.inf, 23), CONSTANT)),
    "leaky": Attention(remap=Remap(4, PositionMap(3.0, 4 - 4 / 3), PositionMap(3.0))),
    "self_extend": Attention(remap=Remap(6, PositionMap(4.0, 6 - 6 // 4, floor=True), PositionMap(4.0, floor=True))),
    "bands": Attention(remap=Remap(6, GROUPED, Bands((PositionMap(4.0, floor=True), PositionMap(), CONSTANT)))),
    "bands_of_queries": Attention(remap=Remap(5, GROUPED, PositionMap(2.0))),
    "capped": Attention(remap=Remap(4, PositionMap(cap=9), PositionMap())),
    "chunks": Attention(remap=Chunks(6, 9)),
    "chunks_of_one": Attention(remap=Chunks(1, 1)),
    "stairs": Attention(remap=Stairs(((4, 1), (2, 2), (1, 3)))),
    "blocks": Attention(mask=Blocks(5)),
    "mask": Attention(mask=Window(3)),
    "sinks": Attention(mask=Window(3, sinks=2)),
    "bias": Attention(bias=Slopes((0.5, 0.25, 0.125, 0.0))),
    "all": Attention(
        query_scale=LogScale(4),
        remap=Remap(4, PositionMap(3.0, 2.5), PositionMap(2.0)),
        mask=Window(9, sinks=1),
        bias=Slopes((0.5, 0.25, 0.125, 0.0)),
    ),
}


def vectors(kv_heads: int, asked: int, total: int, batch: int = 1) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng([kv_heads, asked, total, batch])
    return (
        2 * rng.standard_normal((batch, 4, asked, 6)),
        2 * rng.standard_normal((batch, kv_heads, total, 6)),
        rng.standard_normal((batch, kv_heads, total, 6)),
    )


def ours(q: Array, k: Array, v: Array, attention: Attention, dtype: torch.dtype, chunk: int | None = None) -> Tensor:
    positions = torch.arange(k.shape[2] - q.shape[2], k.shape[2])
    queries, keys, values = (torch.from_numpy(x).to(dtype) for x in (q, k, v))
    return dense.attend(queries, keys, values, positions, attention, rotate, SCALING, chunk)


@pytest.mark.everyday(
    "plain-4-23-23-1-None",
    "query_scale-2-23-23-2-5",
    "rerope-1-23-23-1-1",
    "window_1-2-1-23-1-None",
    "leaky-2-7-23-1-3",
    "self_extend-2-23-23-2-5",
    "bands-2-23-23-2-5",
    "capped-4-23-23-1-None",
    "chunks-2-7-23-1-3",
    "stairs-1-23-23-1-1",
    "blocks-2-23-23-2-5",
    "mask-2-1-23-1-None",
    "sinks-2-23-23-2-5",
    "bias-2-7-23-1-3",
    "all-2-23-23-2-5",
)
@pytest.mark.parametrize(
    ("kv_heads", "asked", "total", "batch", "chunk"),
    [(4, 23, 23, 1, None), (2, 23, 23, 2, 5), (1, 23, 23, 1, 1), (2, 1, 23, 1, None), (2, 7, 23, 1, 3)],
)
@pytest.mark.parametrize("name", ATTENTIONS)
def test_every_slot_is_its_formula(
    name: str, kv_heads: int, asked: int, total: int, batch: int, chunk: int | None
) -> None:
    q, k, v = vectors(kv_heads, asked, total, batch)
    expected = definition(q, k, v, ATTENTIONS[name])
    got = ours(q, k, v, ATTENTIONS[name], torch.float64, chunk)
    assert got.dtype == torch.float64
    np.testing.assert_allclose(got.numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("name", ["plain", "all", "leaky"])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 2e-5), (torch.bfloat16, 1e-2)])
def test_lower_precision_keeps_its_dtype_and_stays_near(name: str, dtype: torch.dtype, error: float) -> None:
    q, k, v = (torch.from_numpy(x).to(dtype).double().numpy() for x in vectors(2, 23, 23))
    got = ours(q, k, v, ATTENTIONS[name], dtype)
    assert got.dtype == dtype
    # The fused kernel rounds rotated vectors to bfloat16, as every stock model does.
    bound = 10 * error if name == "plain" and dtype == torch.bfloat16 else error
    np.testing.assert_allclose(got.double().numpy(), definition(q, k, v, ATTENTIONS[name]), atol=bound)


def test_scores_are_never_held_for_all_queries_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    plain = dense.masked_scores

    def watched(*arguments: Any) -> Tensor:
        scores = plain(*arguments)
        held.append(scores.numel())
        return scores

    monkeypatch.setattr(dense, "masked_scores", watched)
    monkeypatch.setattr(dense, "MAX_SCORES_IN_MEMORY", 4 * 64 * 10)
    q, k, v = vectors(2, 64, 64)
    ours(q, k, v, ATTENTIONS["leaky"], torch.float32)
    assert len(held) == math.ceil(64 / 10)
    assert max(held) <= 4 * 64 * 10


def test_queries_anywhere_but_last_are_our_bug() -> None:
    q, k, v = (torch.from_numpy(x) for x in vectors(2, 3, 9))
    with pytest.raises(AssertionError, match="last positions"):
        dense.attend(q, k, v, torch.arange(3), Attention(), rotate, SCALING)
