"""A changed plug-in is measured anew, and plug-ins that are called alike are told apart."""

from pathlib import Path
from typing import Any

import pytest

import lexbench

REMAP = '''
from dataclasses import dataclass

from lexbench import Attention
from lexbench.core.attention import PositionMap, Region


@dataclass(frozen=True)
class Bend:
    window: int

    def regions(self):
        far = PositionMap(divisor={divisor})
        return (
            Region(PositionMap(), PositionMap(), lambda i, j: i - j < self.window),
            Region(far, far, lambda i, j: i - j >= self.window),
        )


@dataclass(frozen=True)
class Bent:
    """Distances from 64 on, divided."""

    def attention(self, model, length):
        return Attention(remap=Bend(64))
'''
TASK = '''
from dataclasses import dataclass

import numpy as np

from lexbench import Sample, Task, Generate


@dataclass(frozen=True)
class Given(Task):
    """A score that the file states."""

    def protocol(self, tokenizer):
        return "a stated score"

    def questions(self, tokenizer, length, n, seed):
        prompt = np.full(length - 1, 5)
        return [Generate(index=index, cluster=str(index), prompt=prompt, max_new_tokens=1) for index in range(n)]

    def score(self, question, answer):
        about = {{"index": question.index, "cluster": question.cluster, "tokens": question.length}}
        return Sample(**about, scores={{"accuracy": {score}}})
'''
SCALE = '''
from dataclasses import dataclass

from lexbench import Attention


@dataclass(frozen=True)
class Scaled:
    """A scale of cos and sin that the file states."""

    def attention(self, model, length):
        return Attention(scale={scale})
'''


def write(folder: Path, group: str, name: str, code: str) -> None:
    (folder / group).mkdir(exist_ok=True)
    (folder / group / f"{name}.py").write_text(code)
    (folder / group / f"{name}.yaml").write_text(f"file: {name}.py\n")


@pytest.mark.slow
def test_remaps_of_one_name_and_one_window_are_each_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has the value that it has alone in a folder, where nothing can be taken from the other."""
    monkeypatch.setenv("LEXBENCH_CONFIG_PATH", str(tmp_path))
    for name, divisor in (("bent", 2), ("more_bent", 64)):
        write(tmp_path, "method", name, REMAP.format(divisor=divisor))

    def measured(folder: str, *methods: str) -> dict[str, float]:
        ways: dict[str, Any] = {"lengths": [512], "n": 2, "results": tmp_path / folder, "quiet": True}
        table = lexbench.run("lexlet", list(methods), "last_segment", **ways).table()
        return {str(name): float(value) for name, value in table[512].items()}

    alone = {**measured("one", "bent"), **measured("other", "more_bent")}
    assert measured("both", "bent", "more_bent") == pytest.approx(alone, abs=1e-6)
    assert alone["more_bent"] - alone["bent"] > 0.01  # keys far away at the distance of near ones


def test_a_task_whose_score_has_changed_is_scored_by_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEXBENCH_CONFIG_PATH", str(tmp_path))
    for score, value in (("0.25", 0.25), ("1.0 - 0.25", 0.75)):
        write(tmp_path, "task", "given", TASK.format(score=score))
        run = lexbench.run(
            "lexlet", task="given", backend="chance", lengths=[64], n=2, results=tmp_path / "run", quiet=True
        )
        assert run.table(metric="accuracy").loc["none", 64] == value


@pytest.mark.slow
def test_a_method_that_has_changed_continues_no_row_of_its_old_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEXBENCH_CONFIG_PATH", str(tmp_path))
    for scale, length in (("1.0", 128), ("1.0 + 0.5", 64)):
        write(tmp_path, "method", "scaled", SCALE.format(scale=scale))
        lexbench.run(
            "lexlet", "scaled", "passkey", backend="native", lengths=[length], n=1, results=tmp_path / "run", quiet=True
        )
    table = lexbench.Run(tmp_path / "run").table("passkey")
    assert sorted(tuple(row.notna()) for _, row in table.iterrows()) == [(False, True), (True, False)]
