"""PoPE by complex numbers, pair by pair."""

import cmath
import math

import pytest
import torch
from torch.nn import functional as F

from lexbench.core.attention import Attention
from lexbench.parts.lab.encodings.pope import Pope
from lexbench.parts.lab.native.attend import EncodingAttention
from tests.parts.lab.encodings.layouts import LAYOUTS

pytestmark = pytest.mark.usefixtures("one_thread")


def test_logits_are_real_parts_of_products_of_polar_numbers() -> None:
    encoding = Pope(8, 2).double()
    generator = torch.Generator().manual_seed(0)
    encoding.phase.data = -2 * math.pi * torch.rand(2, 8, generator=generator, dtype=torch.float64)
    for here, there in LAYOUTS.values():
        texts, total, asked = len(there) if there.dim() == 2 else 1, there.shape[-1], here.shape[-1]
        q, k = (torch.randn(texts, heads, total, 8, generator=generator, dtype=torch.float64) for heads in (4, 2))
        q = q[:, :, total - asked :]
        got = EncodingAttention(encoding, Attention(), q, k, there).logits(0, asked).detach()
        text, where = texts - 1, there.reshape(-1, total)[-1].tolist()
        for row in range(asked):
            i = total - asked + row
            for j in range(i + 1):
                for head in range(4):
                    expected = 0.0
                    for c in range(8):
                        theta, delta = 10000 ** (-c / 8), float(encoding.phase.detach()[head // 2, c])
                        one = cmath.rect(math.log1p(math.exp(q[text, head, row, c])), where[i] * theta)
                        two = cmath.rect(math.log1p(math.exp(k[text, head // 2, j, c])), where[j] * theta + delta)
                        expected += (one * two.conjugate()).real
                    assert float(got[text, head, row, j]) == pytest.approx(expected / 8**0.5, abs=1e-10)


def test_the_fused_kernel_gives_the_same_outputs_and_phases_stay_in_range() -> None:
    encoding = Pope(8, 2)
    encoding.phase.data.uniform_(-9, 3, generator=torch.Generator().manual_seed(1))
    encoding.constrain()
    assert float(encoding.phase.detach().min()) == pytest.approx(-2 * math.pi)
    assert float(encoding.phase.detach().max()) == 0
    q, k, v = (torch.randn(1, heads, 9, 8, generator=torch.Generator().manual_seed(2)) for heads in (4, 2, 2))
    layer = EncodingAttention(encoding, Attention(), q, k, torch.arange(9, dtype=torch.float64))
    torch.testing.assert_close(layer.attention_output(v), layer.attention_output(v, chunk=4))
    assert F.softplus(q).min() > 0
