"""Backends are opened once for the jobs of a sweep, and ended when nobody needs them."""

import contextlib
import os
import shutil
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lexbench import api
from lexbench.backends import Capabilities
from lexbench.backends.chance import Chance
from lexbench.checkpoints.checkpoint import locate_checkpoint, read_model
from lexbench.commands.main import main
from lexbench.core import objects, registry
from lexbench.core.model import Model
from lexbench.core.record import Deferred, Refused
from lexbench.core.task import Answer, AnyQuestion, Loglikelihood, Tokenizer
from lexbench.runner import backend_pool
from lexbench.runner.execute import execute_job
from lexbench.runner.job import Job
from lexbench.store.store import Store

MODEL = read_model(registry.read_named_config("model", "lexlet"))
EVENTS: list[str] = []


class Far(Chance):
    """Chance, as if it ran elsewhere: says when it starts and ends, and may be down."""

    capabilities = Capabilities(remote=True)
    gone: int | None = None
    """Question at which it is down."""

    def __init__(self, model: Model, longest: int) -> None:
        super().__init__(model)
        EVENTS.append(f"start {longest}")

    def answers(self, questions: Sequence[AnyQuestion]) -> Iterator[Answer]:
        for question in questions:
            if question.index == self.gone:
                raise Deferred("server is down")
            assert isinstance(question, Loglikelihood)
            yield self.score(question)

    def close(self) -> None:
        EVENTS.append("end")


FAR = {"_target_": f"{__name__}.Far", "name": "far"}


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    EVENTS.clear()
    monkeypatch.setattr(
        objects,
        "class_of",
        lambda config, noun, of=objects.class_of: Far if "Far" in str(config.get("_target_")) else of(config, noun),
    )


def test_each_job_has_its_own_backend() -> None:
    for _ in range(2):
        backend_pool.release_backend(backend_pool.open_backend(MODEL, FAR, 128))
    assert EVENTS == ["start 128", "end", "start 128", "end"]


def test_jobs_that_share_have_one_until_the_last_is_done() -> None:
    with backend_pool.share_backends():
        first = backend_pool.open_backend(MODEL, FAR, 512)
        backend_pool.release_backend(first)
        assert backend_pool.open_backend(MODEL, FAR, 128) is first
        assert EVENTS == ["start 512"]
    assert EVENTS == ["start 512", "end"]


def test_jobs_that_share_have_one_tokenizer_until_its_files_change(tmp_path: Path) -> None:
    assert MODEL.path is not None
    folder = shutil.copytree(locate_checkpoint(MODEL.path, None), tmp_path / "model")
    here = replace(MODEL, path=str(folder))
    alone = backend_pool.tokenizer_of(here)
    with backend_pool.share_backends():
        first = backend_pool.tokenizer_of(here)
        assert first is not alone and backend_pool.tokenizer_of(here) is first
        assert backend_pool.tokenizer_of(here, FAR) is first, "without a chat, the backend changes nothing"
        assert backend_pool.tokenizer_of(replace(here, bos=False)) is not first
        os.utime(folder / "tokenizer.json", ns=(1, 1))
        assert backend_pool.tokenizer_of(here) is not first


