"""vLLM's real engine in float32: what it answers under every method, what it refuses, what is caught."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import lexbench
from lexbench.backends.hf.backend import Hf
from lexbench.checkpoints.checkpoint import end_tokens, read_model
from lexbench.checkpoints.tokenizer import load_tokenizer
from lexbench.core import registry
from lexbench.core.attention import Attention
from lexbench.core.model import Model
from lexbench.core.record import Deferred, Refused
from lexbench.core.task import Answer, AnyQuestion, Choose, ClassifyTokens, Generate, Loglikelihood, ProbeAttention
from lexbench.parts.serving.parity import tolerance
from lexbench.parts.serving.vllm.angles import ExpectedAngles, own_angles
from lexbench.parts.serving.vllm.backend import Vllm
from lexbench.parts.serving.vllm.engine import CosSinTable
from lexbench.parts.serving.vllm.worker import Turning
from tests.parts.serving.vllm.engines import without_workers

MODEL = read_model(registry.read_named_config("model", "lexlet"))
LEXLET = registry.PACKAGE_FOLDER / "lexlet"
ENDS = np.array(sorted(end_tokens(LEXLET)), dtype=np.int64)
LENGTHS = (128, 256, 512, 2048)
LONGEST = LENGTHS[-1]
[TEXT] = lexbench.task("last_segment", corpus="synthetic").questions(load_tokenizer(LEXLET), LONGEST, 1, 0)
assert isinstance(TEXT, Loglikelihood)
TOKENS = TEXT.tokens
SHARE = 0.08
"""Of this machine's memory, for each engine of the tests."""
BY_PARTS = lexbench.method("ntk_by_parts").attention(MODEL, 512)
"""Pair by pair: what the engine below is started with."""
METHODS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in ("none", "pi", "ntk", "ntk_by_parts", "yarn", "yarn_paper", "llama3", "abf")),
    ("truncated_basis", {}),
    ("resonance", {}),
    ("longrope", {"long_factors": tuple(np.geomspace(1.0, 8.0, 16).tolist())}),
    ("p_rope", {}),  # pairs that do not turn at all
    ("critical_base", {}),
    ("yarn", {"truncate": False}),
    ("yarn", {"factor": 8, "attention_factor": 1.0}),
]


def allowed_error(length: int) -> float:
    """Nats that one token may differ by."""
    return tolerance.rounding_tolerance(["float32"], length, 1).largest


def alike(question: AnyQuestion, ours: Answer, theirs: Answer, hf: Hf) -> None:
    """Assert that an answer is hf's up to rounding."""
    found = tolerance.answer_differences(question, theirs, ours, hf.choose, ENDS)
    allowed = tolerance.rounding_tolerance(["float32"], question.length, len(found))
    assert found.max() <= allowed.largest and found.mean() <= allowed.mean, question


def score(length: int, start: int | None = None) -> Loglikelihood:
    return Loglikelihood(
        index=0, cluster="a", tokens=TOKENS[:length], first_target=start or length // 2, bytes=1, words=1
    )


@pytest.fixture(scope="module")
def hf() -> Hf:
    return Hf(MODEL)


@pytest.fixture(scope="module")
def engine() -> Iterator[tuple[Vllm, Answer]]:
    """The engine of most tests, and what it answered before a table was written: started by rope parameters alone."""
    backend = Vllm(MODEL, longest=LONGEST, memory_share=SHARE, at_once=16)
    try:
        with pytest.MonkeyPatch.context() as patch, without_workers():
            patch.setattr(backend, "_overwrite_tables", None)  # a call would fail
            backend.attend(BY_PARTS)
        yield backend, backend.score(score(512))
    finally:
        backend.close()


@pytest.fixture(scope="module")
def vllm(engine: tuple[Vllm, Answer]) -> Vllm:
    return engine[0]


def test_an_engine_started_by_rope_parameters_alone_scores_the_same(engine: tuple[Vllm, Answer], hf: Hf) -> None:
    hf.attend(BY_PARTS)
    alike(score(512), engine[1], hf.score(score(512)), hf)


