"""Questions behind one text, which is read once: each answer is that of the question asked alone, token by token."""

from typing import Any

import numpy as np
import pytest

import lexbench
from lexbench import Choose, ChooseAnswer, Generate, GenerateAnswer
from lexbench.backends.hf.backend import Hf
from lexbench.backends.hf.reading.reader import Reader
from lexbench.checkpoints.checkpoint import read_model
from lexbench.core import registry
from lexbench.core.attention import Attention
from lexbench.core.task import AnyQuestion
from lexbench.runner.answers import answer_questions
from lexbench.runner.reuse import cheapest_order

pytestmark = pytest.mark.usefixtures("one_thread")
LENGTH, COUNT = 400, 3
METHODS = ("none", "rerope", "self_extend", "yarn", "dca", "streaming_llm")
"""Methods under which a text's beginning does not depend on what follows."""


@pytest.fixture(scope="module")
def hf() -> Hf:
    return Hf(read_model(registry.read_named_config("model", "lexlet")), dtype="float32")


def tokens_read(monkeypatch: pytest.MonkeyPatch, network: type = Reader, forward: str = "states") -> list[int]:
    """Tokens of each forward pass of a network, over all texts of its batch."""
    read: list[int] = []
    own = getattr(network, forward)

    def counted(self: Any, tokens: Any, *more: Any, **named: Any) -> Any:
        read.append(tokens.numel())
        return own(self, tokens, *more, **named)

    monkeypatch.setattr(network, forward, counted)
    return read


def asked(backend: Any, count: int = COUNT, **task: Any) -> list[AnyQuestion]:
    made = lexbench.task(**{"name": "passkey", "questions_per_text": count, **task})
    return list(made.questions(backend.tokenizer, LENGTH, count, 0))


def check_alike(backend: Any, method: str, given: dict[str, Any], questions: list[AnyQuestion]) -> None:
    """Compare the answers of a run with those of each question alone, after which nothing is kept."""
    attention = lexbench.method(method, **given).attention(backend.model, LENGTH)
    backend.attend(attention)
    backend.reuse = True
    ordered = cheapest_order(questions, reuse=backend.is_causal())
    found = [*zip(ordered, answer_questions(backend, ordered), strict=True)]
    backend.reuse = False
    for question, together in found:
        backend.attend(attention)
        if isinstance(question, Choose):
            assert isinstance(together, ChooseAnswer)
            np.testing.assert_allclose(together.nll, backend.choose(question).nll, atol=2e-4)
        else:
            assert isinstance(question, Generate) and isinstance(together, GenerateAnswer)
            np.testing.assert_array_equal(together.tokens, backend.write(question).tokens)


@pytest.mark.everyday("self_extend")
@pytest.mark.parametrize("method", METHODS)
def test_answers_are_those_of_each_question_alone(method: str, hf: Hf, monkeypatch: pytest.MonkeyPatch) -> None:
    check_read_once(hf, method, tokens_read(monkeypatch))


def check_read_once(backend: Any, method: str, read: list[int]) -> None:
    """Questions behind one text are answered as each alone, and the text is read once."""
    backend.attend(lexbench.method(method).attention(backend.model, LENGTH))
    backend.reuse = True
    questions = asked(backend)
    list(answer_questions(backend, cheapest_order(questions, reuse=True)))
    options = sum(len(option) for each in questions if isinstance(each, Generate) for option in each.options)
    assert sum(read) - options < 1.6 * LENGTH, "the text is read once"
    check_alike(backend, method, {}, questions)


@pytest.mark.everyday("frequencies")
@pytest.mark.parametrize(
    ("method", "given"), [("dynamic_ntk", {"policy": "hf_dynamic"}), ("ms_poe", {})], ids=["frequencies", "ranks"]
)
def test_a_text_is_read_for_each_question_where_its_end_changes_its_beginning(
    method: str, given: dict[str, Any], hf: Hf, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = tokens_read(monkeypatch)
    hf.attend(lexbench.method(method, **given).attention(hf.model, LENGTH))
    hf.reuse = True
    questions = asked(hf)
    list(answer_questions(hf, cheapest_order(questions, reuse=hf.is_causal())))
    assert sum(read) > 0.9 * COUNT * LENGTH
    check_alike(hf, method, given, questions)


def test_choices_behind_one_text_are_those_of_each_alone(hf: Hf) -> None:
    check_choices(hf)


def check_choices(backend: Any) -> None:
    """Choices behind one text are those of each alone."""
    task: dict[str, Any] = {
        "name": "niah_multikey_1",
        "corpus": lexbench.corpus("synthetic", count=6, words=1000),
        "options": 3,
    }
    check_alike(backend, "rerope", {}, asked(backend, **task))


def test_two_questions_behind_each_text_are_enough_to_read_it_once(hf: Hf) -> None:
    """Of two alike prompts a little less than half of all tokens is shared: the second one, but for its end."""
    made = lexbench.task("passkey", questions_per_text=2).questions(hf.tokenizer, LENGTH, 6, 0)
    mixed = [made[place] for place in (0, 2, 4, 1, 3, 5)]
    ordered = cheapest_order(mixed, reuse=True)
    assert all(one.cluster == other.cluster for one, other in zip(ordered[::2], ordered[1::2], strict=True))


def test_a_short_end_behind_a_long_text_needs_no_mask(hf: Hf, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stock kernel's mask of all pairs costs more than reading the end by our attention function."""
    read, continued = tokens_read(monkeypatch), list[int]()
    own = Reader._continued_by

    def counted(self: Reader, number: int) -> Any:
        continued.append(read[-1])
        return own(self, number)

    monkeypatch.setattr(Reader, "_continued_by", counted)
    hf.attend(Attention())
    hf.reuse = True
    made = lexbench.task("niah_single_1", questions_per_text=2).questions(hf.tokenizer, 1200, 2, 0)
    list(answer_questions(hf, made))
    assert len(continued) == 1 and 27 < continued[0] < 64, "27 tokens behind 1,200 are the least"
