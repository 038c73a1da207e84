"""CoPE by loops over pairs, and against x-transformers."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from lexbench.core.attention import Attention, Window
from lexbench.parts.lab.encodings.cope import Cope
from lexbench.parts.lab.native.attend import EncodingAttention

pytestmark = pytest.mark.usefixtures("one_thread")


def made(size: int, head_dim: int = 8) -> Cope:
    encoding = Cope(head_dim, size)
    generator = torch.Generator().manual_seed(1)
    encoding.vectors.data = torch.randn(size, head_dim, generator=generator, dtype=torch.float64)
    return encoding


def vectors(tokens: int, batch: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(batch, heads, tokens, 8, generator=generator, dtype=torch.float64) for heads in (4, 2, 2))
    return q, k, v


@pytest.mark.parametrize("size", [2, 4, 64])
def test_logits_are_those_of_the_formula(size: int) -> None:
    encoding, total = made(size), 12
    e = encoding.vectors.detach().numpy()
    q, k, _ = vectors(total)
    logits = (
        EncodingAttention(encoding, Attention(), q, k, torch.arange(total, dtype=torch.float64))
        .logits(0, total)
        .detach()
    )
    for head in range(4):
        asking, known = q[0, head].numpy(), k[0, head // 2].numpy()
        for i in range(total):
            position = 0.0
            for j in range(i, -1, -1):
                score = asking[i] @ known[j] / math.sqrt(8)
                position += 1 / (1 + math.exp(-score))
                capped = min(position, size - 1.0)
                below, above = math.floor(capped), math.ceil(capped)
                part = capped - below
                added = (1 - part) * (asking[i] @ e[below]) + part * (asking[i] @ e[above])
                assert float(logits[0, head, i, j]) == pytest.approx(score + added, abs=1e-10)
    assert bool(logits[0, :, 0, 1:].eq(-torch.inf).all())


def test_positions_and_additions_are_those_that_released_code_gave() -> None:
    q = [[0.126, -0.132, 0.64], [0.105, -0.536, 0.362], [1.304, 0.947, -0.704], [-1.265, -0.623, 0.041]]
    e = [[-2.325, -0.219, -1.246], [-0.732, -0.544, -0.316], [0.412, 1.043, -0.129]]
    scores = [[1.366, 0, 0, 0], [0.094, -0.743, 0, 0], [0.22, -1.01, -0.209, 0], [0.541, 0.215, 0.355, -0.654]]
    positions = [
        [0.7967331246, 0, 0, 0],
        [0.8458311864, 0.322348475, 0, 0],
        [1.269698453, 0.714919218, 0.4479393672, 0],
        [2.0, 1.483462155, 0.9299182519, 0.3420887134],
    ]
    added = [
        [-0.3931679139, 0, 0, 0],
        [-0.00421372669, -0.3592004404, 0, 0],
        [-0.4750807439, -1.565033499, -1.862656496, 0],
        [-1.176258, 0.07799609586, 1.376298865, 2.419425894],
    ]
    encoding = made(3, 3)
    encoding.vectors.data = torch.tensor(e, dtype=torch.float64)
    seen, everyone = torch.ones(4, 4, dtype=torch.bool).tril(), torch.arange(4, dtype=torch.float64)
    given = torch.tensor(scores, dtype=torch.float64)[None, None]
    got = encoding.rescore(given, seen, torch.tensor(q, dtype=torch.float64)[None, None], everyone, everyone)
    np.testing.assert_allclose(encoding.gate_distances(given, seen)[0, 0].tril(), positions, rtol=1e-8)
    np.testing.assert_allclose((got - given)[0, 0].detach().tril(), added, rtol=1e-7)


@pytest.mark.parametrize("size", [4, 64])
def test_additions_are_those_of_x_transformers(size: int) -> None:
    theirs = pytest.importorskip("x_transformers.x_transformers").CoPE(8, 4, size).double()
    encoding, total = made(size), 30
    theirs.pos_emb.data = encoding.vectors.data
    q, k, _ = vectors(total, batch=2)
    everyone, seen = torch.arange(total, dtype=torch.float64), torch.ones(total, total, dtype=torch.bool).tril()
    scores = q @ k.repeat_interleave(2, dim=1).mT / 8**0.5
    expected = scores + theirs(q, scores.masked_fill(~seen, -torch.finfo(torch.float64).max))
    logits = EncodingAttention(encoding, Attention(), q, k, everyone).logits(0, total)
    torch.testing.assert_close(logits[..., seen], expected[..., seen], atol=1e-10, rtol=1e-10)


def test_positions_reach_their_cap_exactly_and_stay_there() -> None:
    encoding, total = made(4), 200
    q, k, _ = vectors(total)
    logits = EncodingAttention(encoding, Attention(), q, k, torch.arange(total, dtype=torch.float64)).logits(
        total - 1, total
    )
    score = q[0, 0, -1] @ k[0, 0].mT / 8**0.5
    far = score[:100] + q[0, 0, -1] @ encoding.vectors[3]
    torch.testing.assert_close(logits[0, 0, 0, :100], far, atol=1e-10, rtol=1e-10)


def test_it_begins_without_positions_and_learns_from_there() -> None:
    encoding, total = Cope(8), 10
    q, k, v = vectors(total)
    everyone = torch.arange(total, dtype=torch.float64)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    attended = EncodingAttention(encoding, Attention(), q, k, everyone).attention_output(v)
    torch.testing.assert_close(attended, expected, atol=1e-12, rtol=1e-12)
    attended.square().sum().backward()  # type: ignore[no-untyped-call]
    assert encoding.vectors.grad is not None and encoding.vectors.grad[:3].abs().min() > 0
    assert not Cope.shared


def test_only_what_is_seen_opens_a_gate() -> None:
    encoding, total = made(64), 10
    q, k, _ = vectors(total)
    everyone = torch.arange(total, dtype=torch.float64)
    windowed = EncodingAttention(encoding, Attention(mask=Window(3)), q, k, everyone).logits(0, total)
    alone = EncodingAttention(encoding, Attention(), q[:, :, 7:], k[:, :, 7:], everyone[7:]).logits(2, 3)
    torch.testing.assert_close(windowed[:, :, 9:, 7:], alone, atol=1e-12, rtol=1e-12)


def test_with_one_vector_it_is_an_error() -> None:
    with pytest.raises(ValueError, match="size of at least 2 vectors, got 1"):
        Cope(8, 1)
