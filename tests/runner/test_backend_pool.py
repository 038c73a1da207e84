"""Backends are opened once for the jobs of a sweep, and ended when nobody needs them."""

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lexbench import api
from lexbench.backends import Capabilities
from lexbench.backends.chance import Chance
from lexbench.core import registry
from lexbench.core.checkpoint import read_model
from lexbench.core.model import Model
from lexbench.core.record import Deferred, Refused
from lexbench.core.task import Answer, AnyQuestion, Score
from lexbench.runner import backend_pool
from lexbench.runner.execute import execute
from lexbench.runner.job import Job
from lexbench.store.store import Store

MODEL = read_model(registry.read("model", "lexlet"))
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
            assert isinstance(question, Score)
            yield self.score(question)

    def close(self) -> None:
        EVENTS.append("end")


FAR = {"_target_": f"{__name__}.Far", "name": "far"}


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    EVENTS.clear()
    monkeypatch.setattr(
        registry,
        "class_of",
        lambda config, noun, of=registry.class_of: Far if "Far" in str(config.get("_target_")) else of(config, noun),
    )


def test_each_job_has_its_own_backend() -> None:
    for _ in range(2):
        backend_pool.done_with(backend_pool.opened(MODEL, FAR, 128))
    assert EVENTS == ["start 128", "end", "start 128", "end"]


def test_jobs_that_share_have_one_until_the_last_is_done() -> None:
    with backend_pool.sharing():
        first = backend_pool.opened(MODEL, FAR, 512)
        backend_pool.done_with(first)
        assert backend_pool.opened(MODEL, FAR, 128) is first
        assert EVENTS == ["start 512"]
    assert EVENTS == ["start 512", "end"]


def test_another_backend_or_a_longer_question_ends_the_one_before() -> None:
    with backend_pool.sharing():
        backend_pool.opened(MODEL, FAR, 128)
        backend_pool.opened(MODEL, FAR, 512)
        assert EVENTS == ["start 128", "end", "start 512"]
        backend_pool.opened(MODEL, {**registry.read("backend", "chance"), "name": "chance"}, 512)
        assert EVENTS[3:] == ["end"]
    assert EVENTS[4:] == []


def test_a_model_that_scales_its_angles_is_shared_at_one_length_only() -> None:
    scaled = replace(MODEL, rope_scaling={"rope_type": "dynamic", "factor": 2.0})
    with backend_pool.sharing():
        for longest in (512, 512, 128):
            backend_pool.opened(scaled, FAR, longest)
    assert EVENTS == ["start 512", "end", "start 128", "end"]


def test_a_backend_that_cannot_be_ended_is_not_handed_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(self: Far) -> None:
        raise OSError("stuck")

    with contextlib.suppress(OSError), backend_pool.sharing():
        backend_pool.opened(MODEL, FAR, 128)
        monkeypatch.setattr(Far, "close", stuck)
    monkeypatch.undo()
    assert backend_pool._shared is None


def test_a_checkpoint_that_changed_is_loaded_again(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(registry.PACKAGE / "lexlet", folder)
    model = read_model({"path": str(folder), "trained_length": 256})
    with backend_pool.sharing():
        backend_pool.opened(model, FAR, 128)
        os.utime(folder / "config.json", (1, 1))
        backend_pool.opened(model, FAR, 128)
    assert EVENTS == ["start 128", "end", "start 128", "end"]


def test_an_error_in_a_sweep_ends_the_backend() -> None:
    with contextlib.suppress(RuntimeError), backend_pool.sharing():
        backend_pool.opened(MODEL, FAR, 128)
        raise RuntimeError
    assert EVENTS == ["start 128", "end"]


def run(folder: Path) -> None:
    asked = Job.of(
        model=MODEL,
        methods=[{**registry.read("method", "none"), "name": "none"}],
        tasks=[{**registry.read("task", "last_segment"), "name": "last_segment"}],
        corpus={**registry.read("corpus", "synthetic"), "name": "synthetic"},
        backend=FAR,
        lengths=[128, 256],
        multiples=None,
        n=4,
        seeds=[0],
        results=folder,
    )
    execute(asked, quiet=True)


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


def test_a_refusal_ends_a_cell_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Far, questions: Sequence[AnyQuestion]) -> Iterator[Answer]:
        raise Refused("no honest answer")

    monkeypatch.setattr(Far, "answers", refuse)
    run(tmp_path)
    monkeypatch.undo()
    store = Store(tmp_path)
    assert all(store.finished(found.cell) and found.refused == "no honest answer" for found in store.load())
