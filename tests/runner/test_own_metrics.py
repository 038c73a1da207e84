"""A task's own metric: unit, better side and range from measuring to tables and differences."""

from pathlib import Path

import numpy as np
import pytest

import lexbench
from lexbench.core.errors import ConfigError
from lexbench.core.metric import Metric
from lexbench.metrics import declare_metrics
from lexbench.stats.metrics import better_direction, display_unit

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
