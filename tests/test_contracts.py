"""What every entry of the registry must hold, ours and a plug-in's alike."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import lexbench
from lexbench import Answer, AnyQuestion, Attention, Model, Refused, Score, Scored, Write, Written, assets
from lexbench.corpora.synthetic import Synthetic
from lexbench.runner import Job
from lexbench.tokenizer import FastTokenizer

LLAMA = Model(name="llama", trained_length=256, head_dim=32, rope_base=10000.0, rotary_dim=16, layers=4, heads=4)
NO_ROPE = Model(name="learned", trained_length=256, head_dim=32)
LENGTHS = [160, 256, 480]
METHODS = assets.names("method")
TASKS = [name for name in assets.names("task") if "suite" not in assets.read("task", name)]
SUITES = [name for name in assets.names("task") if "suite" in assets.read("task", name)]
CORPUS = Synthetic()


@pytest.fixture(scope="module", params=TASKS)
def task(request: pytest.FixtureRequest) -> lexbench.Task:
    return lexbench.task(request.param, corpus=CORPUS).for_lengths(LENGTHS)


def tokens(question: AnyQuestion) -> list[int]:
    return list(question.prompt if isinstance(question, Write) else question.tokens)


def same(left: Sequence[AnyQuestion], right: Sequence[AnyQuestion]) -> bool:
    return [(tokens(a), a.facts, a.cluster) for a in left] == [(tokens(b), b.facts, b.cluster) for b in right]


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_frozen_pure_and_plain_data(name: str) -> None:
    method = lexbench.method(name)
    for field in dataclasses.fields(method):  # type: ignore[arg-type]
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(method, field.name, 1)
    for length in LENGTHS:
        first, second = method.attention(LLAMA, length), method.attention(LLAMA, length)
        assert isinstance(first, Attention)
        assert first.as_data() == second.as_data()
        json.dumps(first.as_data(), allow_nan=False)
    module = assets.read("method", name)["_target_"].split(".")
    assert module[:3] == ["lexbench", "methods", name]


@pytest.mark.parametrize("name", METHODS)
def test_a_method_that_changes_rotation_refuses_a_model_without_it(name: str) -> None:
    method = lexbench.method(name)
    rotary = {"inv_freq", "remap", "scale", "keep_first", "head_ratios", "dynamic", "mixture"}
    if any(rotary & set(part.slots()) for part in method.attention(LLAMA, 1024).parts()):
        with pytest.raises(Refused, match="rotary"):
            method.attention(NO_ROPE, 1024)
    else:
        assert isinstance(method.attention(NO_ROPE, 1024), Attention)


def test_questions_have_exactly_the_asked_length(task: lexbench.Task, tokenizer: FastTokenizer) -> None:
    for length in LENGTHS:
        questions = task.questions(tokenizer, length, 5, 0)
        assert questions
        longest = max(question.length for question in questions)
        assert longest == length
        if isinstance(questions[0], Write) or "context" in task.protocol(tokenizer):
            assert {question.length for question in questions} == {length}


def test_questions_follow_from_seed_and_index_alone(task: lexbench.Task, tokenizer: FastTokenizer) -> None:
    questions = task.questions(tokenizer, 256, 4, 0)
    assert same(questions, task.questions(tokenizer, 256, 4, 0))
    more = task.questions(tokenizer, 256, 8, 0)
    assert same(questions, more[: len(questions)])
    assert len({tuple(tokens(question)) for question in more}) == len(more)
    assert not same(questions, task.questions(tokenizer, 256, 4, 1))


def test_a_right_answer_scores_one_and_an_empty_one_nothing(task: lexbench.Task, tokenizer: FastTokenizer) -> None:
    for question in task.questions(tokenizer, 256, 3, 0):
        if isinstance(question, Write):
            for text, value in ((f" {question.facts['expected']}", 1.0), ("", 0.0)):
                answer: Answer = Written(tokens=tokenizer.encode(text).ids, text=text, hit_room=False)
                assert set(task.score(question, answer).scores.values()) == {value}
        else:
            assert isinstance(question, Score)
            targets = question.length - question.start
            perfect = task.score(question, Scored(nll=np.zeros(targets, np.float32)))
            assert perfect.nll is not None
            assert perfect.nll.sum() == 0
            lost = task.score(question, Scored(nll=np.full(targets, np.nan, np.float32)))
            assert lost.failed


def test_a_task_names_its_protocol_in_one_line(task: lexbench.Task, tokenizer: FastTokenizer) -> None:
    protocol = task.protocol(tokenizer)
    assert "BOS" in protocol
    assert "\n" not in protocol


def test_a_length_too_short_is_refused_with_a_number(task: lexbench.Task, tokenizer: FastTokenizer) -> None:
    with pytest.raises(Refused, match=r"\d"):
        task.for_lengths([4]).questions(tokenizer, 2, 1, 0)


@pytest.mark.parametrize("name", SUITES)
def test_a_suite_names_tasks_of_the_registry(name: str) -> None:
    for part in assets.read("task", name)["suite"]:
        lexbench.task(part if isinstance(part, str) else part["name"], corpus=CORPUS)


@pytest.mark.parametrize("name", [*assets.names("model")])
def test_a_model_yaml_states_only_facts(name: str) -> None:
    known = {field.name for field in dataclasses.fields(Model)}
    assert set(assets.read("model", name)) <= known


@pytest.mark.parametrize("name", ["stdlib", "pydoc", "synthetic"])
def test_a_corpus_gives_the_same_documents_twice(name: str) -> None:
    corpus = lexbench.corpus(name)
    first = list(corpus.documents())
    assert first == list(corpus.documents())
    assert len({document.name for document in first}) == len(first)
    assert corpus.fingerprint() == corpus.fingerprint()


@pytest.mark.parametrize("group", ["method", "corpus", "backend"])
def test_file_yaml_and_config_name_are_one(group: str) -> None:
    for name in assets.names(group):
        assert assets.read(group, name)["_target_"].split(".")[-2] == name


@pytest.mark.parametrize("name", TASKS)
def test_task_file_and_yaml_have_one_name(name: str) -> None:
    assert assets.read("task", name)["file"] == f"{name}.py"


def test_a_refusal_becomes_a_record(tmp_path: Path) -> None:
    run = lexbench.run("lexlet", task="passkey", lengths=[16, 128], n=2, backend="chance", results=tmp_path)
    rows = run.records()
    refused = rows[rows.length == 16]
    assert list(refused.value.isna()) == [True]
    assert "needs at least" in refused.refused.iloc[0]
    assert rows[rows.length == 128].refused.isna().all()


def test_a_job_is_checked_before_anything_is_loaded() -> None:
    with pytest.raises(ValueError, match="n must be at least 1"):
        Job.of(
            model=LLAMA,
            methods=[{"name": "none", **assets.read("method", "none")}],
            tasks=[{"name": "passkey", **assets.read("task", "passkey")}],
            corpus={"name": "synthetic", **assets.read("corpus", "synthetic")},
            backend={"name": "chance"},
            lengths=[128],
            multiples=[],
            n=0,
            seeds=[0],
            results=None,
        )
