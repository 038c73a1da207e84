"""SHAPE shifts whole texts, in training only."""

import numpy as np
import pytest
import torch

from lexbench.parts.lab.encodings.learned import Learned
from lexbench.parts.lab.encodings.shape import Shape
from lexbench.parts.lab.encodings.sinusoidal import Sinusoidal

TOKENS = torch.zeros(4000, 6, dtype=torch.long)


def test_each_text_of_training_has_one_shift() -> None:
    encoding = Shape(Sinusoidal(8), 6, offsets=10)
    places = encoding.positions(TOKENS, 6, torch.Generator().manual_seed(0))
    assert places.shape == (4000, 6)
    assert torch.equal(places - places[:, :1], torch.arange(6.0, dtype=torch.float64).expand(4000, 6))
    shifts = np.bincount(places[:, 0].long().numpy(), minlength=10)
    assert len(shifts) == 10  # 0 to 9, never 10
    assert np.abs(shifts - 400).max() < 5 * (4000 * 0.1 * 0.9) ** 0.5  # five deviations


def test_at_use_nothing_is_shifted() -> None:
    encoding = Shape(Sinusoidal(8), 6)
    assert torch.equal(encoding.positions(TOKENS, 6), torch.arange(6.0, dtype=torch.float64))
    assert encoding.used is encoding.over


def test_the_embedding_is_the_inner_ones_at_the_shifted_places() -> None:
    inner = Sinusoidal(8)
    encoding = Shape(inner, 6, offsets=10)
    places = encoding.positions(TOKENS[:3], 6, torch.Generator().manual_seed(1))
    made = encoding.embed(torch.zeros(3, 6, 8, dtype=torch.float64), TOKENS[:3], places)
    for text in range(3):
        expected = inner.sines_and_cosines(torch.arange(6) + places[text, 0])
        torch.testing.assert_close(made[text], expected)


def test_a_table_must_hold_every_shifted_position() -> None:
    with pytest.raises(ValueError, match="shape needs 15 positions for 6 tokens, learned has 14"):
        Shape(Learned(8, 6, size=14), 6, offsets=10)
    assert Shape(Learned(8, 6, size=15), 6, offsets=10).longest == 15
    with pytest.raises(ValueError, match="at least 1 offset, got 0"):
        Shape(Sinusoidal(8), 6, offsets=0)
