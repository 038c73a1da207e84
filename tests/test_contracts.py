"""What every entry of the registry must hold, ours and a plug-in's alike."""

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import lexbench
from lexbench import (
    AnyQuestion,
    Attention,
    Choose,
    ClassifyTokens,
    Generate,
    Loglikelihood,
    LoglikelihoodAnswer,
    MeasureDivergence,
    Model,
    ProbeAttention,
    Refused,
)
from lexbench.checkpoints.tokenizer import FastTokenizer, load_tokenizer
from lexbench.core import objects, registry
from lexbench.core.attention import Shift
from lexbench.corpora.stdlib import Stdlib
from lexbench.corpora.synthetic import Synthetic
from lexbench.runner.job import Job
from tests.answerers import asked_tokens, perfect, uniform, written
from tests.key_files import key_file

LLAMA = Model(name="llama", trained_length=256, head_dim=32, rope_base=10000.0, rotary_dim=16, layers=4, heads=4)
NO_ROPE = Model(name="learned", trained_length=256, head_dim=32)
LENGTHS = [160, 256, 480]
METHODS = registry.registered_names("method")


def asks_for_data(name: str) -> bool:
    """Whether a task is over data that is not here; its own tests hold the same over stand-ins."""
    cls = objects.class_of(registry.read_named_config("task", name), "task")
    return "data" in objects.class_parameters(cls) and name not in ("distractor_qa",)  # which makes its own without


TASKS = [
    name
    for name in registry.registered_names("task")
    if "suite" not in registry.read_named_config("task", name) and not asks_for_data(name)
]
CORPUS = Synthetic(words=1500)


def made(name: str, keys: Path) -> lexbench.Task:
    """A task; key tokens, where it takes them, come from a file that is written here."""
    given = {}
    corpus = Stdlib() if name == "next_line" else CORPUS
    if name == "long_ppl":
        spans = {
            document.name: [[place, place + 5] for place in range(600, 6000, 600)] for document in corpus.documents()
        }
        given["keys"] = key_file(keys, corpus, spans, 32)
    return lexbench.task(name, corpus=corpus, **given).for_lengths(LENGTHS)


