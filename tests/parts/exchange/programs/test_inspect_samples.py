"""Logs that Inspect itself writes, in both of its forms, side by side."""

import json
from pathlib import Path
from typing import Any

import pytest

from lexbench.parts.exchange.referee.command import compare_command

WHY = "inspect_ai is not installed here: make test-exchange"
inspect_ai = pytest.importorskip("inspect_ai", reason=WHY)
dataset, scorer, solvers = (
    pytest.importorskip(f"inspect_ai.{name}", reason=WHY) for name in ("dataset", "scorer", "solver")
)
output = pytest.importorskip("inspect_ai.model", reason=WHY).ModelOutput


def log(folder: Path, form: str, answer: str) -> Path:
    """A log of 9 samples in 2 epochs; the answer is right for every third of them."""

    def says() -> Any:
        async def solve(state: Any, generate: Any) -> Any:
            state.output = output.from_content("none", answer)
            return state

        return solve

    every = [dataset.Sample(input=f"{place}?", target=str(place % 3), id=f"q{place}") for place in range(9)]
    task = inspect_ai.Task(
        dataset=dataset.MemoryDataset(every), solver=solvers.solver(says)(), scorer=scorer.match(), name="digits"
    )
    inspect_ai.eval(task, model="mockllm/model", log_dir=str(folder), log_format=form, epochs=2, display="none")
    [file] = folder.glob(f"*.{form}")
    return file


def test_logs_of_both_forms_are_compared(tmp_path: Path) -> None:
    a, b = log(tmp_path / "a", "json", "1"), log(tmp_path / "b", "eval", "none of them")
    [found] = json.loads(compare_command(a, b, as_data=True)[0])["tasks"]
    assert (found["task"], found["clusters"], found["pairs"], found["failed"]) == ("digits match", 9, 18, 0)
    assert (found["a_value"], found["b_value"]) == (pytest.approx(100 / 3), 0.0)
