"""Shaw's relative vectors by loops over pairs."""

import numpy as np
import pytest
import torch
from torch import Tensor

from lexbench.core.attention import Attention, LogScale
from lexbench.parts.lab.encodings.shaw import Shaw
from lexbench.parts.lab.native.attend import EncodingAttention
from tests.parts.lab.encodings.layouts import LAYOUTS, doubled, drawn_twice_alike

pytestmark = pytest.mark.usefixtures("one_thread")


def vectors(tokens: int, batch: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(batch, heads, tokens, 8, generator=generator, dtype=torch.float64) for heads in (4, 2))
    return q, k


def made(size: int) -> Shaw:
    encoding = Shaw(8, size)
    doubled(encoding)
    encoding.vectors.data *= 50
    return encoding


@pytest.mark.parametrize("size", [1, 3, 16])
def test_logits_are_those_of_the_formula_wherever_tokens_stand(size: int) -> None:
    encoding = made(size)
    a = encoding.vectors.detach().numpy()
    for name, (here, there) in LAYOUTS.items():
        batch, total, asked = len(there) if there.dim() == 2 else 1, there.shape[-1], here.shape[-1]
        q, k = vectors(total, batch)
        last = q[:, :, total - asked :]
        logits = EncodingAttention(encoding, Attention(), last, k, there).logits(0, asked).detach()
        for text in range(batch):
            where = there.reshape(-1, total)[text].tolist()
            for head in range(4):
                for row in range(asked):
                    i = total - asked + row
                    for j in range(i + 1):
                        near = a[min(int(where[i] - where[j]), size)]
                        expected = last[text, head, row].numpy() @ (k[text, head // 2, j].numpy() + near) / np.sqrt(8)
                        assert float(logits[text, head, row, j]) == pytest.approx(expected, abs=1e-10), name


def test_outputs_are_means_of_values_with_the_vector_of_their_distance() -> None:
    encoding = made(3)
    assert encoding.value_vectors is not None
    encoding.value_vectors.data *= 50
    (q, k), b = vectors(9, 2), encoding.value_vectors.detach()
    v = torch.randn(2, 2, 9, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    layer = EncodingAttention(encoding, Attention(), q, k, torch.arange(9, dtype=torch.float64))
    weights = layer.logits(0, 9).softmax(-1).detach()
    expected = torch.zeros(2, 4, 9, 8, dtype=torch.float64)
    for i in range(9):
        for j in range(i + 1):
            expected[:, :, i] += weights[:, :, i, j, None] * (v[:, :, j].repeat_interleave(2, 1) + b[min(i - j, 3)])
    torch.testing.assert_close(layer.attention_output(v).detach(), expected)
    torch.testing.assert_close(layer.attention_output(v, chunk=4).detach(), expected)
    assert Shaw(8, 3, values=False).value_vectors is None


def test_vectors_are_those_of_the_papers_clipped_index_at_or_before_the_query() -> None:
    papers = [[3, 4, 5, 6, 6, 6], [2, 3, 4, 5, 6, 6], [1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 5], [0, 0, 1, 2, 3, 4]]
    papers.append([0, 0, 0, 1, 2, 3])
    everyone = torch.arange(6, dtype=torch.float64)
    ours = Shaw(8, 3).vector_indices(everyone, everyone)[0]
    assert torch.equal(ours, (3 - torch.tensor(papers)).clamp_min(0))  # clip(j - i, -3, 3) + 3; later keys are unseen


def test_the_whole_of_a_logit_follows_the_scale_of_its_query() -> None:
    encoding = made(4)
    q, k = vectors(20)
    everyone = torch.arange(20, dtype=torch.float64)
    plain, grown = (
        EncodingAttention(encoding, attention, q, k, everyone).logits(0, 20).detach()
        for attention in (Attention(), Attention(query_scale=LogScale(4)))
    )
    scale = torch.from_numpy(np.maximum(np.log(np.arange(20) + 1) / np.log(4), 1.0))
    torch.testing.assert_close(grown, plain * scale[:, None], atol=1e-10, rtol=1e-10)


def test_vectors_begin_small_and_each_layer_has_its_own() -> None:
    wide = Shaw(500, 100)
    wide.initialise(torch.Generator().manual_seed(0))
    assert float(wide.vectors.detach().std()) == pytest.approx(0.02, rel=0.02)
    assert not Shaw.shared
    drawn_twice_alike(Shaw(8), Shaw(8))


def test_without_a_reach_it_is_an_error() -> None:
    with pytest.raises(ValueError, match="size of at least 1 token, got 0"):
        Shaw(8, 0)