@pytest.fixture(scope="module", params=TASKS)
def task(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> lexbench.Task:
    return made(request.param, tmp_path_factory.mktemp("keys") / "keys.jsonl")


def same(left: Sequence[AnyQuestion], right: Sequence[AnyQuestion]) -> bool:
    said = [[(list(asked_tokens(q)), q.facts, q.cluster) for q in questions] for questions in (left, right)]
    return said[0] == said[1]


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
    module = registry.read_named_config("method", name)["_target_"].split(".")
    if module[0] == "lexbench":  # an installed package has modules of its own
        assert module[:3] in (["lexbench", "methods", name], ["lexbench", "parts", name])


@pytest.mark.parametrize("name", METHODS)
def test_a_method_that_changes_rotation_refuses_a_model_without_it(name: str) -> None:
    method = lexbench.method(name)
    rotary = {"inv_freq", "remap", "scale", "keep_first", "head_ratios", "dynamic", "mixture"}
    if any(rotary & set(part.slots()) for part in method.attention(LLAMA, 1024).parts()):
        with pytest.raises(Refused, match="rotary"):
            method.attention(NO_ROPE, 1024)
    else:
        assert isinstance(method.attention(NO_ROPE, 1024), Attention)


def asked(task: lexbench.Task, tokenizer: FastTokenizer, length: int, n: int) -> Sequence[AnyQuestion]:
    """Questions, or none where the length is too short for the task with this tokenizer of few words."""
    try:
        return task.questions(tokenizer, length, n, 0)
    except Refused as refusal:
        if length == LENGTHS[-1] or "raise length" not in refusal.reason:
            raise
        return []


def test_questions_have_exactly_the_asked_length(task: lexbench.Task, tokenizer: FastTokenizer) -> None:
    for length in LENGTHS:
        questions = asked(task, tokenizer, length, 5)
        if not questions:
            continue
        longest = max(question.length for question in questions)
        if questions[0].layout is not None:  # distances are drawn from the upper half of the length
            assert length / 2 < longest <= length
            continue
        shift = task.attention(length).remap  # of offset, which reads a short text whose positions end at the length
        length -= shift.offset if isinstance(shift, Shift) else 0
        if any(question.layout for question in questions):  # distances of an octave, up to the length
            assert longest <= length
            continue
        assert longest == length
        if not isinstance(questions[0], Loglikelihood) or "context" in task.protocol(tokenizer):
            assert {question.length for question in questions} == {length}


def test_questions_follow_from_seed_and_index_alone(task: lexbench.Task, tokenizer: FastTokenizer) -> None:
    questions = task.questions(tokenizer, 480, 4, 0)
    assert same(questions, task.questions(tokenizer, 480, 4, 0))
    more = task.questions(tokenizer, 480, 8, 0)
    assert same(questions, more[: len(questions)])
    assert len({tuple(asked_tokens(question)) for question in more}) == len(more)
    assert not same(questions, task.questions(tokenizer, 480, 4, 1))


def hashes(names: Sequence[str], keys: Path) -> dict[str, str]:
    """By task a hash of the first questions for the embedded model."""
    lexlet = load_tokenizer(Path(lexbench.__file__).parent / "lexlet")
    found = {}
    for name in names:
        questions = made(name, keys).questions(lexlet, 480, 3, 0)
        said = [(asked_tokens(q).tolist(), dict(q.facts), q.cluster) for q in questions]
        found[name] = hashlib.sha256(json.dumps(said).encode()).hexdigest()
    return found


@pytest.mark.slow
def test_another_process_asks_the_same_in_any_order(tmp_path: Path) -> None:
    code = f"""
import json, pathlib
from tests.test_contracts import TASKS, hashes
print(json.dumps(hashes(TASKS[::-1], pathlib.Path({str(tmp_path)!r}) / "keys.jsonl")))
"""
    # Without the folder of own tasks that the tests of this process may have.
    environment = {key: value for key, value in os.environ.items() if key != "LEXBENCH_CONFIG_PATH"}
    environment["PYTHONHASHSEED"] = "7"
    root = Path(__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root, env=environment
    )
    assert json.loads(done.stdout) == hashes(TASKS, tmp_path / "own.jsonl")


def test_a_flawless_model_scores_exactly_one_at_every_length(task: lexbench.Task, tokenizer: FastTokenizer) -> None:
    for length in LENGTHS:
        for question in asked(task, tokenizer, length, 3):
            if isinstance(question, ProbeAttention | MeasureDivergence):
                pytest.skip("there is no right answer")
            sample = task.score(question, perfect(question, tokenizer))
            assert sample.failed is None
            assert sample.tokens == question.length
            if isinstance(question, Loglikelihood):
                assert sample.nll is not None
                assert sample.nll.sum() == 0
            else:
                others = {each.name for each in task.metrics if each.unit != "points"}
                assert {value for name, value in sample.scores.items() if name not in others} <= {1.0}
            if isinstance(question, Generate):
                assert len(tokenizer.encode(question.answer).ids) <= question.max_new_tokens


@pytest.mark.slow
def test_guessing_gives_the_chance_level_at_every_length(task: lexbench.Task, tokenizer: FastTokenizer) -> None:
    rng = np.random.default_rng(0)
    for length in LENGTHS:
        questions = [q for q in asked(task, tokenizer, length, 16) if isinstance(q, Generate | Choose | ClassifyTokens)]
        samples = [task.score(question, uniform(question, tokenizer, rng)) for question in questions]
        if questions and isinstance(questions[0], Generate):  # random tokens are no guess among the possible answers
            assert all(sample.chance is not None and 0 <= sample.chance < 1 for sample in samples)
            assert sum(sample.scores["accuracy"] for sample in samples) <= 1
        for question, sample in zip(questions, samples, strict=True):
            if isinstance(question, Choose | ClassifyTokens):
                assert sample.chance == question.chance
        choices = [q for q in questions if isinstance(q, Choose) and len({len(o) for o in q.options}) == 1]
        for question in choices:
            guess = task.score(question, uniform(question, tokenizer, rng))
            assert guess.scores["accuracy"] <= question.chance + 1e-9  # a guess from the text may be better


def test_nothing_and_an_echo_of_the_prompt_score_nothing(task: lexbench.Task, tokenizer: FastTokenizer) -> None:
    for question in task.questions(tokenizer, 480, 3, 0):
        if not isinstance(question, Generate):
            pytest.skip("nothing is written")
        empty = task.score(question, written("", tokenizer))
        assert set(empty.scores.values()) == {0.0}
        echo = task.score(question, written(tokenizer.decode(question.prompt), tokenizer))
        assert echo.scores["accuracy"] < 1


def test_a_likelihood_that_is_no_number_has_failed(task: lexbench.Task, tokenizer: FastTokenizer) -> None:
    for question in task.questions(tokenizer, 480, 3, 0):
        if isinstance(question, Loglikelihood):
            lost = np.full(question.length - question.first_target, np.nan, np.float32)
            assert task.score(question, LoglikelihoodAnswer(nll=lost)).failed


def test_depths_are_stratified_with_equal_counts(task: lexbench.Task, tokenizer: FastTokenizer) -> None:
    strata = getattr(task, "strata", None)
    if strata is None:
        pytest.skip("has no depths")
    samples = [task.score(q, perfect(q, tokenizer)) for q in task.questions(tokenizer, 480, 4 * strata, 0)]
    assert all(sample.depth is not None for sample in samples)
    counts = np.bincount([min(int((s.depth or 0) * strata), strata - 1) for s in samples], minlength=strata)
    assert counts.sum() == 4 * strata
    assert counts.max() <= 12  # 4 are asked of each; sentences of a short text leave few places


def test_a_task_names_its_protocol_in_one_line(task: lexbench.Task, tokenizer: FastTokenizer) -> None:
    protocol = task.protocol(tokenizer)
    assert "BOS" in protocol
    assert "\n" not in protocol


def test_a_length_too_short_is_refused_with_a_number(task: lexbench.Task, tokenizer: FastTokenizer) -> None:
    with pytest.raises(Refused, match=r"\d"):
        task.for_lengths([4]).questions(tokenizer, 2, 1, 0)


@pytest.mark.parametrize("name", [*registry.registered_names("model")])
def test_a_model_yaml_states_only_facts(name: str) -> None:
    known = {field.name for field in dataclasses.fields(Model)}
    assert set(registry.read_named_config("model", name)) <= known


@pytest.mark.everyday("stdlib", "pydoc")
@pytest.mark.usefixtures("documents_afresh")
@pytest.mark.parametrize("name", ["stdlib", "pydoc", "synthetic"])
def test_a_corpus_gives_the_same_documents_twice(name: str) -> None:
    corpus = lexbench.corpus(name)
    first = list(corpus.documents())
    assert first == list(corpus.documents())
    assert len({document.name for document in first}) == len(first)
    assert corpus.fingerprint() == corpus.fingerprint()


@pytest.mark.parametrize("group", ["method", "corpus", "backend"])
def test_file_yaml_and_config_name_are_one(group: str) -> None:
    for name in registry.registered_names(group):
        stated = registry.read_named_config(group, name)  # of a corpus with parameters: a data set by its own name
        assert stated["_target_"].split(".")[-2] in (name, "backend") or (group == "corpus" and len(stated) > 1)


@pytest.mark.parametrize("name", TASKS)
def test_task_file_and_yaml_have_one_name(name: str) -> None:
    stated = registry.read_named_config("task", name)
    assert stated["file"] == f"{name}.py" or len(stated) > 1  # a form of another task sets some of its parameters


def test_a_refusal_becomes_a_record(tmp_path: Path) -> None:
    run = lexbench.run("lexlet", task="passkey", lengths=[16, 128], n=2, backend="chance", results=tmp_path)
    rows = run.records()
    refused = rows[rows.length == 16]
    assert list(refused.value.isna()) == [True]
    assert "needs at least" in refused.refused.iloc[0]
    assert rows[rows.length == 128].refused.isna().all()


def test_a_job_is_checked_before_anything_is_loaded() -> None:
    with pytest.raises(ValueError, match="n must be a whole number of at least 1"):
        Job.of(
            model=LLAMA,
            methods=[{"name": "none", **registry.read_named_config("method", "none")}],
            tasks=[{"name": "passkey", **registry.read_named_config("task", "passkey")}],
            corpus={"name": "synthetic", **registry.read_named_config("corpus", "synthetic")},
            backend={"name": "chance"},
            lengths=[128],
            multiples=[],
            n=0,
            seeds=[0],
            results=None,
        )
