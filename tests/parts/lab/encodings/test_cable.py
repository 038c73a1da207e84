"""CABLE's sums of slopes that tokens choose, by loops."""

import math

import numpy as np
import pytest
import torch

from lexbench.core.attention import Attention, Window
from lexbench.parts.lab.encodings.alibi import Alibi, head_slopes
from lexbench.parts.lab.encodings.cable import Cable
from lexbench.parts.lab.encodings.fox import Fox
from lexbench.parts.lab.encodings.nope import Nope
from lexbench.parts.lab.native import build
from lexbench.parts.lab.native.attend import EncodingAttention
from tests.parts.lab.encodings.layouts import gated_layer

pytestmark = pytest.mark.usefixtures("one_thread")


def made(form: str = "relu") -> Cable:
    return Cable(4, 12, form)


@pytest.mark.parametrize("form", ["weighted", "relu", "softplus"])
def test_outputs_are_those_of_loops_over_queries_and_keys(form: str) -> None:
    encoding = made(form)
    x, q, k, v = gated_layer(encoding)
    weights = {name: weight.detach().numpy() for name, weight in encoding.named_parameters()}

    def slope(z: float) -> float:
        return math.log1p(math.exp(z)) if form == "softplus" else max(0.0, z)

    logits, expected = np.full((2, 4, 9, 9), -np.inf), np.zeros((2, 4, 9, 8))
    for text in range(2):
        for head in range(4):
            at = [float(x[text, t].numpy() @ weights["slope"][head]) + weights["slope_bias"][head] for t in range(9)]
            for i in range(9):
                factor = 1.0
                if form == "weighted":  # eq. 6 of the paper: softplus of a second projection, of the query's token
                    own = float(x[text, i].numpy() @ weights["weight"][head]) + weights["weight_bias"][head]
                    factor = math.log1p(math.exp(own))
                for j in range(i + 1):
                    product = float(q[text, head, i] @ k[text, head // 2, j]) / math.sqrt(8)
                    logits[text, head, i, j] = product - factor * sum(map(slope, at[j + 1 : i + 1]))
                found = np.exp(logits[text, head, i, : i + 1])
                expected[text, head, i] = found / found.sum() @ v[text, head // 2, : i + 1].numpy()
    gates, places = encoding.gates(x), torch.arange(9)
    layer = EncodingAttention(encoding.with_gates(gates), Attention(), q, k, places)
    np.testing.assert_allclose(layer.logits(0, 9).detach(), logits, rtol=1e-9, atol=1e-12)
    for got in (layer.attention_output(v), layer.attention_output(v, chunk=4)):
        np.testing.assert_allclose(got.detach(), expected, rtol=1e-9)
    last = EncodingAttention(encoding.with_gates(gates), Attention(), q[:, :, 5:], k, places).attention_output(v)
    np.testing.assert_allclose(last.detach(), expected[:, :, 5:], rtol=1e-9)
    near = EncodingAttention(encoding.with_gates(gates), Attention(mask=Window(3)), q, k, places).logits(0, 9).detach()
    seen = np.tril(np.ones((9, 9), dtype=bool)) & ~np.tril(np.ones((9, 9), dtype=bool), -3)
    np.testing.assert_allclose(near[..., torch.from_numpy(seen)], logits[..., seen], rtol=1e-9, atol=1e-12)


def test_with_slopes_of_1_and_alibis_weights_it_is_alibi() -> None:
    # The paper's section 3: a bias of each token of -1 and a weight of 1/2^h make it ALiBi.
    encoding, places = Cable(4, 12), torch.arange(6, dtype=torch.float64)
    own = torch.tensor(head_slopes(4), dtype=torch.float64)[None, :, None].expand(1, 4, 6)
    gated = encoding.with_gates(torch.stack([-torch.ones_like(own), own], dim=-1))
    seen = torch.ones(6, 6, dtype=torch.bool).tril()
    bias = gated.bias(places, places)
    assert bias is not None
    torch.testing.assert_close(bias[0][:, seen], Alibi(4).bias(places, places)[:, seen])


def test_the_papers_form_is_the_default_and_folders_from_before_it_keep_theirs() -> None:
    assert Cable(4, 12).form == "weighted"
    assert build.update_stored_spec({"_target_": "lexbench.parts.lab.encodings.cable.Cable"})["form"] == "relu"
    assert build.update_stored_spec(build.resolve_spec("cable"))["form"] == "weighted"


def test_a_token_with_slope_0_takes_no_room() -> None:
    encoding, places = made(), torch.arange(4, dtype=torch.float64)
    gated = encoding.with_gates(-torch.tensor([0.0, 1.0, 0.0, 2.0]).expand(1, 4, 4)[..., None])
    expected = [[0, 0, 0, 0], [-1, 0, 0, 0], [-1, 0, 0, 0], [-3, -2, -2, 0]]
    bias = gated.bias(places, places)
    assert bias is not None and bias[0, 0].tolist() == expected


def test_the_released_form_is_fox_with_gates_of_the_other_sign() -> None:
    encoding, other = made("softplus"), Fox(Nope(), 4, 12)
    x, _, _, _ = gated_layer(encoding)
    for mine, its in zip(encoding.parameters(), other.parameters(), strict=True):
        its.data = -mine.data
    torch.testing.assert_close(encoding.gates(x), other.gates(x), rtol=1e-12, atol=0)


def test_another_form_is_an_error() -> None:
    with pytest.raises(ValueError, match="cable's form must be weighted, relu or softplus, got 'elu'"):
        Cable(4, 12, form="elu")


@pytest.mark.parametrize("form", ["weighted", "relu", "softplus"])
def test_every_layer_has_its_own_weights(form: str) -> None:
    assert not Cable.shared
    one, two = made(form), made(form)
    for each in (one, two):
        each.initialise(torch.Generator().manual_seed(3))
    assert all(torch.equal(left, right) for left, right in zip(one.parameters(), two.parameters(), strict=True))
    for name, weight in one.named_parameters():
        assert float(weight.detach().std()) == (0 if name.endswith("bias") else pytest.approx(0.02, rel=0.3)), name
    drawn = [weight for name, weight in one.named_parameters() if not name.endswith("bias")]
    assert len(drawn) == (2 if form == "weighted" else 1)
    assert not any(torch.equal(drawn[0], other) for other in drawn[1:])
