"""Muon against singular values worked out alone."""

import pytest
import torch

from lexbench.parts.lab.native.muon import NEWTON_SCHULZ_STEPS, QUINTIC_COEFFICIENTS, Muon, orthogonalise_matrices

pytestmark = pytest.mark.usefixtures("one_thread")


def iterated(value: float) -> float:
    """A singular value after the iteration."""
    a, b, c = QUINTIC_COEFFICIENTS
    for _ in range(NEWTON_SCHULZ_STEPS):
        value = a * value + b * value**3 + c * value**5
    return value


@pytest.mark.parametrize("shape", [(6, 4), (4, 6)])
def test_the_iteration_keeps_singular_vectors_and_moves_singular_values_towards_one(shape: tuple[int, int]) -> None:
    matrix = torch.randn(1, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    u, s, vt = torch.linalg.svd(matrix[0], full_matrices=False)
    expected = u @ torch.diag(torch.tensor([iterated(float(each)) for each in s / s.norm()], dtype=u.dtype)) @ vt
    torch.testing.assert_close(orthogonalise_matrices(matrix)[0], expected, atol=1e-6, rtol=0)
    assert all(0.6 < iterated(float(each)) < 1.25 for each in s / s.norm())


def test_two_updates_of_matrices_of_rank_one() -> None:
    """Momentum of parallel gradients is parallel: each update is the unit gradient, times sqrt(rows / columns)."""
    left, right = torch.tensor([3.0, 0.0, 4.0, 0.0]), torch.tensor([0.6, 0.8])
    unit = torch.outer(left, right) / 5
    start = torch.ones(4, 2), torch.ones(2, 4)
    weights = [torch.nn.Parameter(each.clone()) for each in start]
    optimizer = Muon(weights, lr=0.1, weight_decay=0.5)
    for gradient in (2.0, -8.0):  # momentum 2, then 0.95 * 2 - 8 = -6.1: ahead -8 + 0.95 * -6.1
        for weight, direction in zip(weights, (unit, unit.T), strict=True):
            weight.grad = gradient * direction
        optimizer.step()
    size, kept = iterated(1.0), 1 - 0.1 * 0.5
    for weight, direction, scale, begin in zip(weights, (unit, unit.T), (2**0.5, 1.0), start, strict=True):
        expected = (begin * kept - 0.1 * scale * size * direction) * kept + 0.1 * scale * size * direction
        torch.testing.assert_close(weight.detach(), expected, atol=1e-5, rtol=0)
