"""A real vLLM server: the numbers of transformers, by the words of our own export, and nothing lost when it dies."""

import json
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lexbench
from lexbench.backends.hf.backend import Hf
from lexbench.checkpoints.checkpoint import read_model
from lexbench.checkpoints.tokenizer import load_tokenizer
from lexbench.commands import main
from lexbench.core import registry
from lexbench.core.model import Model
from lexbench.core.record import Deferred, Refused
from lexbench.core.task import Choose, ClassifyTokens, Generate, GenerateAnswer, Loglikelihood
from lexbench.methods.export import as_data
from lexbench.parts.serving.openai import http
from lexbench.parts.serving.openai.backend import OpenAI
from lexbench.store.format import FinishedCell
from lexbench.store.store import Store
from tests.parts.serving.vllm.engines import without_workers
from tests.parts.serving.vllm.server import VllmServer

LEXLET = registry.PACKAGE_FOLDER / "lexlet"
FACTS = registry.read_named_config("model", "lexlet")
MODEL = read_model(FACTS)
STAR = 11
"""The token `*`, at which the model is made to end: its own end token it never writes."""
LONGEST = 512
YARN = {"name": "yarn", "factor": 2}
"""What the server is started with: twice the trained length."""
METHOD = lexbench.method("yarn", factor=2)
[TEXT] = lexbench.task("last_segment", corpus="synthetic").questions(load_tokenizer(LEXLET), LONGEST, 1, 0)
assert isinstance(TEXT, Loglikelihood)
TOKENS = TEXT.tokens
TOLERANCE = 2e-4
"""Nats: two implementations in float32."""
KEY = "sk-real-server-0123456789"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    folder = Path(shutil.copytree(LEXLET, tmp_path_factory.mktemp("model") / "lexlet"))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    turns = "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}"
    # With BOS: answers to texts without one are near ties, in which a text and the same tokens may part.
    template = "{{ bos_token }}" + turns + "[assistant]"
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": template}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, STAR], "repetition_penalty": 1.5}))
    log = tmp_path_factory.mktemp("server") / "log"
    running = VllmServer(folder, "lexlet", as_data(METHOD, "yarn", MODEL, LONGEST, "vllm"), log, "--api-key", KEY)
    try:
        with without_workers():
            running.start()
            running.wait()
            yield running
    finally:
        running.kill()


@pytest.fixture(autouse=True)
def with_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_KEY", KEY)


def model_of(server: VllmServer) -> Model:
    """The model of its folder."""
    return read_model({**FACTS, "path": str(server.folder)})


def opened(server: VllmServer, **changed: Any) -> OpenAI:
    settings = {"url": server.url, "serves": YARN, "key_variable": "SERVER_KEY", "dtype": "float32"}
    return OpenAI(model_of(server), **{**settings, **changed})


@pytest.fixture
def backend(server: VllmServer) -> Iterator[OpenAI]:
    built = opened(server)
    built.attend(METHOD.attention(MODEL, LONGEST))
    yield built
    built.close()


@pytest.fixture(scope="module")
def hf(server: VllmServer) -> Hf:
    built = Hf(model_of(server))
    built.attend(METHOD.attention(MODEL, LONGEST))
    return built


