"""Runs end as they should: resumed after any death, never mixing cells, paired over methods."""

import contextlib
import json
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import lexbench
from lexbench.commands import main
from lexbench.core.record import Deferred, Refused
from lexbench.core.task import AnyQuestion, Task, Tokenizer
from lexbench.runner import answers
from lexbench.runner.questions import made_once
from lexbench.store.store import Store
from tests.runner.slow_runs import at_once, command, contents, slow_backend, wait_for

QUIET: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


@pytest.fixture
def slow(tmp_path: Path) -> dict[str, str]:
    """Environment in which `backend=slow` exists."""
    return slow_backend(tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What an undisturbed run leaves."""
    folder = tmp_path_factory.mktemp("whole")
    subprocess.run(command(folder / "run"), check=True, env=at_once(slow_backend(folder)), **QUIET)
    return contents(folder / "run")


@pytest.mark.slow
def test_two_runs_on_one_folder_share_the_work(tmp_path: Path, slow: dict[str, str], whole: dict[str, bytes]) -> None:
    both = [subprocess.Popen(command(tmp_path / "both"), env=slow, **QUIET) for _ in range(2)]
    assert [process.wait(300) for process in both] == [0, 0]
    assert contents(tmp_path / "both") == whole
    costs = [json.loads(line) for line in (tmp_path / "both/costs.jsonl").read_text().splitlines()]
    assert sorted(row["cell"] for row in costs) == sorted(file.stem for file in (tmp_path / "both/cells").glob("[!.]*"))


@pytest.mark.slow
def test_a_cell_of_a_run_that_dies_is_taken_over_by_the_one_that_waits(
    tmp_path: Path, slow: dict[str, str], whole: dict[str, bytes]
) -> None:
    dies = subprocess.Popen(command(tmp_path / "both"), env=slow, **QUIET)
    wait_for(tmp_path / "both", 1, dies)
    dies.send_signal(signal.SIGSTOP)  # it holds its cell for as long as it lives
    waits = subprocess.Popen(command(tmp_path / "both"), env=at_once(slow), **QUIET)
    deadline = time.monotonic() + 300
    while len(list((tmp_path / "both/cells").glob("*.parquet"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    assert waits.poll() is None, "three of four cells are done, the last one is the other's"
    dies.kill()
    assert waits.wait(300) == 0
    assert contents(tmp_path / "both") == whole


@pytest.mark.slow
def test_ctrl_c_says_so_and_keeps_what_was_measured(tmp_path: Path, slow: dict[str, str]) -> None:
    process = subprocess.Popen(
        command(tmp_path / "run"),
        env=slow,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background shell has it ignored
    )
    wait_for(tmp_path / "run", 3, process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 130
    assert b"interrupted" in said.splitlines()[-1]
    assert b"Traceback" not in said
    [left] = Store(tmp_path / "run").unfinished_cells()
    assert len(Store(tmp_path / "run").resume(left)) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("gone", ["folder", "cells"])
def test_a_run_whose_folder_vanishes_says_so_and_the_next_one_measures_all(
    tmp_path: Path, slow: dict[str, str], gone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = subprocess.Popen(command(tmp_path / "run"), env=slow, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    wait_for(tmp_path / "run", 2, process)
    if gone == "folder":
        (tmp_path / "run").rename(tmp_path / "moved")
    else:
        for file in (tmp_path / "run/cells").glob("*.jsonl"):
            file.unlink()
    _, said = process.communicate(timeout=300)
    assert process.returncode == 2
    last = said.decode().splitlines()[-1]
    assert last.startswith(f"lexbench: run folder {tmp_path / 'run'} was moved or removed while it was measured: ")
    assert b"Traceback" not in said
    assert gone == "cells" or not (tmp_path / "run").exists()
    monkeypatch.setenv("LEXBENCH_CONFIG_PATH", slow["LEXBENCH_CONFIG_PATH"])
    monkeypatch.setenv("PAUSE", "0")
    monkeypatch.syspath_prepend(slow["PYTHONPATH"])
    assert main.main(command(tmp_path / "run")[3:]) == 0
    assert [len(each.samples) for each in Store(tmp_path / "run").load()] == [6, 6, 6, 6]


def run(folder: Path, **changed: object) -> lexbench.Run:
    settings: dict[str, object] = {"task": "passkey", "lengths": [128, 300], "n": 4, "backend": "chance"}
    return lexbench.run("lexlet", results=folder, **{**settings, **changed})  # type: ignore[arg-type]


def test_a_second_run_measures_nothing_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path)
    assert "before" not in capsys.readouterr().err
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "cells").glob("[!.]*")}
    costs = (tmp_path / "costs.jsonl").read_text()
    run(tmp_path)
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "cells").glob("[!.]*")} == before
    assert (tmp_path / "costs.jsonl").read_text() == costs
    assert "\n  2 cells measured before: nothing is left to do\n" in capsys.readouterr().err
    run(tmp_path, lengths=[128, 200, 300])
    assert "\n  2 cells measured before, 1 left\n" in capsys.readouterr().err


def test_more_questions_ask_only_those_that_no_smaller_cell_has_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, asked = answers.answer_question, []

    def noted(backend: Any, question: AnyQuestion) -> Any:
        asked.append((question.length, question.index))
        return ask(backend, question)

    monkeypatch.setattr(answers, "answer_question", noted)
    run(tmp_path / "grown", n=2)
    run(tmp_path / "grown", n=4, lengths=[300])
    asked.clear()
    run(tmp_path / "grown", n=6)
    # At 300 the cell of four questions tells, not that of two.
    assert sorted(index for length, index in asked if length < 200) == [2, 3, 4, 5]
    assert sorted(index for length, index in asked if length > 200) == [4, 5]
    run(tmp_path / "alone", n=6)
    for each in Store(tmp_path / "alone").load():
        name = f"cells/{each.cell.id}.parquet"
        assert (tmp_path / "grown" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()
    costs = [json.loads(line) for line in (tmp_path / "grown" / "costs.jsonl").read_text().splitlines()]
    (longest,) = (each.cell.id for each in Store(tmp_path / "alone").load() if each.cell.length == 300)
    # An earlier cell's cost is its own: of four questions at 300, then of two more.
    assert sum(row["tokens"] for row in costs if row["cell"] == longest) == 6 * 300
    asked.clear()
    run(tmp_path / "grown", n=8, lengths=[300], reuse=False)
    assert len(asked) == 8


def test_a_run_whose_cells_cannot_be_read_back_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "lexbench.runner.job.MAX_EXACT_INTEGER", 2**60
    )  # of what a job may ask, not of what a file may hold
    with pytest.raises(ValueError, match=r"cells/\w+\.jsonl cannot be read \(.* wrong seed: 9007199254740992\)"):
        run(tmp_path, seed=2**53, lengths=[128])


def test_what_is_named_twice_is_measured_once(tmp_path: Path) -> None:
    named = {"method": ["none", {"name": "none"}], "task": ["passkey", "passkey"], "seed": [0, 0, 1]}
    rows = run(tmp_path, **named, lengths=[128]).records()
    assert sorted(rows[rows.metric == "accuracy"].seed) == [0, 1]


def test_a_seed_beyond_what_files_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="seed must be below 9,007,199,254,740,992, got 9,007,199,254,740,992"):
        run(tmp_path, seed=2**53)
    assert run(tmp_path, seed=2**53 - 1, lengths=[128]).records().seed.unique().tolist() == [2**53 - 1]


def test_an_interrupted_cell_costs_what_all_its_parts_have_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, asked = answers.answer_question, []

    def interrupted(*arguments: Any) -> Any:
        asked.append(arguments)
        if len(asked) == 4:
            raise KeyboardInterrupt
        return ask(*arguments)

    monkeypatch.setattr(answers, "answer_question", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, method=["ntk", "pi"], lengths=[256], n=5)
    run(tmp_path, method=["ntk", "pi"], lengths=[256], n=5)
    rows = [json.loads(line) for line in (tmp_path / "costs.jsonl").read_text().splitlines()]
    assert [row["tokens"] for row in rows] == [5 * 256, 5 * 256], "and its twin what both parts have cost"
    assert len({row["cell"] for row in rows}) == 2


def test_twins_of_a_deferred_cell_share_their_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the trained length ntk, pi and llama3 are one attention. The first ends at its second question."""
    ask, asked = answers.answer_question, []

    def deferred(*arguments: Any) -> Any:
        asked.append(arguments)
        if len(asked) == 2:
            raise Deferred("out of memory")
        return ask(*arguments)

    def measured() -> dict[str, int]:
        run(tmp_path, method=["ntk", "pi", "llama3"], lengths=[256], n=3)
        return {str(each.cell.method): len(each.samples) for each in Store(tmp_path).load()}

    monkeypatch.setattr(answers, "answer_question", deferred)
    assert measured() == {"ntk": 0, "pi": 3, "llama3": 3} and len(asked) == 2 + 3
    assert measured() == {"ntk": 3, "pi": 3, "llama3": 3} and len(asked) == 2 + 3


@pytest.mark.parametrize("answered", [5, 2])
def test_a_worker_that_dies_leaves_a_cost_only_with_a_finished_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answered: int
) -> None:
    answer = answers.LoadedModel.answers

    class LostError(Exception):
        pass

    def dying(self: answers.LoadedModel, *given: Any) -> Any:
        for place, found in enumerate(answer(self, *given)):
            if place == answered:
                raise LostError
            yield found

    monkeypatch.setattr(answers.LoadedModel, "answers", dying)
    monkeypatch.setattr(answers.LoadedModel, "peak", lambda self: None)  # of a worker that is no more
    whole = answered == 5
    with contextlib.nullcontext() if whole else pytest.raises(LostError):
        run(tmp_path, lengths=[300], n=5)
    rows = (tmp_path / "costs.jsonl").read_text().splitlines() if whole else []
    assert (tmp_path / "costs.jsonl").exists() == whole
    assert [json.loads(row)["peak_bytes"] for row in rows] == [None] * whole
    assert [len(each.samples) for each in Store(tmp_path).load()] == [5] * whole


