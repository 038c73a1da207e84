"""Sandwich pair by pair, and as what is left of sinusoidal positions."""

import math

import numpy as np
import pytest
import torch

from lexbench.parts.lab.encodings.sandwich import Sandwich
from tests.parts.lab.encodings.layouts import everywhere

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("dimension", [None, 2, 12])
def test_the_bias_is_the_sum_of_cosines_wherever_tokens_stand(dimension: int | None) -> None:
    size = dimension or 8

    def score(head: int, i: float, j: float) -> float:
        waves = sum(math.cos((i - j) * 10000 ** (-2 * k / size)) for k in range(1, size // 2 + 1))
        return (waves - size / 2) / (8 * (head + 1) / 3)

    everywhere(Sandwich(3, 8, dimension, first=1), score, 3)


def test_scores_are_those_that_nemos_expression_gave() -> None:
    distances = torch.tensor([0.0, 1, 2, 3, 7, 100], dtype=torch.float64)
    expected = [0.0, -0.002523169653, -0.01006771775, -0.02255901106, -0.1188157787, -1.151907529]
    assert Sandwich(4, 8, None, first=1).bias_at_distances(distances)[0].tolist() == pytest.approx(expected, rel=1e-8)


def test_its_weights_are_those_of_products_of_sinusoidal_positions() -> None:
    # the product's softmax over keys does not know the constant D / 2
    tokens, size = 40, 128
    theta = 10000.0 ** (-2 * np.arange(size // 2) / size)
    waves = np.arange(tokens)[:, None] * theta
    products = np.sin(waves) @ np.sin(waves).T + np.cos(waves) @ np.cos(waves).T
    everyone = torch.arange(tokens, dtype=torch.float64)
    encoding = Sandwich(8, 16)
    last = encoding.bias(everyone[-1:], everyone)[:, 0]
    for head in range(8):
        weights = np.exp(products[-1] / (head + 1))
        np.testing.assert_allclose(last[head].softmax(-1), weights / weights.sum(), rtol=1e-10)


def test_it_has_no_weights_and_needs_an_even_dimension() -> None:
    assert not list(Sandwich(4, 8).parameters())
    for size in (0, 7):
        with pytest.raises(ValueError, match=f"even dimension of at least 2, got {size}"):
            Sandwich(4, 8, size)
    with pytest.raises(ValueError, match="first must be 0 or 1, got 2"):
        Sandwich(4, 8, first=2)
