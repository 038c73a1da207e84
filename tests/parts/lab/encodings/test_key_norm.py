"""Key normalization, one pair of tokens at a time."""

import numpy as np
import pytest
import torch

from lexbench import Attention
from lexbench.parts.lab.encodings.alibi import Alibi
from lexbench.parts.lab.encodings.base import Encoding
from lexbench.parts.lab.encodings.key_norm import KeyNorm
from lexbench.parts.lab.encodings.rope import Rope
from lexbench.parts.lab.native.attend import EncodingAttention


def drawn(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(1, heads, 7, 8, generator=generator, dtype=torch.float64) for heads in (4, 2))
    return q * 3, k * 5


@pytest.mark.parametrize("inner", [Rope(8, 100.0), Alibi(4), Encoding()], ids=["rope", "alibi", "none"])
def test_logits_are_products_with_keys_of_length_1(inner: Encoding) -> None:
    (q, k), places = drawn(), torch.arange(7)
    got = EncodingAttention(KeyNorm(inner, 16), Attention(), q, k, places).logits(0, 7)[0]
    turned, known = inner.rotate(q, places)[0].numpy(), inner.rotate(k, places)[0].numpy()
    bias = inner.bias(places, places)
    for head in range(4):
        for i in range(7):
            for j in range(i + 1):
                key = known[head // 2, j]  # normalized after rotation: the same
                expected = turned[head, i] @ key / np.sqrt((key**2).sum())
                expected += 0 if bias is None else float(bias[head, i, j])
                assert float(got[head, i, j]) == pytest.approx(expected, rel=1e-12)


def test_the_length_of_keys_has_no_part_and_that_of_queries_has() -> None:
    (q, k), places = drawn(), torch.arange(7)
    encoding = KeyNorm(Rope(8), 16)
    plain = EncodingAttention(encoding, Attention(), q, k, places).logits(0, 7)
    longer = k * torch.arange(1.0, 8)[:, None]
    torch.testing.assert_close(EncodingAttention(encoding, Attention(), q, longer, places).logits(0, 7), plain)
    torch.testing.assert_close(EncodingAttention(encoding, Attention(), 2 * q, k, places).logits(0, 7), 2 * plain)


def test_log_n_scales_queries_also_inside_the_trained_length() -> None:
    (q, k), places = drawn(), torch.arange(7)
    encoding = KeyNorm(Rope(8), 4, log_n=True)
    got = EncodingAttention(encoding, encoding.attention, q, k, places).logits(0, 7)
    plain = EncodingAttention(KeyNorm(Rope(8), 4), Attention(), q, k, places).logits(0, 7)
    factors = torch.tensor([0, 0.5, 0.7924812504, 1, 1.1609640474, 1.2924812504, 1.4036774610], dtype=torch.float64)
    seen = torch.ones(7, 7, dtype=torch.bool).tril()
    torch.testing.assert_close(got[..., seen], (plain * factors[:, None])[..., seen])


def test_it_is_what_it_is_over() -> None:
    encoding = KeyNorm(rope := Rope(8, 500.0), 16)
    assert encoding.facts == rope.facts and encoding.remaps
    slow = Attention(inv_freq=np.zeros(4))
    vectors, places = drawn()[0], torch.arange(7)
    assert torch.equal(encoding.rotation(slow)(vectors, places), vectors)


def test_vectors_keep_their_dtype() -> None:
    q, k = (x.bfloat16() for x in drawn())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert {x.dtype for x in KeyNorm(Rope(8), 16).prepare(q, k)} == {torch.bfloat16}
