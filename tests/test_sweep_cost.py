"""Costs of a large sweep (tools/sweep_cost.py): its formula by hand, and the table of docs/scale.md."""

import json
from pathlib import Path

import pytest

from lexbench.methods.composition import changing_methods
from tools import sweep_cost


def test_a_cell_takes_what_its_parabola_says_and_gpus_take_whole_cells() -> None:
    """By hand: 2 L + 3 L^2 seconds is 5 at 1, 16 at 2 and 56 at 4; a step 1 + L / 10, 8 of them at 4: 11.2."""
    measured = {"1": {"prefill": 5.0, "token": 1.1}, "2": {"prefill": 16.0, "token": 1.2}, "read_bytes": 7}
    found = sweep_cost.cell_seconds(measured, 4, n=10)
    assert found == pytest.approx({"passkey": 10 * (56 + 11.2), "last_segment": 560})
    cells = {"passkey": 3600.0, "last_segment": 1800.0}
    # Three methods: hours 1, 1, 1, and 0.5 three times; on two GPUs 1 + 1 and 1 + 0.5 + 0.5, then the last half.
    assert [sweep_cost.sweep_hours(cells, 3, gpus) for gpus in (1, 2, 6, 64)] == pytest.approx([4.5, 2.5, 1, 1])


def test_the_page_shows_what_the_program_computes() -> None:
    steps = json.loads(sweep_cost.RECORD.read_text())["steps"]
    made = "\n".join(sweep_cost.cost_table(steps, ["qwen3_8b"], 131072, len(changing_methods()), 32))
    assert made in (Path(__file__).parents[1] / "docs" / "scale.md").read_text()
