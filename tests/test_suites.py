"""Suites: tasks by name, with parameters, suites within suites, and the usual settings of a run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lexbench.core import registry
from lexbench.runner.job import Job

SUITES = {
    "inner": "suite: [passkey, {name: sliding, stride: 8}]\nn: 3\nmultiples: [1]\n",
    "outer": "suite: [inner, {name: passkey, digits: 7}]\nstrata: 4\n",
    "other": "suite: [prefix]\nn: 5\n",
    "settled": "suite: [inner, other]\nn: 7\n",
}


@pytest.fixture(autouse=True)
def own_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "task").mkdir()
    for name, text in SUITES.items():
        (tmp_path / "task" / f"{name}.yaml").write_text(text)
    monkeypatch.setenv("LEXBENCH_CONFIG_PATH", str(tmp_path))


def job(*tasks: str | Mapping[str, Any], **changed: Any) -> Job:
    given = [{"name": task} if isinstance(task, str) else task for task in tasks]
    settings: dict[str, Any] = {"lengths": None, "multiples": None, "n": None, **changed}
    return Job.of(
        model=registry.read_named_config("model", "lexlet"),
        methods=[{"name": "none", **registry.read_named_config("method", "none")}],
        tasks=[{**registry.read_named_config("task", str(task["name"])), **task} for task in given],
        corpus={"name": "synthetic", **registry.read_named_config("corpus", "synthetic")},
        backend={"name": "chance"},
        seeds=[0],
        results=None,
        **settings,
    )


def labels(*tasks: str | Mapping[str, Any]) -> list[str]:
    return [task.label for task in job(*tasks).tasks]


def test_a_suite_is_its_tasks_in_their_order() -> None:
    assert labels("inner") == ["passkey", "sliding(stride=8)"]
    assert labels("outer") == ["passkey(strata=4)", "sliding(stride=8)", "passkey(digits=7, strata=4)"]
    assert labels("inner", "prefix") == ["passkey", "sliding(stride=8)", "prefix"]


def test_a_parameter_goes_to_every_task_that_has_it() -> None:
    assert labels({"name": "inner", "room": 9}) == ["passkey(room=9)", "sliding(stride=8)"]
    with pytest.raises(ValueError, match=r"unknown parameter task.depth: no task of \['passkey', 'sliding'\] has it"):
        labels({"name": "inner", "depth": 9})


@pytest.mark.parametrize(
    ("tasks", "n", "lengths"),
    [
        (["passkey"], 32, [128, 256, 512, 1024, 2048]),
        (["inner"], 3, [256]),
        (["outer"], 3, [256]),
        (["other"], 5, [128, 256, 512, 1024, 2048]),
        (["settled"], 7, [256]),
        (["other", "passkey"], 5, [128, 256, 512, 1024, 2048]),
    ],
)
def test_a_suite_states_the_usual_settings_of_a_run(tasks: list[str], n: int, lengths: list[int]) -> None:
    made = job(*tasks)
    assert (made.n, made.lengths) == (n, lengths)


def test_what_the_user_says_goes_before_the_suite() -> None:
    made = job("inner", n=11, multiples=[2])
    assert (made.n, made.lengths) == (11, [512])
    assert job("inner", lengths=[300]).lengths == [300]


def test_suites_that_differ_ask_the_user() -> None:
    with pytest.raises(ValueError, match=r"suites differ in n \(3, 5\): give n="):
        job("inner", "other")


@pytest.mark.parametrize(
    "name", [n for n in registry.registered_names("task") if "suite" in registry.read_named_config("task", n)]
)
def test_every_suite_of_the_registry_is_settled(name: str) -> None:
    assert job(name).tasks


def test_what_no_suite_or_run_can_be_is_said_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"a suite must list tasks by name, got"):
        labels({"name": "inner", "suite": [{"nam": "needle"}]})
    with pytest.raises(ValueError, match=r"lengths must be a number or a list of numbers, got '128': e.g. lengths=\["):
        job("passkey", lengths="128")
    with pytest.raises(ValueError, match=r"multiples must be a number or a list of numbers, got True: e.g. multiples="):
        job("passkey", multiples=True)
    with pytest.raises(ValueError, match=r"task.corpus is set by corpus=NAME for the whole run, got 3"):
        labels({"name": "sliding", "corpus": 3})
    with pytest.raises(ValueError, match="sliding's document_tokens must be at least 1, got 0"):
        labels({"name": "sliding", "document_tokens": 0})
