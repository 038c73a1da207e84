"""CosA: cosines times 4 ln n."""

import numpy as np
import pytest
import torch
from torch import Tensor

from lexbench import Attention
from lexbench.core.attention import LogScale
from lexbench.parts.lab.encodings.cosine import Cosine
from lexbench.parts.lab.encodings.rope import Rope
from lexbench.parts.lab.native.attend import EncodingAttention, merge_slots


def drawn() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, heads, 7, 8, generator=generator, dtype=torch.float64) for heads in (4, 2))
    return q * 3, k * 5


@pytest.mark.parametrize(
    ("keys", "factors"),
    [
        (None, [22.180710] * 7),  # 4 ln 256, half of 512
        (100, [18.420681] * 7),
        ("position", [0, 2.7725887, 4.3944492, 5.5451774, 6.4377516, 7.1670379, 7.7836406]),  # 4 ln 1, 4 ln 2, ..
    ],
)
def test_logits_are_cosines_times_their_factor(keys: int | str | None, factors: list[float]) -> None:
    (q, k), places, rope = drawn(), torch.arange(7), Rope(8, 100.0)
    encoding = Cosine(rope, 512, keys)
    layer = EncodingAttention(encoding, encoding.attention, q, k, places)
    turned, known = rope.rotate(q, places)[0].numpy(), rope.rotate(k, places)[0].numpy()
    got = layer.logits(0, 7)[0]
    for head in range(4):
        for i, factor in enumerate(factors):
            for j in range(i + 1):
                query, key = turned[head, i], known[head // 2, j]
                cosine = query @ key / np.sqrt((query**2).sum() * (key**2).sum())
                assert float(got[head, i, j]) == pytest.approx(factor * cosine, rel=1e-6, abs=1e-9)


def test_later_queries_know_their_places_under_a_cache() -> None:
    (q, k), places = drawn(), torch.arange(7)
    encoding = Cosine(Rope(8), 512, "position")
    whole = EncodingAttention(encoding, encoding.attention, q, k, places).attention_output(k)
    last = EncodingAttention(encoding, encoding.attention, q[:, :, 4:], k, places).attention_output(k)
    torch.testing.assert_close(last, whole[:, :, 4:])


def test_by_position_no_method_scales_queries_too() -> None:
    method = Attention(query_scale=LogScale(512))
    assert merge_slots(method, Cosine(Rope(8), 512).attention, "cosine").query_scale == LogScale(512)
    with pytest.raises(ValueError, match=r"cosine and the method exclude each other \(both set query_scale\)"):
        merge_slots(method, Cosine(Rope(8), 512, "position").attention, "cosine")


def test_vectors_keep_their_dtype() -> None:
    q, k = (x.bfloat16() for x in drawn())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert {x.dtype for x in Cosine(Rope(8), 64).prepare(q, k)} == {torch.bfloat16}


@pytest.mark.parametrize("keys", [1, 0, -3, float("inf"), "length"])
def test_bad_counts_are_errors(keys: float | str) -> None:
    with pytest.raises(ValueError, match="cosine's keys must be a finite number above 1 or position, got"):
        Cosine(Rope(8), 512, keys)
    with pytest.raises(ValueError, match=r"got 1\.0"):
        Cosine(Rope(8), 2)