@pytest.mark.slow
def test_methods_of_a_sweep_share_their_questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passkey, made = type(api.task("passkey")), list[int]()
    questions = passkey.questions

    def counted(task: Any, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        made.append(length)
        return questions(task, tokenizer, length, n, seed)

    monkeypatch.setattr(passkey, "questions", counted)
    words = ["-m", "method=none,yarn", "task=passkey", "backend=chance", "lengths=[96,320]", "n=1"]
    assert main(["run", *words, f"results={tmp_path}"]) == 0
    assert sorted(made) == [96, 320]


def test_another_backend_or_a_longer_question_ends_the_one_before() -> None:
    with backend_pool.share_backends():
        backend_pool.open_backend(MODEL, FAR, 128)
        backend_pool.open_backend(MODEL, FAR, 512)
        assert EVENTS == ["start 128", "end", "start 512"]
        backend_pool.open_backend(MODEL, {**registry.read_named_config("backend", "chance"), "name": "chance"}, 512)
        assert EVENTS[3:] == ["end"]
    assert EVENTS[4:] == []


@pytest.mark.parts("native")
@pytest.mark.everyday("native-dtypes1")
@pytest.mark.parametrize(("name", "dtypes"), [("hf", ["bfloat16", "float32"]), ("native", ["float32", "float64"])])
def test_the_weights_before_are_gone_while_others_are_loaded(
    name: str, dtypes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bfloat16 layers that a processor multiplies in float32 refer to themselves."""
    monkeypatch.setattr("lexbench.backends.hf.fast.products.half_matmul_is_slow", lambda dtype: dtype == torch.bfloat16)
    held, build = list["weakref.ref[Any]"](), backend_pool._build_backend

    def built(*arguments: Any) -> Any:
        assert not any(each() for each in held)
        made: Any = build(*arguments)
        network = made.reader.network if name == "hf" else made._decoder
        held.extend(weakref.ref(module) for module in network.modules())
        # Continued by our attention function, which knows the layers.
        made.logits(np.arange(3, 203), [100, 99, 1], 100)
        return made

    monkeypatch.setattr(backend_pool, "_build_backend", built)
    with backend_pool.share_backends():
        for dtype in dtypes:
            backend_pool.open_backend(
                MODEL, {**registry.read_named_config("backend", name), "name": name, "dtype": dtype}, 128
            )
    assert len(held) > 20


@pytest.mark.parts
def test_a_backend_that_is_not_told_the_longest_question_serves_all() -> None:
    native = {**registry.read_named_config("backend", "native"), "name": "native"}
    with backend_pool.share_backends():
        first = backend_pool.open_backend(MODEL, native, 128)
        assert backend_pool.open_backend(MODEL, native, 512) is first


def test_a_second_end_does_nothing() -> None:
    backend = backend_pool.open_backend(MODEL, {**registry.read_named_config("backend", "hf"), "name": "hf"}, 128)
    for _ in range(2):
        backend_pool.release_backend(backend)


@pytest.mark.slow
def test_a_model_that_scales_its_angles_is_shared_at_one_length_only() -> None:
    scaled = replace(MODEL, rope_scaling={"rope_type": "dynamic", "factor": 2.0})
    with backend_pool.share_backends():
        for longest in (512, 512, 128):
            backend_pool.open_backend(scaled, FAR, longest)
    assert EVENTS == ["start 512", "end", "start 128", "end"]


def test_a_backend_that_cannot_be_ended_is_not_handed_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(self: Far) -> None:
        raise OSError("stuck")

    with contextlib.suppress(OSError), backend_pool.share_backends():
        backend_pool.open_backend(MODEL, FAR, 128)
        monkeypatch.setattr(Far, "close", stuck)
    monkeypatch.undo()
    assert backend_pool._shared is None


def test_a_checkpoint_that_changed_is_loaded_again(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(registry.PACKAGE_FOLDER / "lexlet", folder)
    model = read_model({"path": str(folder), "trained_length": 256})
    with backend_pool.share_backends():
        backend_pool.open_backend(model, FAR, 128)
        os.utime(folder / "config.json", (1, 1))
        backend_pool.open_backend(model, FAR, 128)
    assert EVENTS == ["start 128", "end", "start 128", "end"]


def test_an_error_in_a_sweep_ends_the_backend() -> None:
    with contextlib.suppress(RuntimeError), backend_pool.share_backends():
        backend_pool.open_backend(MODEL, FAR, 128)
        raise RuntimeError
    assert EVENTS == ["start 128", "end"]


def run(folder: Path) -> None:
    asked = Job.of(
        model=MODEL,
        methods=[{**registry.read_named_config("method", "none"), "name": "none"}],
        tasks=[{**registry.read_named_config("task", "last_segment"), "name": "last_segment"}],
        corpus={**registry.read_named_config("corpus", "synthetic"), "name": "synthetic"},
        backend=FAR,
        lengths=[128, 256],
        multiples=None,
        n=4,
        seeds=[0],
        results=folder,
    )
    execute_job(asked, quiet=True)


@pytest.mark.slow
def test_what_was_unavailable_is_asked_again_and_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Far, "gone", 2)
    run(tmp_path)
    assert EVENTS == ["start 256", "end"]
    store = Store(tmp_path)
    assert [found.refused for found in store.load()] == ["server is down"] * 2
    assert {len(store.resume(found.cell)) for found in store.load()} == {2}
    monkeypatch.setattr(Far, "gone", None)
    run(tmp_path)
    assert [found.refused for found in store.load()] == [None, None]
    assert [[sample.index for sample in found.samples] for found in store.load()] == [[0, 1, 2, 3]] * 2
    tokens = api.Run(tmp_path).records()["tokens_max"]
    assert sorted(set(tokens)) == [128, 256]


@pytest.mark.slow
def test_a_refusal_ends_a_cell_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Far, questions: Sequence[AnyQuestion]) -> Iterator[Answer]:
        raise Refused("no honest answer")

    monkeypatch.setattr(Far, "answers", refuse)
    run(tmp_path)
    monkeypatch.undo()
    store = Store(tmp_path)
    assert all(store.is_finished(found.cell) and found.refused == "no honest answer" for found in store.load())