@pytest.mark.slow
@pytest.mark.parametrize(
    "changed",
    [
        {"method": {"name": "ntk", "factor": 3}},
        {"method": "yarn"},
        {"task": {"name": "passkey", "digits": 6}},
        {"seed": 1},
        {"n": 5},
        {"backend": "native"},
    ],
    ids=str,
)
def test_a_changed_parameter_is_another_cell(tmp_path: Path, changed: dict[str, object]) -> None:
    run(tmp_path, method={"name": "ntk", "factor": 2})
    assert len(list((tmp_path / "cells").glob("[!.]*"))) == 2
    run(tmp_path, **{"method": {"name": "ntk", "factor": 2}, "price": False, **changed})
    assert len(list((tmp_path / "cells").glob("[!.]*"))) == 4


def test_methods_answer_the_same_questions(tmp_path: Path) -> None:
    run(tmp_path, method=["none", "ntk", "rerope"])
    asked: dict[int, set[str]] = {}
    for finished in Store(tmp_path).load():
        expected = json.dumps([dict(sample.facts) for sample in finished.samples], sort_keys=True)
        asked.setdefault(finished.cell.length, set()).add(expected)
    assert {length: len(different) for length, different in asked.items()} == {128: 1, 300: 1}


def test_the_job_page_says_what_it_was_measured_with(tmp_path: Path) -> None:
    run(tmp_path, task="last_segment", corpus={"name": "synthetic"}, method={"name": "yarn", "factor": 8})
    [page] = (tmp_path / "jobs").iterdir()
    job = json.loads(page.read_text())
    assert job["config"]["method"] == [{"_target_": "lexbench.methods.yarn.Yarn", "factor": 8, "name": "yarn"}]
    assert job["config"]["lengths"] == [128, 300]
    assert job["provenance"]["packages"]["numpy"]
    assert job["provenance"]["corpus_fingerprint"] == lexbench.corpus("synthetic").fingerprint()
    assert job["provenance"]["model_revision"] == "chance"


