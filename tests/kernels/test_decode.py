"""One token of each text over kept keys, against the dense kernel on each text alone."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from lexbench.backends.hf.exact.state import KeptLayer
from lexbench.core.attention import Attention, ConstantScale, LogScale, Segments
from lexbench.kernels import decode, dense, flash
from tests.kernels.test_fast import SCALING, attentions, rotate

pytestmark = pytest.mark.usefixtures("one_thread")
ATTENTIONS = {
    **{name: each for name, each in attentions(7, 2).items() if not name.startswith("dense")},
    "segments": Attention(mask=Segments(5)),
    "query scale": Attention(query_scale=LogScale(5)),
    "gain": Attention(query_scale=ConstantScale(1.5, begin=10)),
}
LENGTHS = (30, 9, 3, 22)
"""Of texts that are continued together: below the window, a little above it, far above it."""


def drawn(dtype: torch.dtype = torch.float64) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Queries [1, 4, n, 8], keys and values [1, 2, n, 8] of each text and of four tokens behind it."""
    generator = torch.Generator().manual_seed(0)
    made: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([], [], [])
    for size in LENGTHS:
        for list_, heads in zip(made, (4, 2, 2), strict=True):
            list_.append(2 * torch.randn(1, heads, size + 4, 8, generator=generator, dtype=torch.float64).to(dtype))
    return made


def padded(texts: list[Tensor], step: int) -> Tensor:
    """The beginnings of all texts, `step` tokens behind their prompts, on the right of one tensor."""
    total = max(LENGTHS) + step
    whole = torch.zeros(len(texts), texts[0].shape[1], total, 8, dtype=texts[0].dtype)
    for row, (text, size) in enumerate(zip(texts, LENGTHS, strict=True)):
        whole[row, :, total - size - step :] = text[0, :, : size + step]
    return whole


def steps(attention: Attention, queries: list[Tensor], keys: list[Tensor], values: list[Tensor]) -> list[Tensor]:
    """[B, 4, 1, 8] of each of four tokens behind the prompts."""
    layer = KeptLayer(room=2)
    layer.update(padded(keys, 0), padded(values, 0))
    found = []
    for step in range(1, 5):
        new = [
            torch.cat([text[:, :, size + step - 1, None] for text, size in zip(part, LENGTHS, strict=True)])
            for part in (queries, keys, values)
        ]
        layer.update(*new[1:])
        state = decode.DecodeStep(np.array(LENGTHS) + step)
        found.append(decode.attend(new[0], layer, state, attention, rotate, SCALING))
    return found


@pytest.mark.everyday("sdpa", "near_far rerope", "lambda streaming", "banded sinks", "blocks", "chunks paper")
@pytest.mark.parametrize("name", ATTENTIONS)
def test_texts_of_many_lengths_are_continued_as_each_alone(name: str) -> None:
    attention = ATTENTIONS[name]
    attention = attention if attention.query_scale else replace(attention, query_scale=LogScale(5))
    queries, keys, values = drawn()
    for step, got in enumerate(steps(attention, queries, keys, values), 1):
        for row, size in enumerate(LENGTHS):
            end = size + step
            q, k, v = queries[row][:, :, end - 1 : end], keys[row][:, :, :end], values[row][:, :, :end]
            exact = dense.attend(q, k, v, torch.tensor([end - 1]), attention, rotate, SCALING)
            torch.testing.assert_close(got[row : row + 1], exact, atol=1e-12, rtol=0)


def test_keys_first_rotated_after_the_longest_text_has_ended_stand_at_their_own_positions() -> None:
    attention = ATTENTIONS["near_far leaky"]
    queries, keys, values = drawn()
    layer = KeptLayer(room=2)
    layer.update(padded(keys, 0), padded(values, 0))
    rows = [1, 3]
    layer.select(torch.tensor(rows))
    new = [torch.cat([part[row][:, :, LENGTHS[row], None] for row in rows]) for part in (queries, keys, values)]
    layer.update(*new[1:])
    step = decode.DecodeStep(np.array([LENGTHS[row] + 1 for row in rows]))
    got = decode.attend(new[0], layer, step, attention, rotate, SCALING)
    for number, row in enumerate(rows):
        end = LENGTHS[row] + 1
        q, k, v = queries[row][:, :, end - 1 : end], keys[row][:, :, :end], values[row][:, :, :end]
        exact = dense.attend(q, k, v, torch.tensor([end - 1]), attention, rotate, SCALING)
        torch.testing.assert_close(got[number : number + 1], exact, atol=1e-12, rtol=0)


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.bfloat16, 0.06)])
@pytest.mark.parametrize("name", ["near_far leaky", "banded sinks", "chunks paper"])
def test_lower_precision_stays_near(name: str, dtype: torch.dtype, error: float) -> None:
    low, high = drawn(dtype), drawn(dtype)
    exact = steps(ATTENTIONS[name], *([each.double() for each in part] for part in high))
    for got, expected in zip(steps(ATTENTIONS[name], *low), exact, strict=True):
        assert got.dtype == dtype
        torch.testing.assert_close(got.double(), expected, atol=error, rtol=error)


@pytest.mark.parametrize("asked", [1, 3])
def test_keys_that_are_not_seen_weigh_nothing_on_either_path(asked: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)
    q, k, v = (
        torch.randn(3, heads, size, 8, generator=generator, dtype=torch.float64)
        for heads, size in ((4, asked), (2, 11), (2, 11))
    )
    seen = torch.arange(11) >= torch.tensor([0, 4, 11])[:, None]
    for device in ("cpu", "cuda"):  # what runs on a GPU has no kernel of its own: it is computed here
        monkeypatch.setattr(flash, "_device", lambda x: device)  # noqa: B023
        part = flash.attend_to_all(q, k, v, 0.3, seen)
        for row, first in ((0, 0), (1, 4)):
            alone = flash.attend_to_all(q[row : row + 1], k[row : row + 1, :, first:], v[row : row + 1, :, first:], 0.3)
            torch.testing.assert_close(part.out[row : row + 1], alone.out)
            torch.testing.assert_close(part.lse[row : row + 1], alone.lse)
        other = flash.attend_to_all(q[2:], k[2:], v[2:], 0.3)
        merged = flash.PartialAttention(other.out.clone(), other.lse.clone())
        merged.add(slice(None), flash.PartialAttention(part.out[2:], part.lse[2:]))
        torch.testing.assert_close(merged.out, other.out, rtol=0, atol=0)


def test_a_view_rotates_new_keys_only_and_forgets_what_is_cut() -> None:
    layer, asked = KeptLayer(room=1), list[tuple[int, int]]()

    def line(positions: object) -> object:
        raise AssertionError("the cache only tells views apart by it")

    def turn(keys: Tensor, first: int) -> Tensor:
        asked.append((first, keys.shape[2]))
        return -keys

    def grow(count: int) -> None:
        layer.update(*(torch.full((1, 1, count, 2), float(len(asked))) for _ in range(2)))

    call: Callable[..., Tensor] = layer.view
    for count in (5, 1, 1, 3):
        grow(count)
        torch.testing.assert_close(call(line, turn), -layer.keys)
    layer.crop(-4)
    grow(2)
    torch.testing.assert_close(call(line, turn), -layer.keys)
    assert asked == [(0, 5), (5, 1), (6, 1), (7, 3), (6, 2)]
    assert layer.view(None, turn) is layer.keys