@pytest.mark.parametrize("length", [64, LONGEST])
def test_scores_are_those_of_transformers_up_to_the_last_token_that_the_server_holds(
    backend: OpenAI, hf: Hf, length: int
) -> None:
    for start in (1, length - 1):
        question = Loglikelihood(index=0, cluster="a", tokens=TOKENS[:length], first_target=start, bytes=1, words=1)
        np.testing.assert_allclose(backend.score(question).nll, hf.score(question).nll, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("length", [64, LONGEST])
def test_choices_and_marks_are_those_of_transformers(backend: OpenAI, hf: Hf, length: int) -> None:
    options = tuple(np.random.default_rng(size).integers(3, 2000, size) for size in (1, 4, 2, 4))
    choose = Choose(index=0, cluster="a", prompt=TOKENS[: length - 4], options=options, expected=0)
    np.testing.assert_allclose(backend.choose(choose).nll, hf.choose(choose).nll, atol=TOLERANCE, rtol=0)
    tokens, places = TOKENS[:length].copy(), np.array([9, length // 2, length - 1])
    tokens[places] = [7, 9, 8]
    mark = ClassifyTokens(index=0, cluster="a", tokens=tokens, places=places, options=np.arange(3, 303))
    np.testing.assert_allclose(backend.mark(mark).nll, hf.mark(mark).nll, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("until", [(), (".",)])
def test_greedy_tokens_are_those_of_transformers(backend: OpenAI, hf: Hf, until: tuple[str, ...]) -> None:
    """Some fill their room, others end at the star or at the text; no penalty of the model's folder is applied."""
    sizes = (48, 60, 200, LONGEST - 64)
    questions = [Generate(index=0, cluster="a", prompt=TOKENS[:size], max_new_tokens=64, until=until) for size in sizes]
    ours, theirs = [hf.write(question) for question in questions], list(backend.answers(questions))
    assert {answer.hit_room for answer in ours} == ({False} if until else {True, False})
    for one, other in zip(ours, theirs, strict=True):
        assert isinstance(other, GenerateAnswer)
        assert other.tokens.tolist() == one.tokens.tolist() and STAR not in one.tokens
        assert (other.text, other.hit_room) == (one.text, one.hit_room)


def test_a_chat_answer_is_that_of_the_same_tokens_and_its_counts_hold(server: VllmServer, backend: OpenAI) -> None:
    chat = opened(server, chat=True)
    try:
        for room in (6, 8):
            [question] = lexbench.task("passkey", room=room).questions(chat.tokenizer, 300, 1, 0)
            assert isinstance(question, Generate)
            written = chat.write(question)
            assert written.text == backend.write(question).text
            assert written.hit_room, "the counts of an answer that fills its room are those that were asked"
    finally:
        chat.close()


def test_it_says_what_it_is(server: VllmServer, backend: OpenAI) -> None:
    import vllm

    assert backend.version == f"vLLM {vllm.__version__}"
    assert backend.revision.startswith(f"lexlet ({server.folder}, vllm-{vllm.__version__}-")
    assert backend.revision.endswith(f", max_model_len {LONGEST})")
    with pytest.raises(Deferred, match=r"serves yarn\(factor=2\)"):
        backend.attend(lexbench.method("none").attention(MODEL, LONGEST))


def test_what_it_turns_by_is_named(server: VllmServer, tmp_path: Path) -> None:
    file, short = str(tmp_path / "lexlet.npz"), ["corpus=synthetic", "length=96", "n=6"]
    assert main.main(["fingerprint", "model=lexlet", *short, "--out", file]) == 0
    words = ["model=lexlet", "backend=openai", f"backend.url={server.url}", "backend.key_variable=SERVER_KEY"]
    assert main.main(["identify", file, *words, "--expect", "YaRN 2"]) == 0
    assert main.main(["identify", file, *words, "--expect", "plain"]) == 1


def test_what_it_refuses_is_said_in_its_words(backend: OpenAI) -> None:
    question = Loglikelihood(index=0, cluster="a", tokens=np.append(TOKENS, 5), first_target=1, bytes=1, words=1)
    with pytest.raises(Refused, match=r"HTTP 400: .*512 tokens") as refusal:
        backend.score(question)
    assert not isinstance(refusal.value, Deferred) and "\n" not in refusal.value.reason


def test_without_its_key_it_answers_nothing(server: VllmServer) -> None:
    with pytest.raises(ValueError, match=r"HTTP 401: .*set NO_SUCH_KEY"):
        opened(server, key_variable="NO_SUCH_KEY")
    with pytest.raises(ValueError, match=r"does not serve 'other': give backend\.served=NAME from lexlet"):
        opened(server, served="other")


TEXTS, MARKS = {"name": "last_segment", "targets": 32}, {"name": "recall"}


def run(folder: Path, backend: dict[str, Any], *tasks: dict[str, Any]) -> list[FinishedCell]:
    """A cell of each task."""
    lexbench.run("lexlet", YARN, tasks, lengths=[256], corpus="synthetic", n=24, results=folder, backend=backend)
    return sorted(Store(folder).load(), key=lambda finished: finished.cell.task)


def samples_kept(folder: Path) -> bool:
    """Whether five samples of an unfinished cell lie there."""
    return any(file.read_bytes().count(b"\n") > 5 for file in folder.glob("cells/*.jsonl"))


def numbers(finished: FinishedCell) -> np.ndarray:
    """Every likelihood of a cell."""
    rows = [sample.nll if sample.nll is not None else sample.statistics["nll"] for sample in finished.samples]
    return np.concatenate([np.ravel(row) for row in rows])


def test_a_run_through_a_server_that_is_killed_and_comes_back_is_whole(
    server: VllmServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {**registry.read_named_config("backend", "openai"), "name": "openai", "url": server.url, "serves": YARN}
    config |= {"key_variable": "SERVER_KEY", "concurrency": 2}
    monkeypatch.setattr(http, "LONGEST_PAUSE", 2.0)
    whole = run(tmp_path / "whole", config, TEXTS, MARKS)
    own = run(tmp_path / "hf", {**registry.read_named_config("backend", "hf"), "name": "hf"}, TEXTS, MARKS)
    found: list[FinishedCell] = []
    runner = threading.Thread(
        target=lambda: found.extend(run(tmp_path / "died", {**config, "retries": 200}, TEXTS, MARKS))
    )
    runner.start()
    while not samples_kept(tmp_path / "died"):
        assert runner.is_alive()
        time.sleep(0.005)
    server.kill()
    server.start()
    server.wait()
    runner.join()
    for one, other, theirs in zip(found, whole, own, strict=True):
        assert one.refused is None and len(one.samples) == 24
        assert one.cell.id == other.cell.id  # the same server, by all that it says of itself
        np.testing.assert_allclose(numbers(one), numbers(other), atol=TOLERANCE, rtol=0)
        np.testing.assert_allclose(numbers(one), numbers(theirs), atol=TOLERANCE, rtol=0)
    written = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert not any(KEY.encode() in content for content in written)


def test_a_server_that_stays_away_leaves_its_cell_to_the_next_run(server: VllmServer, tmp_path: Path) -> None:
    """The last test: it leaves no server."""
    config = {**registry.read_named_config("backend", "openai"), "name": "openai", "url": server.url, "serves": YARN}
    config |= {"key_variable": "SERVER_KEY", "retries": 1, "concurrency": 1}
    found: list[FinishedCell] = []
    runner = threading.Thread(target=lambda: found.extend(run(tmp_path, config, TEXTS)))
    runner.start()
    while not samples_kept(tmp_path):
        assert runner.is_alive()
        time.sleep(0.005)
    server.kill()
    runner.join()
    [cell] = found
    assert "does not answer" in str(cell.refused) and "2 attempts" in str(cell.refused)
    assert 5 <= len(Store(tmp_path).resume(cell.cell)) < 24
    assert not Store(tmp_path).is_finished(cell.cell)
