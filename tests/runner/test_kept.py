"""Kept samples: taken where they answer today's question and today's model answers alike, asked again elsewhere."""

import json
import logging
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lexbench
from lexbench.backends.chance import Chance
from lexbench.core.record import Sample
from lexbench.core.task import AnyQuestion, Choose, Generate, GenerateAnswer, Loglikelihood, Task, Tokenizer
from lexbench.runner import answers
from lexbench.runner.kept import answers_question, is_same_answer, is_same_model
from lexbench.runner.questions import made_once
from lexbench.store.checksum import with_checksum
from lexbench.store.store import Store
from lexbench.taskkit.asked import question_hash
from tests.runner.slow_runs import command, slow_backend, wait_for

QUIET: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}

TEXT = np.array([9, 3, 4, 5, 6, 7, 8])
ASKED = Generate(index=0, cluster="a", prompt=TEXT, max_new_tokens=3, facts={"expected": ["7"]}, until=("x",))


class Words:
    """Decodes tokens as their numbers."""

    def decode(self, ids: Any) -> str:
        return " ".join(map(str, np.asarray(ids).tolist()))


WORDS: Any = Words()


def kept_sample(**changed: Any) -> Sample:
    made = Sample(
        index=0,
        cluster="a",
        tokens=10,
        chance=0.0,
        output="7",
        facts={"expected": ["7"]},
        prompt="9 3 4 5 6 7 8",
        question=question_hash(ASKED),
    )
    return replace(made, **changed)


