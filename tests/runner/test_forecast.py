"""A forecast finds the laws by which cells were made, and says before them what the machine's speed says."""

import numpy as np
import pytest
import torch

from lexbench.core.method_key import MethodKey
from lexbench.runner.cells import Component, MethodComponent, PlannedCell, Workload
from lexbench.runner.forecast import Forecast, operations_per_second


def part(label: str) -> Component:
    return Component(label, None, label)


def step(length: int, method: str = "none", n: int = 8, written: int = 0) -> PlannedCell:
    """A cell of n texts; operations of a small network by hand: 10^6 a token, 10^3 a pair."""
    cost = Workload(n, n * length, 1e6 * n * length, 1e3 * n * length**2, written)
    return PlannedCell(
        MethodComponent.of(method, None, MethodKey.of_method(method)), part("passkey"), length, 0, None, None, cost
    )


def true_seconds(each: PlannedCell) -> float:
    """A machine of its own: 3e9 operations a second in products, 1e9 in attention, 4 ms a question, 10 ms a step."""
    cost = each.workload
    factor = 1.5 if each.method.label == "rerope" else 1.0
    return factor * (4e-3 * cost.questions + cost.dense / 3e9 + cost.quadratic / 1e9 + 10e-3 * cost.steps)


def test_before_the_first_cell_the_machines_speed_tells() -> None:
    # 8 questions of 1000 tokens: 8e9 + 8e9 operations at 2e9 a second, and 0.02 + 8 * 0.002 s beside
    assert Forecast(2e9).seconds(step(1000)) == pytest.approx(8.0 + 0.036)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "int8"])
def test_the_machines_speed_is_that_of_a_product_in_the_dtype(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four products of 2 * 1024^3 operations in 4 s, of which a forward pass has half the speed: 1024^3 a second."""
    made: list[torch.dtype] = []
    ones, clock = torch.ones, iter([10.0, 14.0])

    def recorded(*size: int, dtype: torch.dtype, device: str) -> torch.Tensor:
        assert size == (1024, 1024) and device == "cpu"
        made.append(dtype)
        return ones(*size, dtype=dtype)

    monkeypatch.setattr(torch, "ones", recorded)
    monkeypatch.setattr("lexbench.core.machine.has_gpu_driver", lambda: False)
    monkeypatch.setattr("lexbench.runner.forecast.time.perf_counter", lambda: next(clock))
    assert operations_per_second.__wrapped__(dtype) == 1024**3
    assert made == ([getattr(torch, dtype)] if dtype.endswith("16") else [])  # float32 needs no torch


@pytest.mark.parametrize("speed", [1e8, 1e9, 1e11])
def test_a_few_cells_tell_the_others(speed: float) -> None:
    forecast = Forecast(speed)
    for length in (16384, 8192, 4096, 2048):
        for method in ("none", "rerope"):
            each = step(length, method, written=100)
            forecast.learn(each, true_seconds(each))
    for method in ("none", "rerope"):
        for length in (1024, 32768):
            each = step(length, method, written=100)
            assert forecast.seconds(each) == pytest.approx(true_seconds(each), rel=0.2)


def test_one_long_cell_corrects_a_guess_of_any_size() -> None:
    forecast = Forecast(1e12)  # a thousand times too fast
    forecast.learn(step(16384), true_seconds(step(16384)))
    assert forecast.seconds(step(16384)) == pytest.approx(true_seconds(step(16384)), rel=0.1)


def test_what_is_left_is_the_sum_and_never_negative() -> None:
    forecast, rng = Forecast(1e9), np.random.default_rng(0)
    cells = [step(int(length)) for length in rng.integers(64, 4096, 20)]
    for each in cells[:10]:
        forecast.learn(each, float(rng.lognormal()) * true_seconds(each))
    singles = [forecast.seconds(each) for each in cells[10:]]
    assert min(singles) >= 0
    assert forecast.remaining_seconds(cells[10:]) == pytest.approx(sum(singles))
    assert forecast.remaining_seconds([]) == 0
