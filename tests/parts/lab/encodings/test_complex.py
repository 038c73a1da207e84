"""Complex embeddings: each word's pairs turn at that word's own frequencies."""

import cmath

import numpy as np
import pytest
import torch

from lexbench.parts.lab.encodings.base import rotate_half
from lexbench.parts.lab.encodings.complex import Complex


def test_it_is_the_papers_formula() -> None:
    rng = np.random.default_rng(0)
    encoding = Complex(vocabulary=11, width=6)
    encoding.frequency.data = torch.from_numpy(rng.normal(size=(11, 3)))
    amplitude, phase = rng.uniform(0.5, 2, (11, 3)), rng.uniform(-3, 3, (11, 3))
    table = np.concatenate([amplitude * np.cos(phase), amplitude * np.sin(phase)], axis=1)
    words, places = np.array([[3, 3, 10, 0]]), np.array([0.0, 1.0, 7.0, 1000.0])
    made = encoding.embed(torch.from_numpy(table)[words], torch.from_numpy(words), torch.from_numpy(places)).detach()
    frequency = encoding.frequency.detach().numpy()
    for n in range(4):
        for k in range(3):
            w = words[0, n]
            value = amplitude[w, k] * cmath.exp(1j * (frequency[w, k] * places[n] + phase[w, k]))
            assert float(made[0, n, k]) == pytest.approx(value.real, abs=1e-9)
            assert float(made[0, n, k + 3]) == pytest.approx(value.imag, abs=1e-9)


def test_frequencies_begin_as_those_of_the_sinusoidal_encoding_for_every_word() -> None:
    encoding = Complex(vocabulary=5, width=8)
    np.testing.assert_allclose(encoding.frequency.detach(), np.tile([1, 0.1, 0.01, 0.001], (5, 1)), rtol=1e-6)
    # then embeddings turn as RoPE turns vectors
    embedded = torch.randn(2, 9, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    words, places = torch.zeros(2, 9, dtype=torch.long), torch.arange(9.0, dtype=torch.float64)
    angles = places[:, None] * encoding.frequency[0].double()
    torch.testing.assert_close(encoding.embed(embedded, words, places), rotate_half(embedded, angles))


def test_only_frequencies_of_words_that_occur_learn() -> None:
    encoding, words = Complex(vocabulary=5, width=4), torch.tensor([[1, 3, 1]])
    embedded = torch.ones(1, 3, 4)
    encoding.embed(embedded, words, torch.arange(3.0)).square().cumsum(-1).sum().backward()  # type: ignore[no-untyped-call]
    moved = encoding.frequency.grad
    assert moved is not None
    assert moved.abs().sum(1).gt(0).tolist() == [False, True, False, True, False]


def test_bad_parameters_are_errors() -> None:
    with pytest.raises(ValueError, match="even width, got 7"):
        Complex(5, 7)
    with pytest.raises(ValueError, match="base must be above 1, got -1"):
        Complex(5, 8, base=-1)
