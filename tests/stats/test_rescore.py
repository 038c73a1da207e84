"""A score that a task gives since a later version: derived where stored samples tell it, and said where they do not."""

from dataclasses import replace
from pathlib import Path

import pytest

import lexbench
from lexbench import Answer, AnyQuestion, Sample, Task
from lexbench.report.tables import table_grid
from lexbench.stats.cell_outcomes import outcomes_of_cell
from lexbench.stats.records import load_cells, records_of
from lexbench.stats.rescore import rescore_samples, samples_by_cell, unmeasured_metrics
from lexbench.stats.tables import build_tables
from lexbench.store.store import Store
from lexbench.taskkit.key_scores import KEY_METRICS_ALL_ASKED

PASSKEY = type(lexbench.task("passkey"))


def measure(folder: Path, n: int) -> None:
    lexbench.run("lexlet", task="passkey", backend="chance", lengths=[128], n=n, results=folder)


def score_only(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Let the task score as a version that gave only these."""
    now = PASSKEY.score

    def score(task: Task, question: AnyQuestion, answer: Answer) -> Sample:
        sample = now(task, question, answer)
        kept = {name: value for name, value in sample.scores.items() if name in names}
        return replace(sample, scores=kept, statistics={}, facts={"expected": sample.facts["expected"]})

    monkeypatch.setattr(PASSKEY, "score", score)


def test_an_old_cell_gets_what_its_outputs_tell_and_keeps_its_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        score_only(before, "accuracy", "contains")
        measure(tmp_path, 3)
    [stored] = Store(tmp_path).load()
    assert all(set(sample.scores) == {"accuracy", "contains"} for sample in stored.samples)
    [found] = load_cells([tmp_path]).finished
    assert found.cell.id == stored.cell.id
    assert all(set(sample.scores) == {"accuracy", "contains", "in_place", "reached"} for sample in found.samples)
    [told] = samples_by_cell([stored]).values()  # what tables, figures and comparisons read beside the records
    assert [sample.scores for sample in told] == [sample.scores for sample in found.samples]
    assert set(outcomes_of_cell(stored).outcomes) == {"accuracy", "contains", "in_place", "reached"}
    assert {record.metric for record in records_of(stored)} == {"accuracy", "contains", "in_place", "reached"}
    assert [each.name for each in unmeasured_metrics(stored)] == ["chosen", "forced"]
    first, *others = build_tables([stored])
    assert [line for line in table_grid(first).below if "Not measured" in line] == [
        "Not measured by this version or backend: chosen (likeliest of the options); forced (key tokens likeliest when "
        "taught)."
    ]
    assert not any("Not measured" in line for table in others for line in table_grid(table).below)


def test_a_greater_n_takes_old_samples_with_the_scores_that_they_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        score_only(before, "accuracy", "contains")
        measure(tmp_path, 2)
    score_only(monkeypatch, "accuracy", "contains", "in_place", "reached")
    measure(tmp_path, 4)
    [found] = load_cells([tmp_path]).finished
    assert found.refused is None and len(found.samples) == 4
    assert all(set(sample.scores) == {"accuracy", "contains", "in_place", "reached"} for sample in found.samples)


def test_a_score_that_old_samples_do_not_tell_asks_for_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        score_only(before, "accuracy")
        measure(tmp_path, 2)
    score_only(monkeypatch, "accuracy", "contains")
    measure(tmp_path, 4)
    [reason] = {each.refused for each in Store(tmp_path).load() if each.refused}
    assert reason is not None and "stored by an earlier run: raise the version of Passkey, or delete cells/" in reason


def sample(index: int, output: str | None, expected: str, failed: str | None = None) -> Sample:
    return Sample(
        index=index,
        cluster=str(index // 2),
        tokens=9,
        output=output,
        failed=failed,
        scores={} if failed else {"accuracy": 0.0},
        facts={"expected": expected},
    )


def test_the_questions_of_a_text_tell_its_keys() -> None:
    samples = [sample(0, " 222", "111"), sample(1, " 9", "222"), sample(2, None, "333", failed="no answer")]
    first, second, third = rescore_samples(samples, KEY_METRICS_ALL_ASKED)
    assert first.scores == {"accuracy": 0.0, "in_place": 0.0, "reached": 1.0}
    assert second.scores == {"accuracy": 0.0, "in_place": 0.0, "reached": 0.0}
    assert third is samples[2]
    blind = [samples[0], replace(samples[1], output=None)]
    assert rescore_samples(blind, KEY_METRICS_ALL_ASKED) == blind  # not every sample tells
