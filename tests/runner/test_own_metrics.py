"""A task's own metric: unit, better side and range from measuring to tables and differences."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import lexbench
from lexbench.core.errors import ConfigError
from lexbench.core.metric import Metric
from lexbench.metrics import KEY_METRICS, declare_metrics, declare_stored, own_metrics
from lexbench.stats.invariants import cell_faults, fault_line
from lexbench.stats.metrics import better_direction, display_unit
from lexbench.store.cell_rows import cell_row, read_cell
from lexbench.store.format import FinishedCell
from tests.report import fake_run

TASK = '''
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lexbench import Generate, Sample, Task
from lexbench.core.metric import Metric


@dataclass(frozen=True)
class Sorrow(Task):
    """Regret by position."""

    metrics: ClassVar[tuple[Metric, ...]] = (Metric("sorrow", unit="nats", better="lower", range=(0.0, 50.0)),)

    def protocol(self, tokenizer):
        return "sorrow"

    def questions(self, tokenizer, length, n, seed):
        prompt = np.arange(length - 2) % 50 + 5
        return [Generate(index=k, cluster=str(k), prompt=prompt, max_new_tokens=2, answer="x") for k in range(n)]

    def score(self, question, answer):
        return Sample(
            index=question.index, cluster=question.cluster, tokens=question.length, output=answer.text,
            hit_room=answer.hit_room, scores={"sorrow": FACTOR * question.index},
        )
'''


def run(folder: Path, factor: float) -> lexbench.Run:
    (folder / "mine/task").mkdir(parents=True)
    (folder / "mine/task/sorrow.py").write_text(TASK.replace("FACTOR", str(factor)))
    asked: dict[str, object] = {"lengths": [64], "n": 8, "backend": "chance", "quiet": True}
    return lexbench.run("lexlet", "none", "sorrow", results=folder / "run", config_dir=folder / "mine", **asked)  # type: ignore[arg-type]


def test_a_metric_of_a_task_is_measured_beyond_one_and_shown_in_its_unit(tmp_path: Path) -> None:
    rows = run(tmp_path, 2.0).records()
    [value] = rows[rows.metric == "sorrow"].value
    assert value == pytest.approx(np.mean(2.0 * np.arange(8)))
    assert (display_unit("sorrow"), better_direction("sorrow")) == ("nats", -1)


def test_a_value_beyond_the_range_of_its_metric_is_refused(tmp_path: Path) -> None:
    [reason] = set(run(tmp_path, 10.0).records().refused)
    assert "sorrow 60, which must be in [0, 50]" in reason


def test_two_metrics_of_one_name_are_refused() -> None:
    declare_metrics([Metric("sorrow_twice", unit="nats")])
    with pytest.raises(ConfigError, match="sorrow_twice is declared twice"):
        declare_metrics([Metric("sorrow_twice", unit="points")])


def test_who_lacks_the_task_reads_its_metric_by_the_facts_that_a_cell_stores(tmp_path: Path) -> None:
    run(tmp_path, 2.0)
    asked = [sys.executable, "-m", "lexbench"]
    for words, said in ((["doctor"], "all sound"), (["leaderboard"], "sorrow (nats)")):
        done = subprocess.run([*asked, *words, str(tmp_path / "run")], capture_output=True, text=True)
        assert done.returncode == 0 and said in done.stdout, (done.stdout, done.stderr)


def test_without_its_facts_a_cell_is_not_to_be_deleted() -> None:
    """A cell of a version that stored none: the remedy is the folder of the task."""
    value = fake_run.passkey_sample(0, 256, 0.1)
    odd = FinishedCell(fake_run.cell("grief", "none", 256, n=1), [replace(value, scores={"grief_of_this_test": 7.0})])
    [fault] = cell_faults(odd)
    assert "grief_of_this_test 7, a metric that no task here states" in fault
    assert fault_line(odd, [fault]).endswith("give the folder of its task by LEXBENCH_CONFIG_PATH=DIR")
    known = Metric("grief_of_this_test", unit="nats", better="lower", range=(0.0, 9.0), digits=2)
    assert Metric.from_data(json.loads(json.dumps(known.as_data()))) == known
    declare_stored([known.as_data()])
    assert cell_faults(odd) == [] and better_direction(known.name) == -1


def test_a_cell_stores_the_facts_of_metrics_that_are_its_tasks_alone() -> None:
    own = Metric("hope_of_this_test", unit="nats")
    assert own_metrics([own, *KEY_METRICS]) == [{"name": own.name, "unit": "nats"}]
    plain = fake_run.cell("passkey", "none", 256, n=1)
    assert "own_metrics" not in cell_row(plain)
    stated = replace(plain, own_metrics=own_metrics([own]))
    assert read_cell(json.loads(json.dumps(cell_row(stated))), "a cell") == stated