def test_multiples_and_lengths_are_two_ways_to_say_the_same(tmp_path: Path) -> None:
    run(tmp_path / "a", lengths=[128, 512])
    run(tmp_path / "b", lengths=None, multiples=[2, 0.5])
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_several_seeds_are_several_cells(tmp_path: Path) -> None:
    rows = run(tmp_path, seed=[0, 1, 2]).records()
    assert sorted(set(rows.seed)) == [0, 1, 2]


def test_questions_are_written_when_their_cell_is_reached_and_refused_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[tuple[int, int]] = []
    passkey = type(lexbench.task("passkey"))
    questions = passkey.questions

    def counted(task: Task, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        made.append((length, seed))
        if (length, seed) in ((300, 0), (128, 2)):
            raise Refused(f"nothing to ask at {length} of {seed}")
        return questions(task, tokenizer, length, n, seed)

    monkeypatch.setattr(passkey, "questions", counted)
    made_once.clear()
    words = ["model=lexlet", "task=passkey", "backend=chance", "lengths=[128,300]", "n=4", "seed=[0,1,2,3]"]
    assert main.main(["run", *words, "--dry-run"]) == 0
    assert made == []
    # four seeds of 4 samples; one cell of each length is refused when it is reached
    assert f"{4 * 4 * (300 + 128):,} tokens" in capsys.readouterr().err
    run(tmp_path, seed=[0, 1, 2, 3], method=["none", "rerope"])
    refused = {(each.cell.length, each.cell.seed): each.refused for each in Store(tmp_path).load() if each.refused}
    assert refused == {(300, 0): "nothing to ask at 300 of 0", (128, 2): "nothing to ask at 128 of 2"}
    assert len(Store(tmp_path).load()) == 16
    assert made == [(length, seed) for seed in range(4) for length in (300, 128)], "once for both methods"
    costs = [json.loads(line)["cell"] for line in (tmp_path / "costs.jsonl").read_text().splitlines()]
    assert len(set(costs)) == 12, "what is refused costs nothing"
