"""Copying: an independent reader is always right, and a guess without the string scores at chance."""

import re
from typing import Any

import numpy as np
import pytest
from scipy import stats

import lexbench
from lexbench import ClassifyTokens, ClassifyTokensAnswer, Refused, Task
from lexbench.checkpoints.tokenizer import FastTokenizer, load_tokenizer
from lexbench.core import registry
from lexbench.core.task import Tokens
from tests.answerers import perfect


def questions_of(task: Task, tokenizer: FastTokenizer, length: int, n: int, seed: int = 0) -> list[ClassifyTokens]:
    return [question for question in task.questions(tokenizer, length, n, seed) if isinstance(question, ClassifyTokens)]


def always(question: ClassifyTokens, option: int) -> ClassifyTokensAnswer:
    """An answer that names the same option everywhere."""
    nll = np.ones((len(question.places), len(question.options)), np.float32)
    nll[:, option] = 0
    return ClassifyTokensAnswer(nll=nll)


@pytest.mark.everyday("5", "161")
@pytest.mark.parametrize("length", [5, 8, 160, 161, 480])
def test_the_second_half_is_the_first_again(tokenizer: FastTokenizer, length: int) -> None:
    task = lexbench.task("copy")
    for question in questions_of(task, tokenizer, length, 6):
        first, second = tokenizer.decode(question.tokens).removeprefix("\n").split("\n")
        assert first == second and re.fullmatch(r"[0-9a-z]+", first)
        size = (length - 2) // 2  # BOS and the separator
        assert len(first) == question.facts["size"] == size
        assert question.length == len(question.tokens) == length
        assert list(question.places) == list(range(length - size, length))
        source = question.tokens[question.places - size - 1]
        assert list(source) == list(question.tokens[question.places])
        answer = ClassifyTokensAnswer(nll=(source[:, None] != question.options).astype(np.float32))
        assert task.score(question, answer).scores == {"accuracy": 1.0, "exact": 1.0}
        assert task.score(question, perfect(question, tokenizer)).chance == question.chance > 1 / 36


@pytest.mark.parametrize("length", [30, 31, 32, 33, 34, 35])
def test_a_string_of_one_size_comes_again_and_again(tokenizer: FastTokenizer, length: int) -> None:
    for question in questions_of(lexbench.task("copy", size=5), tokenizer, length, 6):
        text = tokenizer.decode(question.tokens)
        string = text[:5]
        assert text == (f"{string}\n" * length)[: length - 1]
        assert question.length == length
        marked = [place - 1 for place in question.places]  # BOS is no text
        assert marked == [place for place, symbol in enumerate(text) if place > 5 and symbol != "\n"]
        assert list(question.tokens[question.places - 6]) == list(question.tokens[question.places])


@pytest.mark.slow
def test_symbols_are_uniform_and_independent(tokenizer: FastTokenizer) -> None:
    questions = questions_of(lexbench.task("copy"), tokenizer, 101, 400)
    texts = [tokenizer.decode(question.tokens)[-49:] for question in questions]
    alphabet = "0123456789abcdefghijklmnopqrstuvwxyz"
    drawn = np.array([[alphabet.index(symbol) for symbol in text] for text in texts])
    assert stats.chisquare(np.bincount(drawn.reshape(-1), minlength=36)).pvalue > 0.001
    for column in drawn.T:
        assert stats.chisquare(np.bincount(column, minlength=36)).pvalue * 49 > 0.001
    pairs = np.bincount((36 * drawn[:, :-1] + drawn[:, 1:]).reshape(-1), minlength=36 * 36)
    assert stats.chisquare(pairs).pvalue > 0.001


def left(question: ClassifyTokens) -> ClassifyTokensAnswer:
    """The commonest symbol of those that are left at each place, ties shared."""
    right = [int(token) for token in question.tokens[question.places]]
    counts = [[right[place:].count(option) for option in question.options.tolist()] for place in range(len(right))]
    return ClassifyTokensAnswer(
        nll=np.array([[float(count < max(row)) for count in row] for row in counts], np.float32)
    )


