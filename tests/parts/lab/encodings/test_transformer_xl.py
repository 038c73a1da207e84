"""Transformer-XL's four terms, by the formula and by XLNet's attention."""

import math

import pytest
import torch
from torch import nn
from transformers import XLNetConfig
from transformers.models.xlnet.modeling_xlnet import XLNetModel, XLNetRelativeAttention

from lexbench.core.attention import Attention
from lexbench.parts.lab.encodings.transformer_xl import TransformerXl
from lexbench.parts.lab.native.attend import EncodingAttention
from tests.parts.lab.encodings.layouts import LAYOUTS, doubled, drawn_twice_alike

pytestmark = pytest.mark.usefixtures("one_thread")


def test_logits_are_those_of_the_formula_wherever_tokens_stand() -> None:
    encoding = TransformerXl(8, 4, 12)
    doubled(encoding)
    for weight in encoding.parameters():
        weight.data *= 20
    own = {name: weight.detach() for name, weight in encoding.named_parameters()}
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
                    n = where[i] - where[j]
                    angles = [n * 10000 ** (-2 * p / 12) for p in range(6)]
                    wave = torch.tensor([*map(math.sin, angles), *map(math.cos, angles)], dtype=torch.float64)
                    second = (own["projection"] @ wave).reshape(4, 8)
                    one = (q[text, :, row] + own["content"]) * k[text, :, j].repeat_interleave(2, 0)
                    two = (q[text, :, row] + own["place"]) * second
                    expected = (one + two).sum(-1) / 8**0.5
                    torch.testing.assert_close(got[text, :, row, j], expected)


def test_outputs_are_those_of_xlnets_attention() -> None:
    config = XLNetConfig(vocab_size=9, d_model=32, n_layer=1, n_head=4, d_inner=8, dropout=0.0)
    torch.manual_seed(0)
    model, theirs = XLNetModel(config).double(), XLNetRelativeAttention(config).double()
    for weight in theirs.parameters():
        nn.init.normal_(weight, std=0.5)
    encoding = TransformerXl(8, 4, 32)
    encoding.projection = nn.Parameter(theirs.r.detach().reshape(32, 32).T.contiguous())
    encoding.content, encoding.place = theirs.r_w_bias, theirs.r_r_bias
    q, k, v = (torch.randn(2, 4, 11, 8, dtype=torch.float64) for _ in range(3))
    known = torch.einsum("ibh,hnd->ibnd", model.relative_positional_encoding(11, 11, bsz=2).double(), theirs.r)
    hidden = (torch.arange(11)[:, None] < torch.arange(11)).double()[:, :, None, None].expand(-1, -1, 2, 4)
    expected = theirs.rel_attn_core(*(each.permute(2, 0, 1, 3) for each in (q, k, v)), known, attn_mask=hidden)
    layer = EncodingAttention(encoding, Attention(), q, k, torch.arange(11, dtype=torch.float64))
    got = layer.attention_output(v).permute(2, 0, 1, 3)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)  # their sinusoids are of float32


def test_each_layer_draws_its_own_weights() -> None:
    assert not TransformerXl.shared
    drawn_twice_alike(TransformerXl(8, 4, 32), TransformerXl(8, 4, 32))
