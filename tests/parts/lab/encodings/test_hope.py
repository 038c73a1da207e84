"""HoPE's threshold."""

import math

import numpy as np
import pytest
import torch

from lexbench.parts.lab.encodings.hope import Hope


@pytest.mark.parametrize(
    ("trained", "kept"), [(6, 0), (7, 1), (16, 1), (62, 1), (63, 2), (628, 2), (629, 3), (6284, 4)]
)
def test_pairs_turn_that_come_round_in_training(trained: int, kept: int) -> None:
    # wavelengths 2 pi, 20 pi, 200 pi, 2000 pi: 6.28, 62.8, 628.3, 6283.2 tokens
    np.testing.assert_allclose(Hope(8, trained).inv_freq, [1, 0.1, 0.01, 0.001][:kept] + [0] * (4 - kept))


def test_a_pair_that_comes_round_exactly_once_turns() -> None:
    base = (100 / (2 * math.pi)) ** 2  # of two pairs the second has 2 pi / 100
    slow = float(Hope(4, 101, base).inv_freq[1])
    assert slow == pytest.approx(2 * math.pi / 100)
    assert Hope(4, 99, base).inv_freq[1] == 0


def test_scores_of_pairs_that_stand_still_know_no_distance() -> None:
    encoding = Hope(8, 100)
    q, k = np.arange(1.0, 9), np.arange(8.0, 0, -1)
    theta = np.array([1, 0.1, 0, 0])
    for i, j in ((0, 0), (70, 3), (1000, 1)):
        expected = ((q[:4] + 1j * q[4:]) * (k[:4] - 1j * k[4:]) * np.exp(1j * (i - j) * theta)).sum().real
        one, two = (torch.from_numpy(x)[None, None, None] for x in (q, k))
        got = (encoding.rotate(one, torch.tensor([i])) * encoding.rotate(two, torch.tensor([j]))).sum()
        assert float(got) == pytest.approx(expected, rel=1e-12)
    assert encoding.facts == {"rope_parameters": {"rope_type": "hope"}}
