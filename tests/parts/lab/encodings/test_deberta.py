"""DeBERTa's three products, by the formula and by transformers' own layer."""

import pytest
import torch
from torch import nn
from transformers import DebertaConfig
from transformers.models.deberta.modeling_deberta import DisentangledSelfAttention, build_relative_position

from lexbench.core.attention import Attention
from lexbench.parts.lab.encodings.deberta import Deberta
from lexbench.parts.lab.native.attend import EncodingAttention
from tests.parts.lab.encodings.layouts import LAYOUTS, doubled, drawn_twice_alike

pytestmark = pytest.mark.usefixtures("one_thread")


def test_logits_are_those_of_the_formula_wherever_tokens_stand() -> None:
    encoding = Deberta(8, 4, 2, 12, layers=3, trained_length=4)
    doubled(encoding)
    encoding.to_keys.data *= 20
    encoding.to_queries.data *= 20
    table, generator = encoding.table.detach(), torch.Generator().manual_seed(0)
    for layer, (here, there) in zip([0, 1, 2] * 3, LAYOUTS.values(), strict=False):
        texts, total, asked = len(there) if there.dim() == 2 else 1, there.shape[-1], here.shape[-1]
        q, k = (torch.randn(texts, heads, total, 8, generator=generator, dtype=torch.float64) for heads in (4, 2))
        q = q[:, :, total - asked :]
        got = EncodingAttention(encoding.at(layer), Attention(), q, k, there).logits(0, asked).detach()
        to_keys, to_queries = encoding.to_keys[layer].detach(), encoding.to_queries[layer].detach()
        for text in range(texts):
            where = there.reshape(-1, total)[text].tolist()
            for row in range(asked):
                i = total - asked + row
                for j in range(i + 1):
                    n = int(where[i] - where[j])
                    ahead = 7 if n >= 4 else n + 4  # delta(i, j) of the paper's eq. 3
                    behind = 0 if -n <= -4 else -n + 4  # delta(j, i)
                    for head in range(4):
                        asking, known = q[text, head, row], k[text, head // 2, j]
                        expected = asking @ known + asking @ (table[ahead] @ to_keys[head // 2])
                        expected = (expected + known @ (table[behind] @ to_queries[head])) / 24**0.5
                        torch.testing.assert_close(got[text, head, row, j], expected)


@pytest.mark.parametrize("term", ["c2p", "p2c"])
def test_each_term_is_that_of_transformers(term: str) -> None:
    config = DebertaConfig(
        hidden_size=32, num_attention_heads=4, relative_attention=True, max_relative_positions=11, pos_att_type=[term]
    )
    torch.manual_seed(0)
    theirs, ours = DisentangledSelfAttention(config).eval().double(), Deberta(8, 4, 4, 32, 1, 11)
    doubled(ours)
    q, k = (torch.randn(2, 4, 11, 8, dtype=torch.float64) for _ in range(2))
    table = ours.table.detach()
    silent = ours.to_queries if term == "c2p" else ours.to_keys
    silent.data.zero_()
    if term == "c2p":
        ours.to_keys = nn.Parameter(theirs.pos_proj.weight.detach().reshape(1, 4, 8, 32).mT.contiguous())
    else:
        theirs.pos_q_proj.bias.data.zero_()
        ours.to_queries = nn.Parameter(theirs.pos_q_proj.weight.detach().reshape(1, 4, 8, 32).mT.contiguous())
        table = table[(22 - torch.arange(22)) % 22]  # theirs has delta(i, j) in this term: k - n is their k + n
    bias = theirs.disentangled_att_bias(q / 16**0.5, k, build_relative_position(q, k), table, 2).detach()
    plain = q @ k.mT / 16**0.5
    got = EncodingAttention(ours.at(0), Attention(), q, k, torch.arange(11, dtype=torch.float64)).logits(0, 11).detach()
    seen = torch.ones(11, 11, dtype=torch.bool).tril()
    torch.testing.assert_close(got[..., seen] * 1.5**0.5, (plain + bias)[..., seen], atol=1e-6, rtol=1e-6)


def test_layers_share_the_table_and_a_size_below_1_is_an_error() -> None:
    encoding = Deberta(8, 4, 2, 12, 2, 4)
    assert encoding.at(1).table is encoding.table
    drawn_twice_alike(encoding, Deberta(8, 4, 2, 12, 2, 4))
    with pytest.raises(ValueError, match="size of at least 1 token, got 0"):
        Deberta(8, 4, 2, 12, 2, 4, size=0)
