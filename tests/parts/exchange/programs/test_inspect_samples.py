"""Logs that Inspect itself writes, in both of its forms, side by side."""

import json
from pathlib import Path
from typing import Any

import pytest

from lexbench.parts.exchange.files.sample_comparison import command

inspect_ai = pytest.importorskip("inspect_ai", reason="inspect_ai is not installed here: make test-exchange")


def log(folder: Path, form: str, answer: str) -> Path:
    """A log of 9 samples in 2 epochs; the answer is right for every third of them."""
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.model import ModelOutput
    from inspect_ai.scorer import match
    from inspect_ai.solver import Generate, TaskState, solver

    @solver
    def says() -> Any:
        async def solve(state: TaskState, generate: Generate) -> TaskState:
            state.output = ModelOutput.from_content("none", answer)
            return state

        return solve

    samples = MemoryDataset([Sample(input=f"{place}?", target=str(place % 3), id=f"q{place}") for place in range(9)])
    task = inspect_ai.Task(dataset=samples, solver=says(), scorer=match(), name="digits")
    inspect_ai.eval(task, model="mockllm/model", log_dir=str(folder), log_format=form, epochs=2, display="none")
    [file] = folder.glob(f"*.{form}")
    return file


def test_logs_of_both_forms_are_compared(tmp_path: Path) -> None:
    a, b = log(tmp_path / "a", "json", "1"), log(tmp_path / "b", "eval", "none of them")
    [found] = json.loads(command(a, b, as_data=True))["tasks"]
    assert (found["task"], found["clusters"], found["pairs"], found["failed"]) == ("digits match", 9, 18, 0)
    assert (found["a_value"], found["b_value"]) == (pytest.approx(100 / 3), 0.0)