@pytest.mark.parametrize(("name", "given"), METHODS, ids=[f"{name}{given or ''}"[:30] for name, given in METHODS])
def test_every_frequency_method_scores_as_transformers_does(
    hf: Hf, vllm: Vllm, name: str, given: dict[str, Any]
) -> None:
    method = lexbench.method(name, **given)
    for length in LENGTHS:
        attention = method.attention(MODEL, length)
        hf.attend(attention)
        vllm.attend(attention)
        alike(score(length), vllm.score(score(length)), hf.score(score(length)), hf)


@pytest.mark.parametrize("method", ["none", "yarn"])
@pytest.mark.parametrize("task", ["passkey", "recall", "needle"])
def test_what_tasks_ask_is_answered_as_by_transformers(hf: Hf, vllm: Vllm, task: str, method: str) -> None:
    for length in (192, 512):
        [question] = lexbench.task(task, corpus="synthetic").questions(hf.tokenizer, length, 1, 0)
        for backend in (hf, vllm):
            backend.attend(lexbench.method(method).attention(MODEL, length))
        [ours] = vllm.answers([question])
        assert isinstance(question, ClassifyTokens | Generate)
        theirs = hf.mark(question) if isinstance(question, ClassifyTokens) else hf.write(question)
        alike(question, ours, theirs, hf)


def test_the_first_tokens_may_turn_otherwise(hf: Hf, vllm: Vllm) -> None:
    attention = Attention(inv_freq=MODEL.inv_freq() / 4, scale=1.1, keep_first=20)
    for backend in (hf, vllm):
        backend.attend(attention)
    error = abs(vllm.score(score(512, 1)).nll - hf.score(score(512, 1)).nll).max()
    assert error < allowed_error(512)


def test_choices_marks_and_greedy_tokens_are_those_of_transformers(hf: Hf, vllm: Vllm) -> None:
    attention = lexbench.method("yarn").attention(MODEL, 512)
    options = tuple(TOKENS[900 + 5 * size : 900 + 6 * size] for size in (1, 2, 3))
    choose = Choose(index=0, cluster="a", prompt=TOKENS[:400], options=options, expected=0)
    places = np.array([30, 31, 200, 511])
    mark = ClassifyTokens(index=0, cluster="a", tokens=TOKENS[:512], places=places, options=np.unique(TOKENS[places]))
    write = Generate(index=0, cluster="a", prompt=TOKENS[:200], max_new_tokens=40)
    for backend in (hf, vllm):
        backend.attend(attention)
    assert abs(vllm.choose(choose).nll - hf.choose(choose).nll).max() < 6 * allowed_error(512)
    assert abs(vllm.mark(mark).nll - hf.mark(mark).nll).max() < allowed_error(512)
    ours, theirs = vllm.write(write), hf.write(write)
    assert ours.tokens.tolist() == theirs.tokens.tolist()
    assert (ours.text, ours.hit_room) == (theirs.text, theirs.hit_room)


def test_many_questions_at_once_answer_as_each_alone(vllm: Vllm) -> None:
    vllm.attend(Attention())
    questions = [score(length) for length in (64, 512, 300, 2048)]
    for question, answer in zip(questions, vllm.answers(questions), strict=True):
        np.testing.assert_allclose(answer.nll, vllm.score(question).nll, atol=allowed_error(question.length))  # type: ignore[union-attr]


def test_an_answer_ends_where_a_text_stands(hf: Hf, vllm: Vllm) -> None:
    for backend in (hf, vllm):
        backend.attend(Attention())
    whole = hf.write(Generate(index=0, cluster="a", prompt=TOKENS[:100], max_new_tokens=150))
    end = whole.text[40:44]
    asked = Generate(index=0, cluster="a", prompt=TOKENS[:100], max_new_tokens=150, until=(end,))
    found = vllm.write(asked)
    assert end in found.text and len(found.tokens) < 150 and whole.text.startswith(found.text)
    assert not found.hit_room


def test_slots_that_are_no_table_of_angles_are_refused_by_name(vllm: Vllm) -> None:
    for name, slot in (("rerope", "remap"), ("log_n", "query_scale"), ("sliding_window", "mask")):
        with pytest.raises(Refused, match=rf"^vllm cannot realise {slot} on lexlet: .*run it with backend=hf$"):
            vllm.attend(lexbench.method(name).attention(MODEL, 512))
    with pytest.raises(Refused, match="does not return attention weights"):
        vllm.probe(ProbeAttention(index=0, cluster="a", tokens=TOKENS[:64]))


