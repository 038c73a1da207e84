"""Sentences of `versus`: one a task and seed, of the metric that the task is judged by."""

from pathlib import Path

import pytest

from lexbench.core.method_key import key_from
from lexbench.core.record import Sample
from lexbench.report.versus import write_versus
from lexbench.store.format import Finished
from tests.report.fake_run import keep
from tests.report.outcomes import answers, asked, right


def sentences(folder: Path, cells: list[Finished]) -> list[str]:
    keep(folder, cells)
    text = write_versus(folder, {each.cell.id for each in cells}, key_from("dca"), folder / "versus")
    return [line for line in text.splitlines() if line.startswith("- ")]


@pytest.mark.slow
def test_each_seed_has_its_own_verdict(tmp_path: Path) -> None:
    """All of 16 against none: better under one seed, worse under the other."""
    hits = {("dca", 0): 16, ("none", 0): 0, ("dca", 1): 0, ("none", 1): 16}
    one, two = sentences(tmp_path, [answers(name, right(of, 16), seed=seed) for (name, seed), of in hits.items()])
    assert one.startswith(
        "- passkey (seed 0) at 512 tokens (2x): dca has 1.00 [0.81, 1.00]; none has 0.00 [0.00, 0.19]"
    )
    assert one.endswith("dca is better at every length.")
    assert two.startswith(
        "- passkey (seed 1) at 512 tokens (2x): dca has 0.00 [0.00, 0.19]; none has 1.00 [0.81, 1.00]"
    )
    assert two.endswith("dca is worse at every length.")


@pytest.mark.slow
def test_a_task_of_several_measures_has_one_sentence(tmp_path: Path) -> None:
    cells = []
    for method, level in {"none": 0.05, "dca": 0.0875}.items():
        scores = {"resolution": level, "attention_distance": 20.0}
        samples = [Sample(index=each, cluster=str(each), tokens=512, scores=scores) for each in range(2)]
        cells.append(Finished(asked("passkey", method, 512, 2), samples))
    [said] = sentences(tmp_path, cells)
    assert "dca has 0.0875 [0.0875, 0.0875]; none has 0.05 [0.05, 0.05]" in said
