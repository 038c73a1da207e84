"""Sinusoidal positions against the paper's formula and two libraries."""

import math

import numpy as np
import pytest
import torch

from lexbench.parts.lab.encodings.sinusoidal import Sinusoidal


def paper(positions: list[float], width: int, base: float = 10000.0) -> np.ndarray:
    made = np.zeros((len(positions), width))
    for row, n in enumerate(positions):
        for p in range(width // 2):
            angle = n / base ** (2 * p / width)
            made[row, 2 * p], made[row, 2 * p + 1] = math.sin(angle), math.cos(angle)
    return made


def test_the_waves_are_the_papers() -> None:
    positions = [0.0, 1.0, 2.5, 4095.0]
    ours = Sinusoidal(12, base=500.0).sines_and_cosines(torch.tensor(positions, dtype=torch.float64))
    np.testing.assert_allclose(ours.numpy(), paper(positions, 12, 500.0), atol=1e-12)


def test_they_are_added_to_the_scaled_embedding() -> None:
    embedded, tokens = torch.full((2, 3, 16), 0.25, dtype=torch.float64), torch.zeros(2, 3, dtype=torch.long)
    places = torch.arange(3, dtype=torch.float64)
    np.testing.assert_allclose(
        Sinusoidal(16, token_rms=None).embed(embedded, tokens, places)[1], 1.0 + paper([0, 1, 2], 16)
    )
    plain = Sinusoidal(16, scaled=False).embed(embedded, tokens, places)
    np.testing.assert_allclose(plain[1], 0.25 + paper([0, 1, 2], 16))


def test_each_text_may_have_positions_of_its_own() -> None:
    places = torch.tensor([[0.0, 7.0], [100.0, 3.5]], dtype=torch.float64)
    made = Sinusoidal(8).embed(torch.zeros(2, 2, 8, dtype=torch.float64), torch.zeros(2, 2, dtype=torch.long), places)
    np.testing.assert_allclose(made[1], paper([100.0, 3.5], 8), atol=1e-12)


def test_halves_are_those_of_transformers_marian() -> None:
    from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

    theirs = MarianSinusoidalPositionalEmbedding(64, 32).create_weight()
    ours = Sinusoidal(32, layout="halves").sines_and_cosines(torch.arange(64))
    torch.testing.assert_close(ours.float(), theirs)


def test_halves_are_those_of_x_transformers() -> None:
    x_transformers = pytest.importorskip("x_transformers.x_transformers")
    module = x_transformers.ScaledSinusoidalEmbedding(32)  # times a learned scale that begins at 1 / sqrt(width)
    theirs = module(torch.zeros(1, 50, 32)).detach() * 32**0.5
    torch.testing.assert_close(
        Sinusoidal(32, layout="halves").sines_and_cosines(torch.arange(50)).float(), theirs, atol=2e-5, rtol=0
    )


def test_a_layout_only_reorders() -> None:
    places = torch.arange(9)
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    assert torch.equal(
        Sinusoidal(8, layout="halves").sines_and_cosines(places), Sinusoidal(8).sines_and_cosines(places)[:, order]
    )


def test_bad_parameters_are_errors() -> None:
    with pytest.raises(ValueError, match="even width, got 7"):
        Sinusoidal(7)
    with pytest.raises(ValueError, match="layout must be interleaved or halves, got 'both'"):
        Sinusoidal(8, layout="both")
    with pytest.raises(ValueError, match="base must be above 1, got 0"):
        Sinusoidal(8, base=0)
    with pytest.raises(ValueError, match="token_rms must be finite and above 0, got 0"):
        Sinusoidal(8, token_rms=0)
