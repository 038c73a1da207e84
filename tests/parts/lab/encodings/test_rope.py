"""RoPE's angles and what methods may change of them."""

import numpy as np
import torch

from lexbench import Attention
from lexbench.parts.lab.encodings.rope import Rope


def test_scores_depend_on_the_distance_alone_and_follow_the_formula() -> None:
    q, k = np.arange(1.0, 9), np.arange(8.0, 0, -1)
    theta = 100.0 ** (-np.arange(4) / 4)
    encoding = Rope(8, 100.0)
    for i, j in ((0, 0), (5, 2), (1005, 1002)):
        expected = ((q[:4] + 1j * q[4:]) * (k[:4] - 1j * k[4:]) * np.exp(1j * (i - j) * theta)).sum().real
        one, two = (torch.from_numpy(x)[None, None, None] for x in (q, k))
        got = (encoding.rotate(one, torch.tensor([i])) * encoding.rotate(two, torch.tensor([j]))).sum()
        np.testing.assert_allclose(float(got), expected, rtol=1e-12)


def test_a_method_changes_frequencies_and_scale() -> None:
    vectors = torch.ones(1, 1, 3, 4, dtype=torch.float64)
    places = torch.arange(3)
    rotate = Rope(4).rotation(Attention(inv_freq=np.array([0.5, 0.0]), scale=2.0))
    turn = np.arange(3) * 0.5
    expected = 2 * np.stack([np.cos(turn) - np.sin(turn), np.ones(3), np.cos(turn) + np.sin(turn), np.ones(3)], 1)
    np.testing.assert_allclose(rotate(vectors, places)[0, 0].numpy(), expected)
