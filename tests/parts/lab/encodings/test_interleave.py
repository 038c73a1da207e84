"""Which layers have positions, and what methods change there."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from lexbench import Attention
from lexbench.core.attention import PositionMap, Remap
from lexbench.parts.lab.encodings.alibi import Alibi
from lexbench.parts.lab.encodings.base import Encoding
from lexbench.parts.lab.encodings.bipe import Bipe
from lexbench.parts.lab.encodings.coca import Coca
from lexbench.parts.lab.encodings.hwfa import Hwfa
from lexbench.parts.lab.encodings.interleave import Interleave
from lexbench.parts.lab.encodings.irope import Irope
from lexbench.parts.lab.encodings.key_norm import KeyNorm
from lexbench.parts.lab.encodings.learned import Learned
from lexbench.parts.lab.encodings.rope import Rope
from lexbench.parts.lab.encodings.wrappers import UnrotatedLayer
from lexbench.parts.lab.encodings.xpos import Xpos
from lexbench.parts.lab.native.attend import EncodingAttention


def drawn() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, heads, 7, 8, generator=generator, dtype=torch.float64) for heads in (4, 2))
    return q, k


def logits(encoding: Encoding, attention: Attention | None = None) -> Tensor:
    rotate = None if attention is None else encoding.rotation(attention)
    shape = Attention() if attention is None else Attention(remap=attention.remap)
    return EncodingAttention(encoding, shape, *drawn(), torch.arange(7), rotate).logits(0, 7)


@pytest.mark.slow
@pytest.mark.parametrize("every", [2, 3, 4, 5, 40])
def test_layers_are_counted_as_in_transformers(every: int) -> None:
    from transformers import SmolLM3Config
    from transformers.models.llama4.configuration_llama4 import Llama4TextConfig

    ours = [int(not isinstance(Interleave(Rope(8), every).at(layer), UnrotatedLayer)) for layer in range(12)]
    assert ours == SmolLM3Config(num_hidden_layers=12, no_rope_layer_interval=every).no_rope_layers
    assert ours == Llama4TextConfig(num_hidden_layers=12, no_rope_layer_interval=every).no_rope_layers


def test_by_default_the_fourth_layer_has_none() -> None:
    assert [isinstance(Interleave(Rope(8)).at(layer), UnrotatedLayer) for layer in range(8)] == [False] * 3 + [True] + [
        False
    ] * 3 + [True]


@pytest.mark.parametrize("inner", [Rope(8), Alibi(4)], ids=["rope", "alibi"])
def test_layers_without_positions_multiply_queries_and_keys(inner: Encoding) -> None:
    encoding = Interleave(inner, every=2)
    q, k = drawn()
    expected = np.einsum("hid,hjd->hij", q[0].numpy(), k[0].numpy().repeat(2, axis=0)) / 8**0.5
    got = logits(encoding.at(1))[0].numpy()
    seen = np.tril(np.ones((7, 7), dtype=bool))
    np.testing.assert_allclose(got[:, seen], expected[:, seen])
    torch.testing.assert_close(logits(encoding.at(0)), logits(inner))


def test_what_knows_no_positions_stays() -> None:
    inner = KeyNorm(Rope(8), 16)
    q, k = drawn()
    unit = k[0] / k[0].norm(dim=-1, keepdim=True)
    expected = (q[0] @ unit.repeat_interleave(2, dim=0).mT).tril()
    got = logits(Interleave(inner, every=2).at(1))[0].nan_to_num(neginf=0.0)
    torch.testing.assert_close(got, expected)
    counting = ((k[0, :, :, :4] + k[0, :, :, 4:]) / 2).relu().repeat(1, 1, 2).repeat_interleave(2, dim=0)
    got = logits(Interleave(Coca(8), every=2).at(1))[0].nan_to_num(neginf=0.0)
    torch.testing.assert_close(got, (q[0] ** 2 @ counting.mT).tril() / 8**0.5)  # CoCA's own, at angle 0


def test_encodings_that_act_elsewhere_are_refused() -> None:
    with pytest.raises(ValueError, match="interleave cannot wrap xpos, which has its own decay"):
        Interleave(Xpos(8, 16))
    with pytest.raises(ValueError, match="interleave cannot wrap learned, which has its own embed"):
        Interleave(Learned(width=32, trained_length=8))


class Entering(Encoding):
    """Positions added to the input of every layer."""

    def layer_input(self, stream: Tensor, positions: Tensor) -> Tensor:
        return stream + positions[:, None].to(stream.dtype)


@pytest.mark.parametrize(
    "wrap",
    [
        Interleave,
        lambda inner: Irope(inner, layers=4, trained_length=16),
        lambda inner: Hwfa(inner, layers=4, trained_length=16),
        lambda inner: Bipe(inner, width=32, separators=[3]),
    ],
    ids=["interleave", "irope", "hwfa", "bipe"],
)
def test_positions_in_the_input_of_all_layers_are_refused(wrap: Callable[[Encoding], Encoding]) -> None:
    with pytest.raises(ValueError, match="which has its own layer_input: use another inner encoding"):
        wrap(Entering())


def test_methods_change_angles_and_distances_where_there_are_some() -> None:
    encoding = Interleave(Rope(8), every=2)
    assert encoding.remaps and encoding.facts == Rope(8).facts
    slow = Attention(inv_freq=np.array([0.5, 0.1, 0, 0]), scale=1.5)
    far = Attention(remap=Remap(window=2, query=PositionMap(offset=5.0), key=PositionMap()))
    for method in (slow, far):
        torch.testing.assert_close(logits(encoding.at(0), method), logits(Rope(8), method))
        torch.testing.assert_close(logits(encoding.at(1), method), logits(Encoding()))
    assert (logits(Rope(8), slow) - logits(Rope(8))).nan_to_num().abs().max() > 0.1


def test_all_layers_or_more_are_errors() -> None:
    with pytest.raises(ValueError, match="interleave's every must be at least 2, got 1: SmolLM3 has 4"):
        Interleave(Rope(8), every=1)
