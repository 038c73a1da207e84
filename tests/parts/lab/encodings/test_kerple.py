"""KERPLE's kernels pair by pair, and how its weights stay inside their borders."""

import math
from collections.abc import Callable

import pytest
import torch

from lexbench.parts.lab.encodings.kerple import Kerple
from tests.parts.lab.encodings.layouts import doubled, drawn_twice_alike, everywhere

pytestmark = pytest.mark.usefixtures("one_thread")

FORMULAS: dict[str, Callable[[float, float, float], float]] = {
    "log": lambda p, a, n: -p * math.log(1 + a * n),
    "power": lambda p, a, n: -a * n**p,
}


def made(form: str, p: float, a: float) -> Kerple:
    encoding = Kerple(1, form)
    encoding.p.data, encoding.a.data = (torch.tensor([value], dtype=torch.float64) for value in (p, a))
    return encoding


@pytest.mark.parametrize("form", ["log", "power"])
def test_the_bias_is_the_kernel_wherever_tokens_stand(form: str) -> None:
    encoding = Kerple(3, form)
    doubled(encoding)
    p, a = encoding.p.tolist(), encoding.a.tolist()
    assert min(p + a) > 0.01
    everywhere(encoding, lambda head, i, j: FORMULAS[form](p[head], a[head], i - j), 3)


@pytest.mark.parametrize(
    ("form", "p", "a", "expected"),
    [
        ("log", 1.5, 0.5, [0.0, -0.6081976622, -1.039720771, -1.374436098, -2.256116095, -5.897738449]),
        ("power", 0.5, 0.1, [0.0, -0.1, -0.1414213562, -0.1732050808, -0.2645751311, -1.0]),
    ],
)
def test_scores_are_those_that_the_released_code_gave(form: str, p: float, a: float, expected: list[float]) -> None:
    distances = torch.tensor([0.0, 1, 2, 3, 7, 100], dtype=torch.float64)
    assert made(form, p, a).bias_at_distances(distances)[0].tolist() == pytest.approx(expected, rel=1e-8)


def test_the_power_one_is_alibi() -> None:
    distances = torch.arange(50.0, dtype=torch.float64)
    torch.testing.assert_close(made("power", 1.0, 0.25).bias_at_distances(distances)[0], -0.25 * distances)


@pytest.mark.parametrize(("form", "largest"), [("log", 3.0), ("power", 2.0)])
def test_weights_outside_come_back_to_the_border_and_go_on_learning(form: str, largest: float) -> None:
    everyone = torch.arange(5, dtype=torch.float64)
    encoding = Kerple(3, form)
    encoding.p.data = torch.tensor([-1.0, 3.0, 1.0])
    encoding.a.data = torch.tensor([-0.5, 0.5, 1e-9])
    encoding.constrain()
    bias = encoding.bias(everyone, everyone)
    torch.testing.assert_close(encoding.p.data, torch.tensor([0.01, largest, 1.0]))
    torch.testing.assert_close(encoding.a.data, torch.tensor([0.01, 0.5, 0.01]))
    p, a = encoding.p.tolist(), encoding.a.tolist()
    for head in range(3):
        assert bias[head, 4, 1].item() == pytest.approx(FORMULAS[form](p[head], a[head], 3.0))

    bias[:, 4, 1].sum().backward()  # type: ignore[no-untyped-call]
    n = 3.0
    slopes = {
        "log": [(-math.log1p(a[h] * n), -p[h] * n / (1 + a[h] * n)) for h in range(3)],
        "power": [(-a[h] * n ** p[h] * math.log(n), -(n ** p[h])) for h in range(3)],
    }
    assert encoding.p.grad is not None and encoding.a.grad is not None
    got = list(zip(encoding.p.grad.tolist(), encoding.a.grad.tolist(), strict=True))
    for head in range(3):
        assert got[head] == pytest.approx(slopes[form][head], rel=1e-5)


@pytest.mark.parametrize("form", ["log", "power"])
def test_two_uses_before_one_backward_pass_do_not_disturb_each_other(form: str) -> None:
    encoding, everyone = Kerple(2, form), torch.arange(6, dtype=torch.float64)
    first, second = encoding.bias(everyone, everyone), encoding.bias(everyone[-1:], everyone)
    (first.sum() + second.sum()).backward()  # type: ignore[no-untyped-call]
    for weight in encoding.parameters():
        assert weight.grad is not None
        assert weight.grad.isfinite().all()  # 0^p at the query's own key
        assert (weight.grad != 0).all()


def test_weights_begin_uniform() -> None:
    encoding = Kerple(10000)
    encoding.initialise(torch.Generator().manual_seed(0))
    for weight, end in ((encoding.p, 2.0), (encoding.a, 1.0)):
        assert 0 <= float(weight.min()) < 0.01 * end and 0.99 * end < float(weight.max()) <= end
        assert float(weight.mean()) == pytest.approx(end / 2, rel=0.02)
    assert not Kerple.shared
    drawn_twice_alike(Kerple(4), Kerple(4))


def test_other_forms_are_errors() -> None:
    with pytest.raises(ValueError, match="form must be one of log, power, got exp"):
        Kerple(4, "exp")
