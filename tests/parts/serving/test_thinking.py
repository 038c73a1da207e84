"""Thoughts of engines that take tokens: the same as of transformers."""

from collections.abc import Sequence

import pytest

from lexbench import Generate
from lexbench.backends.hf.backend import Hf
from lexbench.backends.thinking import LocalForm
from lexbench.core.model import Model
from lexbench.parts.serving.completions import Completions, Continue, Continued, Reply, Request
from tests.backends.test_thinking import UNASKED, check_unasked, form, question, thinking_model

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return thinking_model(tmp_path_factory.mktemp("thinking") / "model")


@pytest.fixture(scope="module")
def hf(model: Model) -> Hf:
    return Hf(model, dtype="float64", chat=True, thinking="budget", thought=40)


@pytest.mark.parametrize("name", UNASKED)
def test_a_thought_that_was_not_asked_for_is_no_answer(name: str, hf: Hf) -> None:
    said, hit_room, expected = UNASKED[name]
    ids = hf.tokenizer.encode(said).ids

    class Saying(Completions):
        name, tokenizer, form = "saying", hf.tokenizer, LocalForm(chat=True)

        def ask(self, requests: Sequence[Request]) -> list[Reply]:
            return [Continued(tokens=ids, hit_room=hit_room) for _ in requests]

    check_unasked(Saying(), hf.tokenizer, len(ids), expected)


class Engine(Completions):
    """Continues by transformers, in pieces that run past stop texts."""

    name = "engine"

    def __init__(self, hf: Hf) -> None:
        self.hf, self.tokenizer, self.form = hf, hf.tokenizer, hf._form

    def ask(self, requests: Sequence[Request]) -> list[Reply]:
        return [self._reply(each) for each in requests if isinstance(each, Continue)]

    def _reply(self, request: Continue) -> Reply:
        found = self.hf.write(
            Generate(index=0, cluster="", prompt=request.tokens, max_new_tokens=request.max_new_tokens)
        )
        return Continued(tokens=found.tokens, hit_room=found.hit_room)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["</think>", "."])
def test_a_batch_and_an_engine_think_as_one_question_alone(end: str, hf: Hf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hf, "_form", form("budget", end=end))
    texts = ("The sky is blue. It is", "import numpy as")
    asked = [question(hf.tokenizer, text, "It is", thought=24, room=4) for text in texts]  # type: ignore[arg-type]
    engine = Engine(hf)
    for whole, together in zip(asked, hf._write(asked), strict=True):
        for alone in (hf.write(whole), engine.write(whole)):
            assert (alone.thought, alone.text) == (together.thought, together.text)
            assert alone.tokens.tolist() == together.tokens.tolist()
        size = len(hf.tokenizer.encode(together.thought).ids)
        assert 0 < size <= 24 and len(together.tokens) <= whole.max_new_tokens and not together.thought_cut