def test_more_tokens_than_the_engine_was_started_for_are_refused(vllm: Vllm) -> None:
    vllm.attend(Attention())
    longer = np.concatenate([TOKENS, TOKENS])
    with pytest.raises(Refused, match="vllm was started for 2048 tokens, asked for 4096"):
        vllm.score(Loglikelihood(index=0, cluster="a", tokens=longer, first_target=8, bytes=1, words=1))


def test_one_engine_serves_all_methods(vllm: Vllm, monkeypatch: pytest.MonkeyPatch) -> None:
    vllm.attend(Attention())
    monkeypatch.setattr(vllm, "_start", None)  # a call would fail
    for name in ("yarn", "pi", "none", "ntk"):
        vllm.attend(lexbench.method(name).attention(MODEL, 512))


def test_what_the_engine_turns_by_is_read_back(vllm: Vllm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "close", lambda: None)  # others need it
    monkeypatch.setattr(vllm, "_failed", {})
    write = vllm._overwrite_tables
    monkeypatch.setattr(vllm, "_overwrite_tables", lambda asked: write(Attention(inv_freq=asked.inv_freq * 1.001)))
    with pytest.raises(Refused, match=r"^vllm does not rotate lexlet correctly: cos and sin of pair \d+ at position"):
        vllm.attend(Attention(inv_freq=MODEL.inv_freq() / 3))


# what a deployment would do, and what goes wrong there


def started(model: Model = MODEL, **given: Any) -> Vllm:
    return Vllm(model, **{"longest": 512, "memory_share": SHARE, "at_once": 4, **given})


@pytest.fixture
def ended() -> Iterator[list[Vllm]]:
    """Backends to end after the test."""
    opened: list[Vllm] = []
    yield opened
    for backend in opened:
        backend.close()


def children() -> int:
    """Processes that this one has."""
    listed = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "stat=,args="], capture_output=True, text=True)
    return sum("ps --ppid" not in line and not line.startswith("Z") for line in listed.stdout.splitlines())


DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
YARN = {"rope_type": "yarn", "factor": 2.0, "rope_theta": 10000.0, "original_max_position_embeddings": 256}


