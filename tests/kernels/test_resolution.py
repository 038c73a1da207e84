"""s[n], R(s) and the statistics of attention against all logits at once, made by distances in numpy's float64."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import lexbench
from lexbench import Attention, Model, Refused
from lexbench.core import registry
from lexbench.core.attention import (
    Bands,
    Blocks,
    Chunks,
    LogScale,
    PositionMap,
    Region,
    Remap,
    Remapping,
    Slopes,
    Stairs,
    Window,
    seen_distances,
)
from lexbench.kernels import dense, rotations
from lexbench.kernels import resolution as resolution_module
from lexbench.kernels.logits import Logits, logit_rows, split_by_key_head, sum_by_distance
from lexbench.kernels.observed import Observer, average_weights, distance_bin_edges
from lexbench.kernels.resolution import curve_resolution, mean_logits, well_seen_distances

Array = NDArray[np.float64]
LEXLET = Model(name="like lexlet", trained_length=64, head_dim=8, rope_base=10000.0, layers=4, heads=6, kv_heads=2)
OWN = LEXLET.inv_freq()
LENGTH = 229
"""A prime number: no block, window or repeat divides it."""
RATIOS = (1.3, 1.7)
SCALING = 0.35
CONSTANT = PositionMap(divisor=math.inf)
SLOPES = Slopes((0.5, 0.25, 0.125, 0.0625, 0.03125, 0.0))
DECAY = np.log((np.arange(4) / 4 + 0.4) / 1.4) / 32
F64 = torch.float64

pytestmark = pytest.mark.usefixtures("one_thread")


def vectors(length: int = LENGTH, kv_heads: int = 2) -> tuple[Array, Array]:
    rng = np.random.default_rng([length, kv_heads])
    return 2 * rng.standard_normal((6, length, 8)), 2 * rng.standard_normal((kv_heads, length, 8))


def by_definition(
    q: Array, k: Array, attention: Attention, ratios: tuple[float, ...] | None = None, decay: Array | None = None
) -> Array:
    """[H, T, T] logits of pairs (p, p + 4) by the distance that stands for i - j; NaN where no key is seen."""
    heads, length, _ = q.shape
    i = np.arange(length)
    inv_freq = OWN if attention.inv_freq is None else attention.inv_freq
    scale = attention.scale or 1.0
    seen = i[None, :] <= i[:, None]
    if attention.mask is not None:
        seen &= attention.mask.allowed(i, i)
    distances = np.nan_to_num(seen_distances(attention.remap, i, i)).reshape(length, length, -1)
    distances = np.broadcast_to(distances, (length, length, 4))  # of four bands, each pair has its own
    made = np.full((heads, length, length), np.nan)
    for head in range(heads):
        key_head = head * len(k) // heads
        one = q[head, :, :4] + 1j * q[head, :, 4:]
        two = k[key_head, :, :4] + 1j * k[key_head, :, 4:]
        total = np.zeros((length, length))
        for pair in range(4):
            if attention.keep_first is None:
                turn = distances[:, :, pair] / (ratios[key_head] if ratios else 1.0) * inv_freq[pair]
                size = np.full((length, length), scale**2)
            else:
                first = i < attention.keep_first
                angles = i * np.where(first, OWN[pair], inv_freq[pair])
                turn = angles[:, None] - angles[None, :]
                each = np.where(first, 1.0, scale)
                size = each[:, None] * each[None, :]
            if decay is not None:
                with np.errstate(over="ignore"):
                    size = size * np.where(seen, np.exp(decay[pair] * (i[:, None] - i[None, :])), 0.0)
            total += size * (one[:, None, pair] * two[None, :, pair].conj() * np.exp(1j * turn)).real
        total *= SCALING
        if attention.query_scale is not None:
            total *= attention.query_scale(i)[:, None]
        if attention.bias is not None:
            total -= attention.bias.slopes[head] * (i[:, None] - i[None, :])
        made[head] = np.where(seen, total, np.nan)
    return made


def diagonals(made: Array) -> list[Array]:
    """[H, pairs] logits of the pairs that are seen, at each distance."""
    length = made.shape[1]
    each = [np.diagonal(made, -n, 1, 2) for n in range(length)]
    return [values[:, ~np.isnan(values[0])] for values in each]


def mean_by_definition(made: Array) -> Array:
    return np.stack([v.mean(1) if v.size else np.full(len(made), np.nan) for v in diagonals(made)], axis=1)


def rotation(inv_freq: Array, scale: float = 1.0) -> Callable[[Tensor, Tensor], Tensor]:
    def rotate(x: Tensor, positions: Tensor) -> Tensor:
        turn = positions.double().reshape(len(positions), -1) * torch.from_numpy(inv_freq.copy())
        spun = torch.complex(x[..., :4], x[..., 4:]) * torch.polar(torch.full_like(turn, scale), turn).to(
            torch.complex64 if x.dtype == torch.float32 else torch.complex128
        )
        return torch.cat([spun.real, spun.imag], dim=-1)

    return rotate


def made_of(attention: Attention, ratios: tuple[float, ...] | None = None, **more: Any) -> Logits:
    rotate = rotation(OWN if attention.inv_freq is None else attention.inv_freq, attention.scale or 1.0)
    if attention.keep_first is not None:
        rotate = rotations.rotate_keeping_first(attention.keep_first, rotation(OWN), rotate)
    return Logits(rotate=rotate, scaling=SCALING, attention=attention, ratios=ratios, **more)


def tensors(q: Array, k: Array) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(q)[None], torch.from_numpy(k)[None]


def without_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The quadratic way is shut."""

    def shut(*unused: object) -> Tensor:
        raise AssertionError("took the quadratic way")

    monkeypatch.setattr(resolution_module, "_by_rows", shut)


