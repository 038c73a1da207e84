"""Where queries and keys may stand, and biases worked out for one pair of them after the other."""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from lexbench.parts.lab.encodings.base import Encoding


def positions(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


ALL = torch.arange(9, dtype=torch.float64)
EACH = torch.stack([ALL, positions(0, 2, 3, 7, 8, 10, 11, 12, 40)])
LAYOUTS = {
    "all": (ALL, ALL),
    "last three": (ALL[6:], ALL),
    "one": (ALL[8:], ALL),
    "the first": (ALL[:1], ALL[:1]),
    "far from 0": (ALL[5:] + 1000, ALL + 1000),
    "gaps": (positions(7, 8, 30, 700), positions(0, 1, 5, 7, 8, 30, 700)),
    "fractions": (positions(1.5, 2.25, 9), positions(0, 0.5, 1.5, 2.25, 9)),
    "each text its own": (EACH[:, 4:], EACH),
}


def by_pair(score: Callable[[int, float, float], float], heads: int, here: Tensor, there: Tensor) -> Tensor:
    """[H, Q, K], with a batch before it where positions have one: score(head, i, j), NaN for later keys."""
    if here.dim() == 2:
        return torch.stack([by_pair(score, heads, one, two) for one, two in zip(here, there, strict=True)])
    made = np.full((heads, len(here), len(there)), np.nan)
    for head in range(heads):
        for row, i in enumerate(here.tolist()):
            for column, j in enumerate(there.tolist()):
                if j <= i:
                    made[head, row, column] = score(head, i, j)
    return torch.from_numpy(made)


def everywhere(encoding: Encoding, score: Callable[[int, float, float], float], heads: int) -> None:
    """The encoding's bias is score(head, i, j) in every layout."""
    for name, (here, there) in LAYOUTS.items():
        expected = by_pair(score, heads, here, there)
        got = encoding.bias(here, there)
        assert got is not None
        assert got.shape == expected.shape, name
        assert got.isfinite().all(), name
        got = got.detach().double().masked_fill(expected.isnan(), torch.nan)
        np.testing.assert_allclose(got, expected, atol=1e-10, rtol=1e-10, err_msg=name)


def doubled(encoding: Encoding, seed: int = 0) -> Encoding:
    """The same, its weights drawn and in float64."""
    encoding.initialise(torch.Generator().manual_seed(seed))
    for weight in encoding.parameters():
        weight.data = weight.data.double()
    return encoding


def drawn_twice_alike(encoding: Encoding, other: Encoding) -> None:
    """Two of a kind begin the same from one seed, and not at 0."""
    for one in (encoding, other):
        one.initialise(torch.Generator().manual_seed(3))
    for (name, left), right in zip(encoding.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(left, right), name
        assert left.dtype == torch.float32, name
        assert left.abs().max() > 0, name


def gated_layer(encoding: Encoding, tokens: int = 9, width: int = 12, batch: int = 2) -> tuple[Tensor, ...]:
    """Random inputs [B, T, width], q [B, 4, T, 8], k and v [B, 2, T, 8] in float64; q and k of some length."""
    generator = torch.Generator().manual_seed(7)
    shapes = ((batch, tokens, width), *((batch, heads, tokens, 8) for heads in (4, 2, 2)))
    for weight in encoding.parameters():
        weight.data = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
    return tuple(torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))
