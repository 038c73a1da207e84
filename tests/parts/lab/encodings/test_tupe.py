"""TUPE's untied positions, pair by pair."""

import pytest
import torch

from lexbench.core.attention import Attention
from lexbench.parts.lab.encodings.base import Encoding
from lexbench.parts.lab.encodings.rope import Rope
from lexbench.parts.lab.encodings.t5 import T5
from lexbench.parts.lab.encodings.tupe import Tupe
from lexbench.parts.lab.native.attend import EncodingAttention
from tests.parts.lab.encodings.layouts import LAYOUTS, doubled, drawn_twice_alike

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("inner", [Encoding(), T5(4, 12, 8, 16)], ids=["A", "R"])
def test_logits_are_those_of_equations_10_and_11(inner: Encoding) -> None:
    encoding = Tupe(inner, 8, 4, 12, 50)
    doubled(encoding)
    encoding.to_keys.data *= 20
    encoding.to_queries.data *= 20
    p, generator = encoding.table.detach(), torch.Generator().manual_seed(0)
    for name in ("all", "last three", "one", "the first", "each text its own"):
        here, there = LAYOUTS[name]
        texts, total, asked = len(there) if there.dim() == 2 else 1, there.shape[-1], here.shape[-1]
        q, k = (torch.randn(texts, heads, total, 8, generator=generator, dtype=torch.float64) for heads in (4, 2))
        q = q[:, :, total - asked :]
        got = EncodingAttention(encoding, Attention(), q, k, there).logits(0, asked).detach()
        bias = inner.bias(here, there)
        more = torch.zeros(1, 4, asked, total) if bias is None else bias.detach().reshape(-1, 4, asked, total)
        for text in range(texts):
            where = there.reshape(-1, total)[text].long().tolist()
            for row in range(asked):
                i = total - asked + row
                for j in range(i + 1):
                    for head in range(4):
                        words = q[text, head, row] @ k[text, head // 2, j] / 16**0.5
                        own = (p[where[i]] @ encoding.to_queries[head]) @ (p[where[j]] @ encoding.to_keys[head])
                        expected = (words + own / 16**0.5).detach()
                        torch.testing.assert_close(
                            got[text, head, row, j], expected + more[text % len(more), head, row, j]
                        )


def test_longer_texts_than_the_table_and_rotations_are_refused() -> None:
    encoding = Tupe(Encoding(), 8, 4, 12, 8)
    assert encoding.longest == 8
    everyone = torch.arange(9, dtype=torch.float64)
    with pytest.raises(ValueError, match="tupe has positions for 8 tokens, asked for 9: raise size"):
        encoding.bias(everyone, everyone)
    with pytest.raises(ValueError, match="tupe cannot wrap rope, which has its own rotate"):
        Tupe(Rope(8), 8, 4, 12, 8)
    with pytest.raises(ValueError, match="a row for each of 8 trained tokens, got size 7"):
        Tupe(Encoding(), 8, 4, 12, 8, size=7)


def test_one_seed_draws_the_same() -> None:
    drawn_twice_alike(Tupe(Encoding(), 8, 4, 12, 8), Tupe(Encoding(), 8, 4, 12, 8))