OTHERS: Mapping[str, Mapping[str, Any]] = {
    "number": {"index": 1},
    "cluster": {"cluster": "b"},
    "last token": {"prompt": np.array([9, 3, 4, 5, 6, 7, 1])},
    "more tokens to write": {"max_new_tokens": 4},
    "expected answer": {"facts": {"expected": ["8"]}},
    "chance": {"chance": 0.5},
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("question", [question_hash(ASKED), None], ids=["hash", "text of an earlier version"])
def test_a_sample_answers_no_question_that_differs_in_anything(name: str, question: str | None) -> None:
    held = kept_sample(question=question)
    assert answers_question(held, ASKED, WORDS)
    assert not answers_question(held, replace(ASKED, **OTHERS[name]), WORDS)


def test_a_hash_tells_what_a_model_is_given_and_no_more() -> None:
    one = question_hash(ASKED)
    assert one == question_hash(
        replace(ASKED, prompt=TEXT.astype(np.int32), facts={}, answer=" 7", index=5, chance=0.1)
    )
    changed: dict[str, Any] = {"until": (), "messages": (("user", "a"),), "thought": 2, "text_tokens": 3}
    found = {question_hash(replace(ASKED, **{name: value})) for name, value in changed.items()}
    assert len(found | {one}) == 5
    options = [np.array([1, 2]), np.array([3])]
    choice = Choose(index=0, cluster="", prompt=TEXT, options=tuple(options), expected=0)
    assert question_hash(choice) != question_hash(replace(choice, options=(np.array([1]), np.array([2, 3]))))
    scored = Loglikelihood(index=0, cluster="", tokens=TEXT, first_target=2, bytes=1, words=1)
    assert question_hash(scored) != question_hash(replace(scored, first_target=3))


def test_two_answers_are_of_one_model_where_texts_agree_and_likelihoods_but_for_rounding() -> None:
    one = kept_sample(output=None, nll=np.array([2.0, 3.0], np.float32))
    assert is_same_answer(one, replace(one, nll=np.array([2.02, 2.99], np.float32)))  # 0.015 nats on average
    assert not is_same_answer(one, replace(one, nll=np.array([2.2, 2.9], np.float32)))  # 0.15
    assert not is_same_answer(one, replace(one, nll=np.array([2.0], np.float32)))
    assert not is_same_answer(kept_sample(), kept_sample(output="8"))
    assert not is_same_answer(kept_sample(), kept_sample(failed="no answer"))


def test_the_two_questions_are_asked_that_tell_models_apart() -> None:
    """Right answers are every good model's."""
    worth = {0: 1.0, 1: 0.0, 2: 1.0, 3: 0.0}
    kept = [kept_sample(index=index, scores={"accuracy": value}) for index, value in worth.items()]
    asked: list[int] = []

    def ask(some: Sequence[AnyQuestion]) -> list[Sample]:
        asked.extend(each.index for each in some)
        return [kept[each.index] for each in some]

    assert is_same_model(kept, [replace(ASKED, index=index) for index in range(5)], ask)
    assert asked == [1, 3]


def run(folder: Path, **changed: object) -> lexbench.Run:
    settings: dict[str, object] = {"task": "passkey", "lengths": [128], "n": 4, "backend": "chance"}
    return lexbench.run("lexlet", results=folder, **{**settings, **changed})  # type: ignore[arg-type]


def counted_questions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    ask, asked = answers.answer_question, list[int]()

    def noted(backend: Any, question: AnyQuestion) -> Any:
        asked.append(question.index)
        return ask(backend, question)

    monkeypatch.setattr(answers, "answer_question", noted)
    return asked


@pytest.mark.parametrize("changed", ["cluster", "prompt", "facts", "chance"])
def test_a_task_whose_data_have_changed_keeps_no_old_answer(
    changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A task of the user's own reads a file; between n=4 and n=6 all questions but the first became others."""
    asked = counted_questions(monkeypatch)
    run(tmp_path, n=4)
    plain = made_once.of

    def other(question: Any) -> Any:
        facts = {**question.facts, "expected": "77777"}
        new = {"cluster": "other", "prompt": np.flip(question.prompt), "facts": facts, "chance": 0.25}
        return replace(question, **{changed: new[changed]})

    def shifting(task: Task, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Any:
        made, refused = plain(task, tokenizer, length, n, seed)
        return [made[0], *map(other, made[1:])], refused

    monkeypatch.setattr(made_once, "of", shifting)
    asked.clear()
    with caplog.at_level(logging.WARNING):
        run(tmp_path, n=6)
    assert sorted(asked) == [1, 2, 3, 4, 5]
    assert "3 samples of an earlier run asked something else: asked again" in caplog.text


@pytest.mark.parametrize(("first", "then", "taken"), [("a", "a", 3), ("a", "b", 0)])
def test_a_server_of_unknown_weights_is_asked_two_kept_questions_again(
    first: str, then: str, taken: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = counted_questions(monkeypatch)
    monkeypatch.setattr("lexbench.backends.chance.Chance.weights_known", False, raising=False)
    write = Chance.write
    said = {"text": first}
    monkeypatch.setattr(Chance, "write", lambda self, question: replace(write(self, question), text=said["text"]))
    run(tmp_path, n=3)
    asked.clear()
    said["text"] = then
    run(tmp_path, n=6)
    assert len(asked) == 2 + 6 - taken
    (cell,) = [each for each in Store(tmp_path).load() if each.cell.n == 6]
    assert [sample.output for sample in cell.samples] == [first] * taken + [then] * (6 - taken)


def test_an_interrupted_cell_goes_on_only_with_the_server_that_began_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lexbench.backends.chance.Chance.weights_known", False, raising=False)
    write, said = Chance.write, {"text": "a", "left": 3}

    def speak(self: Chance, question: Generate) -> GenerateAnswer:
        if not said["left"]:
            raise KeyboardInterrupt
        said["left"] -= 1  # type: ignore[operator]
        return replace(write(self, question), text=str(said["text"]))

    monkeypatch.setattr(Chance, "write", speak)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, n=6)
    said.update(text="b", left=8)
    run(tmp_path, n=6)
    (cell,) = Store(tmp_path).load()
    assert [sample.output for sample in cell.samples] == ["b"] * 6


def test_an_answer_that_was_changed_in_the_file_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = counted_questions(monkeypatch)
    run(tmp_path, n=4)
    (before,) = Store(tmp_path).load()
    file = tmp_path / "cells" / f"{before.cell.id}.parquet"
    samples = [*before.samples]
    samples[1] = replace(samples[1], output="another")
    file.unlink()
    store = Store(tmp_path)
    for sample in samples:
        store.append(before.cell, sample)
    store.finish(before.cell, range(4))
    asked.clear()
    run(tmp_path, n=6)
    assert sorted(asked) == [1, 4, 5]
    assert with_checksum(before.samples[1]).checksum == before.samples[1].checksum


@pytest.mark.slow
def test_a_killed_run_loses_no_second_of_its_answers(tmp_path: Path) -> None:
    """Each answer takes a tenth of a second: those before and after the kill."""
    slow = slow_backend(tmp_path)
    words = [word for word in command(tmp_path / "run") if not word.startswith(("task=", "lengths="))]
    words += ["task=passkey", "lengths=[128]"]
    process = subprocess.Popen(words, env=slow, **QUIET)
    wait_for(tmp_path / "run", 3, process)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(60)
    assert not (tmp_path / "run/costs.jsonl").exists()
    time.sleep(0.5)  # nobody measures meanwhile
    subprocess.run(words, check=True, env=slow, **QUIET)
    (row,) = [json.loads(line) for line in (tmp_path / "run/costs.jsonl").read_text().splitlines()]
    assert (row["tokens"], row["indices"], len(row["timings"])) == (6 * 128, [0, 1, 2, 3, 4, 5], 6)
    assert 0.6 <= sum(seconds for seconds, _ in row["timings"]) <= row["seconds"]


def test_a_cell_that_takes_some_of_a_smaller_one_s_answers_takes_their_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = made_once.of
    run(tmp_path, n=4)
    (first,) = [json.loads(line) for line in (tmp_path / "costs.jsonl").read_text().splitlines()]

    def shifting(task: Task, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Any:
        made, refused = plain(task, tokenizer, length, n, seed)
        return [replace(made[0], cluster="another"), *made[1:]], refused

    monkeypatch.setattr(made_once, "of", shifting)
    run(tmp_path, n=6)
    *_, last = [json.loads(line) for line in (tmp_path / "costs.jsonl").read_text().splitlines()]
    # Answers of lines without a batch: the timings of the three that were taken stand first.
    taken = [timing for index, timing in zip(first["indices"], first["timings"], strict=True) if index != 0]
    assert last["timings"][:3] == taken and sorted(last["indices"]) == [0, 1, 2, 3, 4, 5]
    assert last["tokens"] == 6 * 128
