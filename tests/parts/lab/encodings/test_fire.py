"""FIRE pair by pair, at the text's beginning, past its threshold, and its gradients."""

import math

import numpy as np
import pytest
import torch

from lexbench.parts.lab.encodings.fire import Fire
from lexbench.parts.lab.native import build
from lexbench.parts.lab.native.decoder import DecoderShape
from tests.parts.lab.encodings.layouts import doubled, drawn_twice_alike, everywhere

pytestmark = pytest.mark.usefixtures("one_thread")


def share(i: float, j: float, c: float, tau: float, epsilon: float = 1e-6) -> float:
    return math.log(abs(c * (i - j)) + 1) / (math.log(abs(c * max(i, tau)) + 1) + epsilon)


def small(threshold: float = 4.0, c: float = 0.3, multiplier: float = 1.3) -> Fire:
    """Past its threshold within a few tokens."""
    encoding = Fire(3, 64, hidden=5, threshold=threshold)
    doubled(encoding)
    for weight, value in ((encoding.c, c), (encoding.multiplier, multiplier)):
        weight.data = torch.tensor(value, dtype=torch.float64)
    return encoding


@pytest.mark.parametrize("compiling", [False, True])
@pytest.mark.parametrize(
    ("threshold", "c", "multiplier"), [(4.0, 0.3, 1.3), (512.0, 0.1, 1.0), (4.0, -0.3, -1.3), (1e-9, 0.5, 1.0)]
)
def test_the_bias_is_f_of_the_share_wherever_tokens_stand(
    threshold: float, c: float, multiplier: float, compiling: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    encoding = small(threshold, c, multiplier)
    own = {name: weight.detach().numpy() for name, weight in encoding.named_parameters()}

    def score(head: int, i: float, j: float) -> float:
        part = share(i, j, c, abs(multiplier * threshold))
        hidden = [max(0.0, part * own["inner"][u] + own["inner_bias"][u]) for u in range(5)]
        return float(sum(own["outer"][head][u] * hidden[u] for u in range(5)) + own["outer_bias"][head])

    everywhere(encoding, score, 3)


def test_shares_are_those_that_the_released_code_gave() -> None:
    encoding = doubled(Fire(4, 2048))
    assert isinstance(encoding, Fire)
    encoding.c.data = torch.tensor(0.1, dtype=torch.float64)  # 0.1 of float32 is another
    pairs = [(0, 0), (5, 0), (5, 3), (511, 0), (599, 0), (599, 500)]
    expected = [0.0, 0.1025174585, 0.0460980298, 0.9995149164, 0.9999997566, 0.5813158091]
    bounds = torch.tensor([max(i, 512.0) for i, _ in pairs], dtype=torch.float64)
    distances = torch.tensor([float(i - j) for i, j in pairs], dtype=torch.float64)
    assert encoding.distance_share(distances, bounds).tolist() == pytest.approx(expected, rel=1e-8)


def test_rows_move_along_below_the_threshold_and_stretch_beyond() -> None:
    encoding, everyone = small(threshold=8.0, multiplier=1.0), torch.arange(30, dtype=torch.float64)
    bias = encoding.bias(everyone, everyone).detach()
    for row in range(1, 9):
        torch.testing.assert_close(bias[:, row, 1 : row + 1], bias[:, row - 1, :row])
    ends = bias[:, 8:, 0]  # the whole way back is a share of 1 in every row
    torch.testing.assert_close(ends, ends[:, :1].expand_as(ends), atol=1e-5, rtol=0)


@pytest.mark.parametrize("multiplier", [1.0, 0.0])
def test_the_first_token_has_a_finite_bias_and_gradients(multiplier: float) -> None:
    encoding, zero = small(multiplier=multiplier), torch.zeros(1, dtype=torch.float64)
    bias = encoding.bias(zero, zero)
    at_nothing = encoding.outer @ encoding.inner_bias.relu() + encoding.outer_bias
    torch.testing.assert_close(bias[:, 0, 0], at_nothing)
    bias.sum().backward()  # type: ignore[no-untyped-call]
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in encoding.parameters())


@pytest.mark.parametrize("tokens", [4, 12])
def test_gradients_are_differences_on_both_sides_of_the_threshold(tokens: int) -> None:
    encoding, everyone = small(), torch.arange(tokens, dtype=torch.float64)
    weights = torch.from_numpy(np.random.default_rng(0).standard_normal((3, tokens, tokens))).tril()

    def total() -> torch.Tensor:
        return (encoding.bias(everyone, everyone) * weights).sum()

    total().backward()  # type: ignore[no-untyped-call]
    for weight in (encoding.c, encoding.multiplier):
        begun, step = weight.data.clone(), 1e-6
        with torch.no_grad():
            weight.data = begun + step
            above = float(total())
            weight.data = begun - step
            slope = (above - float(total())) / (2 * step)
            weight.data = begun
        assert weight.grad is not None
        assert float(weight.grad) == pytest.approx(slope, rel=1e-5)


def test_each_layer_has_its_own_that_begins_as_pytorchs_layers() -> None:
    shape = DecoderShape(vocabulary=97, layers=3, width=32, heads=4, kv_heads=2, hidden=48)
    encoding = build.build_encoding("fire", shape, 24)
    sizes = {name: tuple(weight.shape) for name, weight in encoding.named_parameters()}
    own = {"c": (), "multiplier": (), "inner": (32,), "inner_bias": (32,), "outer": (4, 32), "outer_bias": (4,)}
    assert sizes == {f"layers.{layer}.{name}": size for layer in range(3) for name, size in own.items()}
    wide = Fire(100, 64, hidden=100)
    wide.initialise(torch.Generator().manual_seed(0))
    for weight, bound in ((wide.inner, 1.0), (wide.outer, 0.1), (wide.outer_bias, 0.1)):
        assert 0.9 * bound < float(weight.detach().abs().max()) <= bound
    assert wide.c.item() == pytest.approx(0.1) and wide.multiplier.item() == 1.0
    drawn_twice_alike(Fire(4, 64), Fire(4, 64))


def test_bad_parameters_are_errors() -> None:
    with pytest.raises(ValueError, match="at least 1 hidden number, got 0"):
        Fire(4, 64, hidden=0)
    with pytest.raises(ValueError, match="threshold and epsilon above 0, got 0 and 1e-06"):
        Fire(4, 64, threshold=0)
