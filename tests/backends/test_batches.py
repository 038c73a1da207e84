"""Texts that are read together are answered as each alone; where memory ends, fewer are read together."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lexbench
from lexbench.backends import capabilities
from lexbench.backends.hf import backend as hf_backend
from lexbench.backends.hf.backend import Hf
from lexbench.core import registry
from lexbench.core.checkpoint import read_model
from lexbench.core.record import Refused
from lexbench.core.task import AnyQuestion, Choose, Score, Scored, Write, Written
from lexbench.runner.answers import answers
from lexbench.store.format import Finished
from lexbench.store.store import Store
from tests.runner.test_reuse import check_alike

pytestmark = pytest.mark.usefixtures("one_thread", "unverified")
LENGTHS = [200]


def backend(batch: int | str) -> Hf:
    return Hf(read_model(registry.read("model", "lexlet")), batch=batch)


def run(folder: Path, batch: int, **settings: Any) -> list[Finished]:
    given = {"corpus": "synthetic", "n": 5, "lengths": LENGTHS, "reuse": False, **settings}
    lexbench.run("lexlet", results=folder, backend={"name": "hf", "batch": batch}, **given)
    return Store(folder).load()


def texts(count: int, length: int = 100) -> list[Score]:
    rng = np.random.default_rng(0)
    drawn = [rng.integers(3, 500, length) for _ in range(count)]
    return [
        Score(index=index, cluster="", tokens=tokens, start=length // 2, bytes=1, words=1)
        for index, tokens in enumerate(drawn)
    ]


def prompts(count: int, length: int) -> list[Write]:
    """Random ones, to be continued by five tokens."""
    rng = np.random.default_rng(1)
    return [Write(index=index, cluster="", prompt=rng.integers(3, 500, length), room=5) for index in range(count)]


def sizes(monkeypatch: pytest.MonkeyPatch, fit: int | None = None) -> list[int]:
    """Texts of every forward pass to come; more than `fit` of them are too many for the memory."""
    read: list[int] = []
    states = Hf._states

    def count(self: Hf, tokens: Any, *more: Any) -> Any:
        read.append(len(tokens))
        if fit is not None and len(tokens) > fit:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return states(self, tokens, *more)

    monkeypatch.setattr(Hf, "_states", count)
    return read


def losses(given: Sequence[object]) -> list[np.ndarray]:
    return [each.nll for each in given if isinstance(each, Scored)]


@pytest.mark.slow
@pytest.mark.parametrize("task", ["sliding", "passkey"])
def test_numbers_are_those_of_one_text_at_a_time(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    methods = ["none", "self_extend"]
    alone = run(tmp_path / "1", 1, task=task, method=methods)
    read = sizes(monkeypatch)
    together = run(tmp_path / "4", 4, task=task, method=methods)
    assert max(read) == 4
    check_alike(alone, together)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["sliding", "niah_single_1"])
def test_numbers_of_many_methods_are_those_of_one_text_at_a_time(task: str, tmp_path: Path) -> None:
    methods = ["none", "bca", "dynamic_ntk", "ms_poe", "rerope", "streaming_llm", "moice", "alibi", ["yarn", "log_n"]]
    known = [name for name in methods if isinstance(name, list) or name in registry.names("method")]
    assert len(known) >= 7
    check_alike(*(run(tmp_path / str(batch), batch, task=task, method=known) for batch in (1, 4)))


@pytest.mark.slow
def test_a_row_that_has_ended_leaves_the_others_as_they_are() -> None:
    tokenizer = backend(1).tokenizer
    task = lexbench.task("passkey", corpus="synthetic")
    asked = [each for each in task.questions(tokenizer, 200, 6, 0) if isinstance(each, Write)]
    asked = [replace(each, room=12) for each in asked]
    alone = [backend(1).write(each) for each in asked]
    texts = [each.text for each in alone]
    ends = tuple(text[2:5] for text in texts[:2])  # two of them, and whichever else says so, end early
    asked = [replace(each, until=ends) for each in asked]
    expected = [backend(1).write(each) for each in asked]
    assert not all(each.hit_room for each in expected) and any(each.hit_room for each in expected)
    given = list(answers(backend(6), asked))
    for one, other in zip(given, expected, strict=True):
        assert isinstance(one, Written)
        assert (one.text, one.hit_room) == (other.text, other.hit_room)
        assert one.tokens.tolist() == other.tokens.tolist()


def test_only_texts_of_one_shape_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    model = backend(8)
    asked: list[AnyQuestion] = [*texts(3), *texts(2, 90), *texts(2)]
    asked.insert(
        1, Choose(index=9, cluster="", prompt=np.arange(5), options=(np.array([1]), np.array([2])), expected=0)
    )
    read = sizes(monkeypatch)
    assert len(list(answers(model, asked))) == 8
    assert read == [1, 1, 2, 2, 2], "a choice is made alone, and its neighbours keep their order"


@pytest.mark.slow
def test_memory_that_ends_halves_what_is_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, model = texts(10), backend(8)
    expected = losses([backend(1).score(each) for each in asked])
    read = sizes(monkeypatch, fit=3)
    found = losses(list(answers(model, asked)))
    assert read == [8, 4, 2, 2, 2, 2, 2], "8 and 4 do not fit, and are not tried again"
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)
    read.clear()
    list(answers(model, texts(8, 50)))
    assert read == [4, 2, 2, 2, 2], "texts of half the length: twice as many, which do not fit either"


def test_one_text_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = backend(4)
    read = sizes(monkeypatch, fit=0)
    with pytest.raises(Refused, match="out of memory for 100 tokens of lexlet"):
        list(answers(model, texts(4)))
    assert read == [4, 2, 1]


def test_as_many_as_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    model = backend("auto")
    width, layers = model.model.width, model.model.layers
    assert width and layers
    monkeypatch.setattr(
        hf_backend, "free_memory", lambda device: 2 * 5 * (20 + 2 * layers) * width * 100 * 4
    )  # half of it: five
    read = sizes(monkeypatch)
    list(answers(model, prompts(12, 95)))
    assert [size for size in read if size > 1] == [5] * 5 + [5] * 5 + [2] * 5, "a prompt, and 4 tokens behind it"
    read.clear()
    list(answers(model, texts(3)))
    assert read == [1, 1, 1], "a CPU scores one at a time"
    model._device = torch.device("cuda")  # of which it scores as many as fit; nothing is put there
    assert model.alike(texts(1)[0]) is not None
    assert capabilities(model).batches and not capabilities(model).remote


def test_a_cpu_writes_to_a_few_thousand_tokens_at_once() -> None:
    model = backend("auto")
    assert [model._size(prompts(1, length - 5)[0]) for length in (2048, 8192, 40000)] == [16, 4, 1]


@pytest.mark.slow
def test_prompts_that_begin_alike_are_read_once_and_written_to_together(monkeypatch: pytest.MonkeyPatch) -> None:
    model = backend(3)
    model.reuse = True
    asked = prompts(6, 60)
    for each in asked[1:]:
        each.prompt[:40] = asked[0].prompt[:40]
    expected = [backend(1).write(each) for each in asked]
    read: list[tuple[int, int]] = []
    states = Hf._states

    def count(self: Hf, tokens: Any, *more: Any) -> Any:
        read.append(tuple(tokens.shape))
        return states(self, tokens, *more)

    monkeypatch.setattr(Hf, "_states", count)
    given = list(answers(model, asked))
    assert read == [(1, 60), (1, 20), (1, 20), *[(3, 1)] * 4, (1, 20), (1, 20), (1, 20), *[(3, 1)] * 4]
    for one, other in zip(given, expected, strict=True):
        assert isinstance(one, Written)
        assert one.tokens.tolist() == other.tokens.tolist()


@pytest.mark.parametrize("batch", [0, -1, "many", 2.5, True])
def test_a_wrong_batch_is_said_in_one_line(batch: Any) -> None:
    with pytest.raises(ValueError, match=r"backend\.batch must be auto or a whole number of at least 1, got"):
        backend(batch)
