"""Huang's method 4 by loops over pairs."""

import pytest
import torch

from lexbench.core.attention import Attention
from lexbench.parts.lab.encodings.huang import Huang
from lexbench.parts.lab.encodings.shaw import Shaw
from lexbench.parts.lab.native.attend import EncodingAttention
from tests.parts.lab.encodings.layouts import LAYOUTS, doubled, drawn_twice_alike

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("size", [1, 5, None])
def test_logits_are_those_of_the_formula_wherever_tokens_stand(size: int | None) -> None:
    encoding = Huang(8, 8, size)
    doubled(encoding)
    encoding.vectors.data *= 50
    a, last = encoding.vectors.detach(), 7 if size is None else size
    generator = torch.Generator().manual_seed(0)
    for here, there in LAYOUTS.values():
        texts, total, asked = len(there) if there.dim() == 2 else 1, there.shape[-1], here.shape[-1]
        q, k = (torch.randn(texts, heads, total, 8, generator=generator, dtype=torch.float64) for heads in (4, 2))
        q = q[:, :, total - asked :]
        got = EncodingAttention(encoding, Attention(), q, k, there).logits(0, asked).detach()
        for text in range(texts):
            where = there.reshape(-1, total)[text].tolist()
            for row in range(asked):
                i = total - asked + row
                for j in range(i + 1):
                    near, known = a[min(int(where[i] - where[j]), last)], k[text, :, j].repeat_interleave(2, 0)
                    # (q + a) . (k + a) - a . a, as the paper writes it.
                    whole = ((q[text, :, row] + near) * (known + near)).sum(-1) - near @ near
                    torch.testing.assert_close(got[text, :, row, j], whole / 8**0.5)


def test_without_the_term_of_the_key_it_is_shaw() -> None:
    encoding, shaw = Huang(8, 8, 3), Shaw(8, 3, values=False)
    shaw.vectors.data = encoding.vectors.data = torch.randn(4, 8, generator=torch.Generator().manual_seed(2))
    q, zero = torch.randn(1, 4, 9, 8, generator=torch.Generator().manual_seed(3)), torch.zeros(1, 2, 9, 8)
    ours, other = (
        EncodingAttention(each, Attention(), q, zero, torch.arange(9, dtype=torch.float64)).logits(0, 9)
        for each in (encoding, shaw)
    )
    torch.testing.assert_close(ours, other)


def test_each_layer_draws_its_own_and_a_size_below_1_is_an_error() -> None:
    assert not Huang.shared
    drawn_twice_alike(Huang(8, 8), Huang(8, 8))
    with pytest.raises(ValueError, match="size of at least 1 token, got 0"):
        Huang(8, 8, 0)
