"""TISA's Gaussians, pair by pair."""

import math

import pytest
import torch

from lexbench.parts.lab.encodings.tisa import Tisa
from tests.parts.lab.encodings.layouts import doubled, drawn_twice_alike, everywhere

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_bias_is_the_sum_of_gaussians_wherever_tokens_stand() -> None:
    encoding = Tisa(3)
    doubled(encoding)
    encoding.sharpness.data[1, 2] *= -1  # its absolute value counts
    a, c, r = (w.tolist() for w in (encoding.amplitudes, encoding.sharpness, encoding.offsets))

    def score(head: int, i: float, j: float) -> float:
        parts = (a[head][s] * math.exp(-abs(c[head][s]) * (j - i - r[head][s]) ** 2) for s in range(5))
        return float(sum(parts))

    everywhere(encoding, score, 3)


def test_scores_are_those_of_the_formula_at_either_side() -> None:
    encoding = Tisa(1, kernels=3)
    for weight, values in (
        (encoding.amplitudes, [0.1, 0.2, -0.05]),
        (encoding.sharpness, [0.1, 0.05, 0.3]),
        (encoding.offsets, [0.0, 3.0, -4.0]),
    ):
        weight.data = torch.tensor([values], dtype=torch.float64)
    offsets = torch.tensor([-6.0, -3, 0, 1, 3, 6], dtype=torch.float64)
    expected = [-0.008842863423, 0.03667583258, 0.227114143, 0.2542022382, 0.2406569453, 0.1302580026]
    assert encoding.bias_at_offsets(offsets)[0].tolist() == pytest.approx(expected, rel=1e-8)
    here = torch.tensor([6.0], dtype=torch.float64)  # keys 6 and 3 back and its own
    assert encoding.bias(here, torch.tensor([0.0, 3, 6]))[0, 0].tolist() == pytest.approx(expected[:3], rel=1e-8)


def test_offsets_of_the_released_code_move_by_one_and_turn_around() -> None:
    ours, theirs = Tisa(1, kernels=1), -2.0
    for weight, value in ((ours.amplitudes, 1.0), (ours.sharpness, 0.5), (ours.offsets, -(theirs + 1))):
        weight.data = torch.tensor([[value]], dtype=torch.float64)
    for n in (0.0, 1, 2, 5):  # there: e^(-|c| (r' - ((i - j) - 1))^2)
        got = float(ours.bias(torch.tensor([n]), torch.zeros(1)))
        assert got == pytest.approx(math.exp(-0.5 * (theirs - (n - 1)) ** 2))


def test_weights_begin_as_in_the_paper() -> None:
    encoding = Tisa(4000)
    encoding.initialise(torch.Generator().manual_seed(0))
    begun = [(float(w.mean()), float(w.std())) for w in (encoding.offsets, encoding.amplitudes, encoding.sharpness)]
    assert begun[0] == pytest.approx((0.0, 5.0), abs=0.1)
    assert begun[1] == pytest.approx((0.1, 0.01), abs=1e-3)
    assert begun[2] == pytest.approx((0.1, 0.01), abs=1e-3)
    assert not Tisa.shared
    drawn_twice_alike(Tisa(4), Tisa(4))


def test_far_keys_are_all_alike_and_leave_finite_gradients() -> None:
    encoding = Tisa(2)
    encoding.initialise(torch.Generator().manual_seed(0))
    bias = encoding.bias(torch.tensor([1e6]), torch.tensor([0.0, 5e5, 1e6]))
    assert bias[:, 0, :2].tolist() == [[0.0, 0.0], [0.0, 0.0]]
    bias.sum().backward()  # type: ignore[no-untyped-call]
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in encoding.parameters())


def test_without_a_kernel_it_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least 1 kernel, got 0"):
        Tisa(4, kernels=0)