def test_naming_what_is_left_gets_exactly_chance_over_all_strings(
    tokenizer: FastTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All strings of three out of three symbols: naming one symbol everywhere is right at a third of the places.

    Naming the commonest symbol of those left has the mean of all strings' chances: aaa has 1, abc (1/3 + 1/2 + 1) / 3,
    aab (2/3 + (1 + 1/2 + 1/2) / 3 + 1) / 3.
    """
    task = lexbench.task("copy", symbols=3)

    class Digits:
        def __init__(self, index: int) -> None:
            self.index = index

        def integers(self, high: int, size: int) -> Tokens:
            return np.asarray(np.unravel_index(self.index, (high,) * size), dtype=np.int64)

    monkeypatch.setattr(type(task), "rng", lambda self, length, seed, index: Digits(index))
    questions = questions_of(task, tokenizer, 8, 27)
    assert len({tuple(question.tokens) for question in questions}) == 27
    assert {tokenizer.decode(question.options) for question in questions} == {"012"}
    for option in range(3):
        got = [task.score(question, always(question, option)).scores["accuracy"] for question in questions]
        assert np.mean(got) == pytest.approx(1 / 3)
    kinds = {1: 1.0, 3: 11 / 18, 2: 7 / 9}
    for question in questions:
        different = len({*tokenizer.decode(question.tokens)[-3:]})
        assert question.chance == pytest.approx(kinds[different], abs=0.01)  # simulated where a symbol occurs twice
    got = [task.score(question, left(question)).scores["accuracy"] for question in questions]
    assert np.mean(got) == pytest.approx(np.mean([question.chance for question in questions]), abs=0.005)


def test_commonest_is_what_naming_the_commonest_symbol_gets(tokenizer: FastTokenizer) -> None:
    task = lexbench.task("copy", symbols=10)
    for question in questions_of(task, tokenizer, 160, 8):
        got = [task.score(question, always(question, option)).scores["accuracy"] for option in range(10)]
        assert max(got) == pytest.approx(question.facts["commonest"])
    [long] = questions_of(task, tokenizer, 50_000, 1)
    assert long.facts["commonest"] == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize("parameters", [{}, {"size": 7}])
def test_the_least_length_is_said_and_is_the_least(tokenizer: FastTokenizer, parameters: dict[str, Any]) -> None:
    task = lexbench.task("copy", **parameters)
    least = 1 + 2 * parameters.get("size", 1) + 1
    assert {question.length for question in questions_of(task, tokenizer, least, 4)} == {least}
    with pytest.raises(Refused, match=f"needs at least {least} tokens, asked for {least - 1}: raise length"):
        task.questions(tokenizer, least - 1, 4, 0)


@pytest.mark.parametrize("change", [("a", "ab"), ("a", "b"), ("a", "")])
def test_symbols_without_a_token_of_their_own_are_refused(
    tokenizer: FastTokenizer, monkeypatch: pytest.MonkeyPatch, change: tuple[str, str]
) -> None:
    encode = tokenizer.encode
    monkeypatch.setattr(tokenizer, "encode", lambda text: encode(text.replace(*change)))
    with pytest.raises(Refused, match="copy needs a token of its own for each of 0 1 2"):
        lexbench.task("copy").questions(tokenizer, 100, 1, 0)
    assert questions_of(lexbench.task("copy", symbols=10), tokenizer, 100, 1)


def test_a_blank_put_before_every_text_is_no_part_of_a_symbol(
    tokenizer: FastTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = questions_of(lexbench.task("copy"), tokenizer, 100, 3)
    encode = tokenizer.encode
    monkeypatch.setattr(tokenizer, "encode", lambda text: encode(f" {text}"))
    for left, right in zip(plain, questions_of(lexbench.task("copy"), tokenizer, 100, 3), strict=True):
        assert list(left.tokens) == list(right.tokens)


def test_the_embedded_model_knows_the_symbols() -> None:
    tokenizer = load_tokenizer(registry.PACKAGE_FOLDER / "lexlet")
    [question] = questions_of(lexbench.task("copy"), tokenizer, 100, 1)
    alphabet = "0123456789abcdefghijklmnopqrstuvwxyz"
    assert [int(option) for option in question.options] == [int(tokenizer.encode(each).ids[0]) for each in alphabet]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"symbols": 1}, "symbols must be 2 to 36, got 1"),
        ({"symbols": 37}, "symbols must be 2 to 36, got 37"),
        ({"size": 0}, "size must be at least 1, got 0"),
    ],
)
def test_bad_parameters_are_errors(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lexbench.task("copy", **parameters)