BY_BAND = Bands(tuple(PositionMap(group, floor=True) for group in (1, 6, 3, 2)))
FAST = {
    "plain": Attention(),
    "query_scale": Attention(query_scale=LogScale(16)),
    "bias": Attention(bias=SLOPES),
    "window": Attention(mask=Window(50)),
    "window_of_one": Attention(mask=Window(1)),
    "window_beyond": Attention(mask=Window(1000, 3)),
    "sinks": Attention(mask=Window(50, 4), bias=SLOPES),
    "many_sinks": Attention(mask=Window(20, 190)),
    "blocks": Attention(mask=Blocks(50)),
    "blocks_of_one": Attention(mask=Blocks(1)),
    "half_blocks": Attention(mask=Blocks(115)),
    "two_blocks_less_one": Attention(mask=Blocks(114), bias=SLOPES),
    "one_block": Attention(mask=Blocks(1000)),
    "rerope": Attention(remap=Remap(30, PositionMap(math.inf, 30), CONSTANT)),
    "rerope_of_one": Attention(remap=Remap(1, PositionMap(math.inf, 1), CONSTANT)),
    "rerope_beyond": Attention(remap=Remap(1000, PositionMap(math.inf, 30), CONSTANT)),
    "leaky": Attention(remap=Remap(30, PositionMap(3.0, 30 - 10), PositionMap(3.0)), query_scale=LogScale(64)),
    "self_extend": Attention(
        remap=Remap(30, PositionMap(4.0, 30 - 7, floor=True), PositionMap(4.0, floor=True)), scale=1.2
    ),
    "bands": Attention(
        remap=Remap(30, Bands(tuple(PositionMap(g, 30 - 30 / g, floor=True) for g in (1, 6, 3, 2))), BY_BAND)
    ),
    "capped": Attention(remap=Remap(4, PositionMap(cap=90), PositionMap())),
    "lambda": Attention(remap=Remap(30, PositionMap(math.inf, 30), CONSTANT), mask=Window(30, 5)),
    "window_within_far": Attention(
        remap=Remap(30, PositionMap(3.0, 20), PositionMap(3.0)), mask=Window(70, 5), bias=SLOPES
    ),
    "window_within_near": Attention(remap=Remap(90, PositionMap(3.0, 60), PositionMap(3.0)), mask=Window(70, 6)),
    "chunks": Attention(remap=Chunks(50, 70), bias=SLOPES),
    "chunks_of_one": Attention(remap=Chunks(1, 1)),
    "one_chunk": Attention(remap=Chunks(1000, 1000)),
    "stairs": Attention(remap=Stairs(((30, 1), (20, 2), (7, 3)))),
    "stairs_in_a_window": Attention(remap=Stairs(((3, 2), (7, 3), (1, 5))), mask=Window(60, 4)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAST)
def test_the_mean_logit_at_each_distance_is_that_of_all_logits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    without_rows(monkeypatch)
    monkeypatch.setattr(resolution_module, "MAX_FOURIER_NUMBERS", 3000)  # a few dimensions at a time
    for kv_heads in (1, 2, 6):
        q, k = vectors(kv_heads=kv_heads)
        got = mean_logits(*tensors(q, k), made_of(FAST[name]))
        assert got.dtype == torch.float64
        np.testing.assert_allclose(got, mean_by_definition(by_definition(q, k, FAST[name])), atol=1e-9, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", registry.registered_names("method"))
@pytest.mark.parametrize("length", [40, LENGTH])
def test_every_method_of_the_registry_is_summed_fast_and_exactly(
    name: str, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        asked = lexbench.method(name).attention(LEXLET, length)
    except Refused as refusal:
        pytest.skip(refusal.reason)
    without_rows(monkeypatch)
    q, k = vectors(length)
    for attention in [part for each in asked.mixture or (asked,) for part in each.parts()]:
        ratios = None if attention.head_ratios is None else RATIOS
        got = mean_logits(*tensors(q, k), made_of(attention, ratios))
        expected = mean_by_definition(by_definition(q, k, attention, ratios))
        np.testing.assert_allclose(got, expected, atol=1e-9, rtol=0)


@pytest.mark.everyday("plain-1", "bias-2", "window-1")
@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("name", FAST)
def test_the_shortest_texts(name: str, length: int) -> None:
    q, k = vectors(length)
    got = mean_logits(*tensors(q, k), made_of(FAST[name]))
    np.testing.assert_allclose(got, mean_by_definition(by_definition(q, k, FAST[name])), atol=1e-12)


@pytest.mark.everyday("None")
@pytest.mark.parametrize("mask", [None, Window(50), Window(50, 4), Blocks(50)])
def test_a_decay_of_pairs_with_the_distance(mask: Window | Blocks | None, monkeypatch: pytest.MonkeyPatch) -> None:
    attention = Attention(mask=mask, query_scale=LogScale(16))
    q, k = vectors()
    made = by_definition(q, k, attention, decay=DECAY)
    logits = made_of(attention, decay=torch.from_numpy(DECAY))
    [*parts] = (
        torch.cat(list(padded(logit_rows(group, logits, 60))), 1)
        for group in split_by_key_head(*tensors(q, k), logits, F64)
    )
    np.testing.assert_allclose(torch.cat(parts), np.where(np.isnan(made), -np.inf, made), atol=1e-11)
    without_rows(monkeypatch)
    np.testing.assert_allclose(mean_logits(*tensors(q, k), logits), mean_by_definition(made), atol=1e-9, rtol=0)


def padded(parts: Any) -> Any:
    return (torch.nn.functional.pad(part, (0, LENGTH - part.shape[2]), value=-torch.inf) for part in parts)


def test_a_decay_neither_overflows_nor_loses_digits_at_32k_tokens() -> None:
    # Two tokens in all the text: only their distances have logits other than 0.
    length, far = 32768, 20000
    q, k = torch.zeros(1, 1, length, 8, dtype=F64), torch.zeros(1, 1, length, 8, dtype=F64)
    q[..., 32000, :] = torch.arange(1.0, 9)
    k[..., 32000 - far, :] = 1.0
    k[..., 31999, :] = -1.0
    decay = torch.from_numpy(np.log((np.arange(4) / 4 + 0.4) / 1.4) / 512)
    got = mean_logits(q, k, Logits(rotate=lambda x, _: x, scaling=1.0, decay=decay))[0]
    sums = np.array([1 + 5, 2 + 6, 3 + 7, 4 + 8])
    assert got[1] == pytest.approx(-(sums * np.exp(decay.numpy())).sum() / (length - 1), rel=1e-12)
    assert got[far] == pytest.approx((sums * np.exp(far * decay.numpy())).sum() / (length - far), rel=1e-9)
    assert got.isfinite().all()


def test_a_decay_under_a_remap_is_an_error() -> None:
    with pytest.raises(ValueError, match="not defined for remapped distances"):
        made_of(FAST["rerope"], decay=torch.from_numpy(DECAY))


class Odd(Remapping):
    """A remap that no kernel knows: near, but every third query far from everything."""

    def regions(self) -> list[Region]:
        return [
            Region(PositionMap(), PositionMap(), lambda i, j: (i % 3 > 0) & (j >= 0)),
            Region(PositionMap(offset=9.5), PositionMap(2.0), lambda i, j: (i % 3 == 0) & (j >= 0)),
        ]


SLOW = {
    "odd": Attention(remap=Odd(), mask=Window(50, 4)),
    "chunks_in_a_window": Attention(remap=Chunks(50, 70), mask=Window(60, 4), bias=SLOPES),
    "rerope_in_blocks": Attention(remap=FAST["rerope"].remap, mask=Blocks(50), query_scale=LogScale(16)),
}


@pytest.mark.parametrize("name", SLOW)
def test_what_has_no_fast_way_is_exact_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "MAX_SCORES_IN_MEMORY", 3 * LENGTH * 17)
    q, k = vectors()
    got = mean_logits(*tensors(q, k), made_of(SLOW[name]))
    np.testing.assert_allclose(got, mean_by_definition(by_definition(q, k, SLOW[name])), atol=1e-10)


def test_a_bias_of_an_encoding_is_added_where_it_depends_on_the_distance_alone() -> None:
    q, k = vectors()

    def kerple(here: Tensor, there: Tensor) -> Tensor:
        rel = (here[:, None] - there[None, :]).clamp_min(0)
        return -torch.log1p(rel) * torch.arange(1.0, 7)[:, None, None]

    attention = Attention(bias=SLOPES, mask=Window(50, 4))
    got = mean_logits(*tensors(q, k), made_of(attention, bias=kerple))
    plain = mean_by_definition(by_definition(q, k, attention))
    expected = plain - np.log1p(np.arange(LENGTH)) * np.arange(1, 7)[:, None]
    np.testing.assert_allclose(got, expected, atol=1e-9)


def test_a_bias_that_depends_on_more_than_the_distance_is_summed_row_by_row() -> None:
    q, k = vectors()

    def fire(here: Tensor, there: Tensor) -> Tensor:  # the distance as a share of the query's position
        return ((here[:, None] - there[None, :]) / (here[:, None] + 1)).expand(6, -1, -1)

    got = mean_logits(*tensors(q, k), made_of(Attention(), bias=fire))
    i = np.arange(LENGTH)
    expected = mean_by_definition(by_definition(q, k, Attention()) + (i[:, None] - i) / (i[:, None] + 1.0))
    np.testing.assert_allclose(got, expected, atol=1e-9)


def test_sums_along_diagonals() -> None:
    values = torch.arange(2 * 2 * 4, dtype=torch.float32).reshape(2, 2, 4)  # queries 2 and 3 of 4 positions
    values[:, 0, 3] = 0.0  # the key behind query 2
    expected = [[2 + 7, 1 + 6, 0 + 5, 4], [10 + 15, 9 + 14, 8 + 13, 12]]
    assert sum_by_distance(values).tolist() == expected


# R(s)


def test_resolution_of_a_flat_curve() -> None:
    for length in (1, 2, 100):
        assert curve_resolution(torch.full((length,), 7.0, dtype=F64)) == pytest.approx(1 / length**2)


def test_resolution_of_a_straight_curve_is_that_of_a_geometric_series() -> None:
    ratio, length = math.exp(-0.25), 60
    curve = -0.25 * torch.arange(length, dtype=F64) + 300  # no overflow
    weights = [(1 - ratio) * ratio**n / (1 - ratio**length) for n in range(length)]
    expected = sum(p * p for p in weights) * (1 - ratio) + weights[-1] ** 2 * ratio
    assert curve_resolution(curve) == pytest.approx(expected, rel=1e-12)


def test_resolution_is_half_the_sum_of_squared_steps() -> None:
    curve = torch.from_numpy(np.random.default_rng(0).standard_normal((3, 50)) * 3)
    weights = np.exp(curve.numpy()) / np.exp(curve.numpy()).sum(1, keepdims=True)
    steps = np.diff(np.pad(weights, ((0, 0), (0, 1))), axis=1)
    expected = ((steps**2).sum(1) + weights[:, 0] ** 2) / 2
    np.testing.assert_allclose(curve_resolution(curve), expected, rtol=1e-12)
    assert (curve_resolution(curve) <= 1).all()
    assert curve_resolution(torch.tensor([0.0, -1e9], dtype=F64)) == 1.0


def test_resolution_is_no_measure_of_order() -> None:
    falling = -0.1 * torch.arange(40, dtype=F64)
    assert curve_resolution(falling.flip(0)) == pytest.approx(float(curve_resolution(falling)), rel=1e-12)
    swing = torch.where(torch.arange(40) % 2 == 0, 1.0, -1.0)  # p is a / 20 or b / 20 by turns
    a = math.exp(1) / (math.exp(1) + math.exp(-1))
    b = 1 - a
    assert curve_resolution(swing.double()) == pytest.approx((a**2 + 39 * (a - b) ** 2 + b**2) / 800, rel=1e-12)


def test_distances_at_which_nothing_is_seen_have_no_weight() -> None:
    curve = torch.tensor([1.0, 0.5, torch.nan, torch.nan], dtype=F64)
    assert curve_resolution(curve) == curve_resolution(curve[:2])
    assert curve_resolution(torch.tensor([1.0, torch.nan, 1.0], dtype=F64)) == pytest.approx(0.5)  # 1/2 at 0 and at 2


# what is observed behind the softmax

CASES: dict[str, tuple[Attention, tuple[float, ...] | None, bool]] = {
    "plain": (Attention(), None, False),
    "sinks": (FAST["sinks"], None, False),
    "leaky": (FAST["leaky"], None, False),
    "chunks": (FAST["chunks"], None, False),
    "ratios": (Attention(), RATIOS, False),
    "decay": (Attention(mask=Window(99)), None, True),
}


@pytest.mark.slow
@pytest.mark.parametrize("last", [None, 1, 130])
@pytest.mark.parametrize("name", CASES)
def test_statistics_are_those_of_the_whole_softmax(
    name: str, last: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    attention, ratios, decays = CASES[name]
    monkeypatch.setattr(dense, "MAX_SCORES_IN_MEMORY", 3 * LENGTH * 17)
    q, k = vectors()
    decay = torch.from_numpy(DECAY) if decays else None
    observer = Observer(LENGTH, 4, last, shortest=40)
    logits = made_of(attention, ratios, decay=decay)
    observer(1, *tensors(q, k), made_of(Attention()))
    observer(0, *tensors(q, k), logits)
    got = observer.statistics()

    made = by_definition(q, k, attention, ratios, DECAY if decays else None)
    weights = np.exp(np.nan_to_num(made, nan=-np.inf))
    weights /= weights.sum(2, keepdims=True)
    i = np.arange(LENGTH)
    distances = i[:, None] - i
    asked = LENGTH if last is None else last
    weights, distances = weights[:, LENGTH - asked :], distances[LENGTH - asked :]
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.nansum(weights * np.log(weights), axis=2).mean(1)
    assert got["distance"].shape == got["entropy"].shape == got["first_mass"].shape == (2, 6)
    np.testing.assert_allclose(got["distance"][0], (weights * distances).sum(2).mean(1), atol=1e-9)
    np.testing.assert_allclose(got["entropy"][0], entropy, atol=1e-9)
    np.testing.assert_allclose(got["first_mass"][0], weights[:, :, :4].sum(2).mean(1), atol=1e-12)
    bins = got["edges"].astype(int)
    for place, (low, high) in enumerate(itertools.pairwise(bins)):
        inside = (distances >= low) & (distances < high)
        expected = (weights * inside).sum((1, 2)) / asked
        np.testing.assert_allclose(got["mass"][0, :, place], expected, atol=1e-12)
    np.testing.assert_allclose(got["mass"].sum(2), 1, atol=1e-12)

    curves = [mean_by_definition(each) for each in (made, by_definition(q, k, Attention()))]
    np.testing.assert_allclose(got["curve"], np.nanmean(np.concatenate(curves), axis=0), atol=1e-9)
    for place, (low, high) in enumerate(itertools.pairwise(bins)):
        part = curves[0][:, low:high]
        seen = part[:, ~np.isnan(part[0])]
        expected = seen.mean(1) if seen.size else np.full(6, np.nan)
        np.testing.assert_allclose(got["preference"][0, :, place], expected, atol=1e-9)
    # 7/8 of 229 is 200.4, and of 40 it is 35
    for key, below in (("resolution", 200), ("resolution_shared", 35), ("resolution_all", LENGTH)):
        near = curves[0][:, :below]
        p = np.nan_to_num(np.exp(near - np.nanmax(near, axis=1, keepdims=True)))
        p /= p.sum(1, keepdims=True)
        steps = np.diff(np.pad(p, ((0, 0), (1, 1))), axis=1)
        np.testing.assert_allclose(got[key][0], (steps**2).sum(1) / 2, atol=1e-9)
    assert (got["reach"].item(), got["shared"].item()) == (200, 35)


def test_the_same_last_queries_see_the_same_whatever_text_lies_before_their_window() -> None:
    q, k = (torch.from_numpy(x)[None] for x in vectors(256))
    found = [average_weights(q[:, :, -n:], k[:, :, -n:], made_of(Attention(mask=Window(16))), 4, 32) for n in (64, 256)]
    short, long = found
    np.testing.assert_allclose(short.entropy, long.entropy, rtol=1e-12)
    np.testing.assert_allclose(short.mass, long.mass[:, :64], atol=1e-14)
    assert not long.mass[:, 16:].any() and not short.first.any() and not long.first.any()
    # Over all queries it changes: those with fewer keys than the window weigh less and less.
    assert (average_weights(q, k, made_of(Attention(mask=Window(16))), 4).first > 0).all()


def test_the_farthest_distances_which_few_queries_see_do_not_enter_resolution() -> None:
    # One key, the first token's, meets all queries of the last eighth of positions: logits are 0 but at n >= 56 of 64.
    length = 64
    q, k = torch.zeros(2, 1, 1, length, 8, dtype=F64)
    q[0, 0, 56:, 0], k[0, 0, 0, 0] = 50.0, 1.0
    observer = Observer(length, 4)
    observer(0, q, k, Logits(rotate=lambda x, _: x, scaling=1.0))
    found = observer.statistics()
    expected = np.zeros(length)
    expected[56:] = 50.0 / np.arange(8, 0, -1)
    np.testing.assert_allclose(found["curve"], expected, atol=1e-12)
    assert found["resolution"] == pytest.approx(1 / 56**2, rel=1e-9)
    assert found["resolution_shared"] == found["resolution"]  # without a shorter length
    e = np.exp(expected)
    assert found["resolution_all"] == pytest.approx(
        sum(each * (each - after) for each, after in zip(e, [*e[1:], 0], strict=True)) / e.sum() ** 2, rel=1e-9
    )


@pytest.mark.parametrize("length", [16, 32, 64])
def test_equal_logits_have_the_same_resolution_over_shared_distances_at_every_length(length: int) -> None:
    q, k = torch.zeros(2, 1, 1, length, 8, dtype=F64)
    observer = Observer(length, 4, shortest=16)
    observer(0, q, k, Logits(rotate=lambda x, _: x, scaling=1.0))
    found = observer.statistics()
    assert found["resolution_shared"] == pytest.approx(1 / 14**2, rel=1e-9)  # weights of 1/14, then a step to 0
    assert found["resolution"] == pytest.approx(1 / (7 * length / 8) ** 2, rel=1e-9)
    assert found["resolution_all"] == pytest.approx(1 / length**2, rel=1e-9)


@pytest.mark.parametrize(("length", "below"), [(1, 1), (2, 1), (8, 7), (9, 7), (16, 14), (17, 14), (1024, 896)])
def test_what_is_well_seen_is_seen_by_an_eighth_of_the_queries(length: int, below: int) -> None:
    assert well_seen_distances(length) == below
    assert (length - np.arange(below) > length / 8).all()  # queries that see the key so far back


def test_lower_precision_stays_near_and_keeps_float64_where_it_sums() -> None:
    q, k = (x / 4 for x in vectors())
    logits = made_of(FAST["leaky"])
    precise = average_weights(*tensors(q, k), logits, 4)
    queries, keys = tensors(q, k)
    rough = average_weights(queries.float(), keys.float(), logits, 4)
    assert rough.mass.dtype == torch.float64
    np.testing.assert_allclose(rough.mass, precise.mass, atol=1e-6)
    np.testing.assert_allclose(rough.entropy, precise.entropy, atol=1e-5)


def test_bins_are_two_an_octave_and_the_same_at_every_length() -> None:
    assert distance_bin_edges(30).tolist() == [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 30]
    assert distance_bin_edges(16).tolist() == [0, 1, 2, 3, 4, 6, 8, 12, 16]
    assert distance_bin_edges(17).tolist() == [0, 1, 2, 3, 4, 6, 8, 12, 16, 17]
    assert distance_bin_edges(1).tolist() == [0, 1]
    assert len(distance_bin_edges(32769)) == 2 * 15 + 2


def test_no_more_scores_are_held_than_a_chunk_of_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "MAX_SCORES_IN_MEMORY", 3 * LENGTH * 10)
    q, k = tensors(*vectors())
    logits = made_of(Attention())
    held = [part.numel() for group in split_by_key_head(q, k, logits, F64) for part in logit_rows(group, logits)]
    assert len(held) == 2 * math.ceil(LENGTH / 10)
    assert max(held) <= 3 * LENGTH * 10


def test_positions_of_each_key_head_are_divided_by_its_own_ratio() -> None:
    q, k = vectors()
    got = mean_logits(*tensors(q, k), made_of(Attention(), RATIOS))
    for head, ratio in ((0, RATIOS[0]), (5, RATIOS[1])):
        scaled = replace(Attention(), inv_freq=OWN / ratio)
        expected = mean_by_definition(by_definition(q, k, scaled))[head]
        np.testing.assert_allclose(got[head], expected, atol=1e-9)
