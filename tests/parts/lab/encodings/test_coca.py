"""CoCA's two forms, against numbers of its authors' contraction and pair by pair."""

import numpy as np
import pytest
import torch
from torch import Tensor

from lexbench import Attention
from lexbench.parts.lab.encodings.coca import Coca
from lexbench.parts.lab.native.attend import EncodingAttention

QUERY = [0.126, -0.132, 0.64, 0.105, -0.536, 0.362, 1.304, 0.947]
COUNTING = [0.0, 0.0, 0.0, 0.041]
THETA = np.array([1, 0.1, 0.01, 0.001])


def score(encoding: Coca, query: int, key: int) -> float:
    """Before 1 / sqrt(d), of the query above and a key whose pairs count so much."""
    q, k = torch.zeros(1, 1, query + 1, 8).double(), torch.zeros(1, 1, query + 1, 8).double()
    q[0, 0, query], k[0, 0, key] = torch.tensor(QUERY), torch.tensor(COUNTING * 2)
    layer = EncodingAttention(encoding, Attention(), q, k, torch.arange(query + 1))
    return float(layer.logits(query, query + 1)[0, 0, 0, key]) * 8**0.5


@pytest.mark.parametrize(
    ("distance", "expected"), [(0, 0.037221194), (1, 0.03722117539), (4, 0.03722089623), (96, 0.03704981042)]
)
def test_strict_scores_depend_on_the_distance_alone(distance: int, expected: float) -> None:
    encoding = Coca(8, form="strict")
    for query in (distance, distance + 3, distance + 100):
        assert score(encoding, query, query - distance) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("query", "key", "expected"),
    [(0, 0, 0.037221194), (4, 0, 0.03722089623), (7, 3, 0.03732923442), (100, 96, 0.0404064427)],
)
def test_slack_scores_depend_on_where_both_are(query: int, key: int, expected: float) -> None:
    assert score(Coca(8), query, key) == pytest.approx(expected, rel=1e-6)


def made(form: str, q: Tensor, k: Tensor) -> Tensor:
    """[4, T, T] logits, a pair of dimensions at a time."""
    tokens, out = q.shape[2], torch.zeros(4, q.shape[2], q.shape[2], dtype=torch.float64)
    for head in range(4):
        for i in range(tokens):
            for j in range(tokens):
                asking, known = q[0, head, i].numpy(), k[0, head // 2, j].numpy()
                count = np.maximum((known[:4] + known[4:]) / 2, 0)
                one, two = asking[:4], asking[4:]
                if form == "strict":
                    total = (count * (one**2 + two**2) * np.cos((i - j) * THETA)).sum()
                else:
                    turned = one * np.cos(i * THETA) - two * np.sin(i * THETA)
                    other = two * np.cos(i * THETA) + one * np.sin(i * THETA)
                    keys = count * (np.cos(j * THETA) - np.sin(j * THETA))
                    others = count * (np.cos(j * THETA) + np.sin(j * THETA))
                    total = (one * turned * keys + two * other * others).sum()
                out[head, i, j] = total / 8**0.5
    return out


@pytest.mark.parametrize("form", ["slack", "strict"])
def test_logits_follow_the_formula(form: str) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, heads, 9, 8, generator=generator, dtype=torch.float64) for heads in (4, 2))
    got = EncodingAttention(Coca(8, form=form), Attention(), q, k, torch.arange(9)).logits(0, 9)[0]
    torch.testing.assert_close(got.nan_to_num(neginf=0.0), made(form, q, k).tril())


@pytest.mark.parametrize("form", ["slack", "strict"])
def test_a_method_changes_the_angles_of_both_sides(form: str) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, heads, 9, 8, generator=generator, dtype=torch.float64) for heads in (4, 2))
    places = torch.arange(9)
    slower = Coca(8, 160000.0, form)
    rotate = Coca(8, form=form).rotation(Attention(inv_freq=slower.inv_freq.numpy(), scale=2.0))
    changed = EncodingAttention(Coca(8, form=form), Attention(), q, k, places, rotate).logits(0, 9)
    torch.testing.assert_close(changed, 4 * EncodingAttention(slower, Attention(), q, k, places).logits(0, 9))


def test_only_strict_distances_can_be_remapped() -> None:
    assert Coca(8, form="strict").remaps and not Coca(8).remaps
    assert Coca(8).facts == {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}


def test_an_unknown_form_is_an_error() -> None:
    with pytest.raises(ValueError, match="coca's form must be slack or strict, got 'loose': the released code"):
        Coca(8, form="loose")