@pytest.mark.parametrize(
    ("rope", "method", "apart"),
    [
        (YARN, "yarn", False),
        ({**YARN, "attention_factor": 1.0}, "yarn", True),  # an attention factor that gets lost
        ({**DYNAMIC, "original_max_position_embeddings": 256}, "ntk", True),
        (DYNAMIC, "ntk", True),  # with no trained length beside it, it leaves the base alone
    ],
)
def test_what_vllm_makes_of_rope_parameters_shows_in_its_rotary_module(
    rope: dict[str, Any], method: str, apart: bool
) -> None:
    """vLLM's own module as its workers hold it, without an engine around it."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.rotary_embedding import get_rope

    with set_current_vllm_config(VllmConfig()):
        rotary = get_rope(MODEL.head_dim, 512, True, rope, torch.float32)
    worker = Turning()
    worker.model_runner = SimpleNamespace(get_model=lambda: torch.nn.ModuleList([rotary]))
    proof = ExpectedAngles(lexbench.method(method).attention(MODEL, 512), own_angles(MODEL, 512), 512, "float32")
    [shown] = worker.lexbench_tables(proof.places.tolist())
    table = CosSinTable(**{**shown, "cos": np.array(shown["cos"]), "sin": np.array(shown["sin"])})
    fault = proof.find_difference([table])
    assert fault is not None and "cos and sin of pair" in fault if apart else fault is None


def test_a_longer_engine_that_rescales_short_texts_is_refused(tmp_path: Path, ended: list[Vllm]) -> None:
    """A checkpoint whose own longrope has other factors beyond its original length: vLLM takes those for all texts."""
    pairs = 16
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * pairs,
        "long_factor": list(np.geomspace(1.0, 4.0, pairs)),
        "original_max_position_embeddings": 256,
        "short_mscale": 1.0,
        "long_mscale": 1.0,
        "attention_factor": 1.0,
        "factor": 4.0,
    }
    model = changed(tmp_path, rope_parameters=rope, max_position_embeddings=1024)
    backend = started(model=model, longest=1024)
    ended.append(backend)
    backend.attend(Attention())
    hf = Hf(model)
    assert abs(backend.score(score(1024)).nll - hf.score(score(1024)).nll).max() < allowed_error(1024)
    with pytest.raises(Refused, match="as at 1024 tokens, but not as at 256: run lengths up to 256 sep"):
        backend.score(score(256))
    processes = children()
    backend.close()
    assert children() < processes  # the engine's have gone, and their memory with them


def changed(folder: Path, **config: Any) -> Model:
    """lexlet under another config."""
    for file in LEXLET.iterdir():
        shutil.copy(file, folder / file.name)
    stated = json.loads((folder / "config.json").read_text())
    stated.pop("rope_theta")
    (folder / "config.json").write_text(json.dumps({**stated, **config}))
    return read_model({"name": "changed", "path": str(folder), "trained_length": 256})


def test_an_engine_that_does_not_start_says_why(ended: list[Vllm]) -> None:
    backend = started(memory_share=1.0)  # more than is free: the worker finds out, in its own process
    ended.append(backend)
    with pytest.raises(Refused, match=r"^vllm's engine does not start \(.*memory.*\): see its requirements"):
        backend.attend(Attention())
    with pytest.raises(Refused, match="does not start"):  # at once: it is not tried again
        backend.attend(Attention())


def test_a_question_that_the_engine_rejects_is_deferred_in_its_words(
    ended: list[Vllm], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in those of an error that it met while it started, and got over: it warms up a chat template."""
    from vllm import LLM

    start = LLM.__init__

    def warned(self: Any, *given: Any, **named: Any) -> None:
        start(self, *given, **named)
        os.write(1, b"WARNING ValueError: Tokenizer not available\n")

    monkeypatch.setattr(LLM, "__init__", warned)
    backend = started(longest=64)
    ended.append(backend)
    backend.attend(Attention())
    beyond = np.array([MODEL.vocabulary or 0])
    with pytest.raises(Deferred, match=r"^vllm's engine gives no answer \(.*vocab"):
        backend.choose(Choose(index=0, cluster="a", prompt=TOKENS[:32], options=(TOKENS[:1], beyond), expected=0))


def test_a_length_that_the_engine_refuses_is_a_refusal(tmp_path: Path, ended: list[Vllm]) -> None:
    shared = Path(os.environ.get("LEXBENCH_SHARED", Path(__file__).parents[5] / "shared")) / "data/gpt-nano-sort-hf"
    if not shared.is_dir():
        pytest.skip("the shared data are not here")
    model = read_model({"name": "sort", "path": str(shared)})
    backend = started(model=model, longest=64)
    ended.append(backend)
    with pytest.raises(Refused, match=r"^vllm's engine does not start \(.*max_model_len.*64"):
        backend.attend(Attention())


def test_ctrl_c_while_the_engine_starts_ends_the_run_and_its_processes(tmp_path: Path) -> None:
    words = ["run", "task=last_segment", "backend=vllm", f"backend.memory_share={SHARE}", f"results={tmp_path / 'run'}"]
    log = (tmp_path / "log").open("w+")
    running = subprocess.Popen(
        [sys.executable, "-m", "lexbench", *words],
        stderr=log,
        env=os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"},
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests in the background ignore it
    )
    listed = ["ps", "-o", "pid=", "-s", str(running.pid)]
    waited = time.monotonic()
    while len(subprocess.run(listed, capture_output=True, text=True).stdout.split()) < 3:  # the engine's own process
        assert running.poll() is None and time.monotonic() - waited < 600
        time.sleep(0.5)
    time.sleep(5)
    os.killpg(running.pid, signal.SIGINT)
    assert running.wait(timeout=300) == 130
    log.seek(0)
    assert "interrupted; all results so far are kept" in log.read()
    time.sleep(5)
    assert not subprocess.run(listed, capture_output=True, text=True).stdout.split()
