"""vLLM's real engine: what it answers, what it refuses, what is caught; test_parity.py has every method."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lexbench
from lexbench import agreement, assets
from lexbench.attention import Attention
from lexbench.backends.hf import Hf
from lexbench.backends.vllm import Vllm
from lexbench.checkpoint import read_model
from lexbench.model import Model
from lexbench.record import Refused
from lexbench.task import Choose, Mark, Probe, Score, Write
from lexbench.tokenizer import load_tokenizer

MODEL = read_model(assets.read("model", "lexlet"))
LEXLET = assets.PACKAGE / "lexlet"
LENGTHS = (512, 2048)
LONGEST = LENGTHS[-1]
[TEXT] = lexbench.task("last_segment", corpus="synthetic").questions(load_tokenizer(LEXLET), LONGEST, 1, 0)
assert isinstance(TEXT, Score)
TOKENS = TEXT.tokens
SHARE = 0.08
"""Of this machine's memory, for each engine of the tests."""
METHODS: list[tuple[str, dict[str, Any]]] = [
    ("p_rope", {}),  # pairs that do not turn at all
    ("critical_base", {}),
    ("yarn", {"truncate": False}),
    ("yarn", {"factor": 8, "attention_factor": 1.0}),
]


def tolerance(length: int) -> float:
    """Nats that one token may differ by."""
    return agreement.tolerance(["float32"], length, 1).largest


def score(length: int, start: int | None = None) -> Score:
    return Score(index=0, cluster="a", tokens=TOKENS[:length], start=start or length // 2, bytes=1, words=1)


@pytest.fixture(scope="module")
def hf() -> Hf:
    return Hf(MODEL)


@pytest.fixture(scope="module")
def vllm() -> Iterator[Vllm]:
    backend = Vllm(MODEL, longest=LONGEST, memory_share=SHARE, at_once=16)
    yield backend
    backend.close()


@pytest.mark.parametrize(("name", "given"), METHODS, ids=[f"{name}{given or ''}"[:30] for name, given in METHODS])
def test_every_frequency_method_scores_as_transformers_does(
    hf: Hf, vllm: Vllm, name: str, given: dict[str, Any]
) -> None:
    method = lexbench.method(name, **given)
    for length in LENGTHS:
        attention = method.attention(MODEL, length)
        hf.attend(attention)
        vllm.attend(attention)
        error = abs(vllm.score(score(length)).nll - hf.score(score(length)).nll).max()
        assert error < tolerance(length), f"{name} at {length}"


def test_the_first_tokens_may_turn_otherwise(hf: Hf, vllm: Vllm) -> None:
    attention = Attention(inv_freq=MODEL.inv_freq() / 4, scale=1.1, keep_first=20)
    for backend in (hf, vllm):
        backend.attend(attention)
    error = abs(vllm.score(score(512, 1)).nll - hf.score(score(512, 1)).nll).max()
    assert error < tolerance(512)


def test_choices_marks_and_greedy_tokens_are_those_of_transformers(hf: Hf, vllm: Vllm) -> None:
    attention = lexbench.method("yarn").attention(MODEL, 512)
    options = tuple(TOKENS[900 + 5 * size : 900 + 6 * size] for size in (1, 2, 3))
    choose = Choose(index=0, cluster="a", prompt=TOKENS[:400], options=options, expected=0)
    places = np.array([30, 31, 200, 511])
    mark = Mark(index=0, cluster="a", tokens=TOKENS[:512], places=places, options=np.unique(TOKENS[places]))
    write = Write(index=0, cluster="a", prompt=TOKENS[:200], room=40)
    for backend in (hf, vllm):
        backend.attend(attention)
    assert abs(vllm.choose(choose).nll - hf.choose(choose).nll).max() < 6 * tolerance(512)
    assert abs(vllm.mark(mark).nll - hf.mark(mark).nll).max() < tolerance(512)
    ours, theirs = vllm.write(write), hf.write(write)
    assert ours.tokens.tolist() == theirs.tokens.tolist()
    assert (ours.text, ours.hit_room) == (theirs.text, theirs.hit_room)


def test_many_questions_at_once_answer_as_each_alone(vllm: Vllm) -> None:
    vllm.attend(Attention())
    questions = [score(length) for length in (64, 512, 300, 2048)]
    for question, answer in zip(questions, vllm.answers(questions), strict=True):
        np.testing.assert_allclose(answer.nll, vllm.score(question).nll, atol=tolerance(question.length))  # type: ignore[union-attr]


def test_an_answer_ends_where_a_text_stands(hf: Hf, vllm: Vllm) -> None:
    for backend in (hf, vllm):
        backend.attend(Attention())
    whole = hf.write(Write(index=0, cluster="a", prompt=TOKENS[:100], room=150))
    end = whole.text[40:44]
    asked = Write(index=0, cluster="a", prompt=TOKENS[:100], room=150, until=(end,))
    found = vllm.write(asked)
    assert end in found.text and len(found.tokens) < 150 and whole.text.startswith(found.text)
    assert not found.hit_room


def test_slots_that_are_no_table_of_angles_are_refused_by_name(vllm: Vllm) -> None:
    for name, slot in (("rerope", "remap"), ("log_n", "query_scale"), ("sliding_window", "mask")):
        with pytest.raises(Refused, match=rf"^vllm cannot realise {slot} on lexlet: .*run it with backend=hf$"):
            vllm.attend(lexbench.method(name).attention(MODEL, 512))
    with pytest.raises(Refused, match="does not show its attention"):
        vllm.probe(Probe(index=0, cluster="a", tokens=TOKENS[:64]))


def test_more_tokens_than_the_engine_was_started_for_are_refused(vllm: Vllm) -> None:
    vllm.attend(Attention())
    longer = np.concatenate([TOKENS, TOKENS])
    with pytest.raises(Refused, match="vllm was started for 2048 tokens, asked for 4096"):
        vllm.score(Score(index=0, cluster="a", tokens=longer, start=8, bytes=1, words=1))


def test_one_engine_serves_all_methods(vllm: Vllm, monkeypatch: pytest.MonkeyPatch) -> None:
    vllm.attend(Attention())
    monkeypatch.setattr(vllm, "_start", None)  # a call would fail
    for name in ("yarn", "pi", "none", "ntk"):
        vllm.attend(lexbench.method(name).attention(MODEL, 512))


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


def test_an_engine_started_by_rope_parameters_alone_scores_the_same(hf: Hf, ended: list[Vllm]) -> None:
    backend = started(restart=True)
    ended.append(backend)
    attention = lexbench.method("ntk_by_parts").attention(MODEL, 512)  # pair by pair
    hf.attend(attention)
    backend.attend(attention)
    error = abs(backend.score(score(512)).nll - hf.score(score(512)).nll).max()
    assert error < tolerance(512)
    processes = children()
    backend.close()
    assert children() < processes  # the engine's have gone, and their memory with them
    with pytest.raises(Refused, match="rope parameters have no word for it"):
        backend.attend(Attention(keep_first=4))


def children() -> int:
    """Processes that this one has."""
    listed = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "stat=,args="], capture_output=True, text=True)
    return sum("ps --ppid" not in line and not line.startswith("Z") for line in listed.stdout.splitlines())


DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
YARN = {"rope_type": "yarn", "factor": 2.0, "rope_theta": 10000.0, "original_max_position_embeddings": 256}


@pytest.mark.parametrize(
    ("rope", "method"),
    [
        (DYNAMIC, lexbench.method("ntk")),  # with no trained length beside it, it leaves the base alone
        ({**YARN, "attention_factor": 1.0}, lexbench.method("yarn")),  # an attention factor that gets lost
    ],
    ids=["dynamic", "attention_factor"],
)
def test_what_the_engine_turns_by_is_read_back(ended: list[Vllm], rope: dict[str, Any], method: Any) -> None:
    backend = started(hf_overrides={"rope_parameters": rope})
    ended.append(backend)
    with pytest.raises(Refused, match=r"^vllm does not turn lexlet as it should: cos and sin of pair \d+ at position"):
        backend.attend(method.attention(MODEL, 512))


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
    assert abs(backend.score(score(1024)).nll - hf.score(score(1024)).nll).max() < tolerance(1024)
    with pytest.raises(Refused, match="as for 1024 tokens, its own angles at 256 are others: run lengths up to 256 by"):
        backend.score(score(256))


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


def test_a_length_that_the_engine_refuses_is_a_refusal(tmp_path: Path, ended: list[Vllm]) -> None:
    shared = Path(os.environ.get("LEXBENCH_SHARED", Path(__file__).parents[3] / "shared")) / "data/gpt-nano-sort-hf"
    if not shared.is_dir():
        pytest.skip("the shared data are not here")
    model = read_model({"name": "sort", "path": str(shared)})
    backend = started(model=model, longest=64)
    ended.append(backend)
    with pytest.raises(Refused, match=r"^vllm's engine does not start \(.*max_model_len.*64"):
        backend.attend(Attention())


def test_a_run_measures_what_can_be_and_records_the_rest(tmp_path: Path) -> None:
    words = ["run", "-m", "method=none,rerope,yarn", "task=[last_segment,needle]", "lengths=[128,512]", "n=2"]
    words += ["corpus=synthetic", "backend=vllm", f"backend.memory_share={SHARE}", f"results={tmp_path / 'run'}"]
    command = [sys.executable, "-m", "lexbench.cli", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in (tmp_path / "run/records.jsonl").read_text().splitlines()]
    kept = {(r["method"], r["task"].split("(")[0], r["length"]) for r in records if r["refused"] is None}
    assert kept == {(m, t, n) for m in ("none", "yarn") for t in ("last_segment", "needle") for n in (128, 512)}
    refused = {r["method"]: r["refused"] for r in records if r["refused"] is not None}
    assert refused.keys() == {"rerope"} and "cannot realise remap" in refused["rerope"]
    assert {r["backend"] for r in records} == {"vllm"}
    costs = [json.loads(line) for line in (tmp_path / "run/costs.jsonl").read_text().splitlines()]
    assert {cost["peak_bytes"] for cost in costs} == {None}  # another process's
    assert "Traceback" not in done.stderr and "EngineCore" not in done.stdout + done.stderr


def test_ctrl_c_while_the_engine_starts_ends_the_run_and_its_processes(tmp_path: Path) -> None:
    words = ["run", "task=last_segment", "backend=vllm", f"backend.memory_share={SHARE}", f"results={tmp_path / 'run'}"]
    log = (tmp_path / "log").open("w+")
    running = subprocess.Popen([sys.executable, "-m", "lexbench.cli", *words], stderr=log, start_new_session=True)
    listed = ["ps", "-o", "pid=", "-s", str(running.pid)]
    waited = time.monotonic()
    while len(subprocess.run(listed, capture_output=True, text=True).stdout.split()) < 3:  # the engine's own process
        assert running.poll() is None and time.monotonic() - waited < 200
        time.sleep(0.5)
    time.sleep(5)
    os.killpg(running.pid, signal.SIGINT)
    assert running.wait(timeout=60) == 130
    log.seek(0)
    assert "interrupted; all that was measured is kept" in log.read()
    time.sleep(5)
    assert not subprocess.run(listed, capture_output=True, text=True).stdout.split()
