"""Parity: an independent reader is always right, and all bits but one say nothing."""

import re
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from scipy import stats

import lexbench
from lexbench import Choose, ClassifyTokens, Refused, Task
from lexbench.checkpoints.tokenizer import FastTokenizer
from lexbench.core.task import Tokens
from tests.answerers import perfect


def questions_of(
    task: Task, tokenizer: FastTokenizer, length: int, n: int, seed: int = 0
) -> list[Choose | ClassifyTokens]:
    return [
        question
        for question in task.questions(tokenizer, length, n, seed)
        if isinstance(question, Choose | ClassifyTokens)
    ]


@pytest.mark.parametrize("length", [4, 5, 160, 161, 162, 480])
def test_an_independent_reader_is_always_right(tokenizer: FastTokenizer, length: int) -> None:
    task = lexbench.task("parity")
    for question in questions_of(task, tokenizer, length, 16):
        assert isinstance(question, Choose)
        text = tokenizer.decode(question.prompt)
        assert re.fullmatch(f"[01]{{{length - 3}}}=", text)  # BOS, = and the answer
        assert question.expected == question.facts["expected"] == text.count("1") % 2
        assert [tokenizer.decode(option) for option in question.options] == ["0", "1"]
        assert question.length == length
        assert question.facts["bits"] == length - 3
        assert task.score(question, perfect(question, tokenizer)).scores == {"accuracy": 1.0}


@pytest.mark.parametrize("length", [4, 5, 6, 160, 161, 162, 480])
def test_shown_the_parity_so_far_stands_behind_every_bit(tokenizer: FastTokenizer, length: int) -> None:
    task = lexbench.task("parity_shown")
    for question in questions_of(task, tokenizer, length, 16):
        assert isinstance(question, ClassifyTokens)
        blank, bits = (length - 1) % 3, (length - 1) // 3
        text = tokenizer.decode(question.tokens)
        assert re.fullmatch(f"\n{{{blank}}}([01]=[01]){{{bits}}}", text)
        pairs = re.findall(r"([01])=([01])", text)
        ones = np.cumsum([int(bit) for bit, _ in pairs])
        assert [int(parity) for _, parity in pairs] == list(ones % 2)
        assert [tokenizer.decode([token]) for token in question.tokens[question.places]] == [p for _, p in pairs]
        assert list(np.diff(question.places)) == [3] * (bits - 1) and question.places[-1] == length - 1
        assert question.length == length and question.facts == {"expected": int(ones[-1] % 2), "bits": bits}
        assert task.score(question, perfect(question, tokenizer)).scores == {"accuracy": 1.0, "exact": 1.0}
        assert question.chance == 0.5


def test_all_bits_but_any_one_tell_nothing(tokenizer: FastTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """All strings of seven bits: for any six bits, both parities are possible."""
    task = lexbench.task("parity")

    class Digits:
        def __init__(self, index: int) -> None:
            self.index = index

        def integers(self, high: int, size: int) -> Tokens:
            return np.asarray(np.unravel_index(self.index, (high,) * size), dtype=np.int64)

    monkeypatch.setattr(type(task), "rng", lambda self, length, seed, index: Digits(index))
    texts = [tokenizer.decode(q.prompt) for q in questions_of(task, tokenizer, 10, 128) if isinstance(q, Choose)]
    assert len(set(texts)) == 128
    for place in range(7):
        left = defaultdict(list)
        for text in texts:
            left[text[:place] + text[place + 1 :]].append(text.count("1") % 2)
        assert len(left) == 64 and all(sorted(parities) == [0, 1] for parities in left.values())


@pytest.mark.slow
@pytest.mark.parametrize("shown", [True, False])
def test_bits_and_parities_are_uniform_at_every_depth(tokenizer: FastTokenizer, shown: bool) -> None:
    for length in (100, 200):
        texts = []
        for question in questions_of(lexbench.task("parity", shown=shown), tokenizer, length, 600):
            tokens = question.tokens if isinstance(question, ClassifyTokens) else question.prompt
            texts.append([int(bit) for bit in re.sub(r"=[01]?", "", tokenizer.decode(tokens)).strip()])
        bits = np.array(texts)
        for drawn in (bits, bits.cumsum(axis=1) % 2):
            counts = [np.bincount(column, minlength=2) for column in drawn.T]
            assert min(stats.chisquare(count).pvalue for count in counts) * len(counts) > 0.001


@pytest.mark.parametrize("shown", [True, False])
def test_the_least_length_is_said_and_is_the_least(tokenizer: FastTokenizer, shown: bool) -> None:
    task = lexbench.task("parity", shown=shown)
    assert {(q.length, q.facts["bits"]) for q in questions_of(task, tokenizer, 4, 4)} == {(4, 1)}
    with pytest.raises(Refused, match="parity needs at least 4 tokens, asked for 3: raise length"):
        task.questions(tokenizer, 3, 4, 0)


@pytest.mark.parametrize("change", [("1", "0"), ("=", "=="), ("0", "")])
def test_symbols_without_a_token_of_their_own_are_refused(
    tokenizer: FastTokenizer, monkeypatch: pytest.MonkeyPatch, change: tuple[str, str]
) -> None:
    encode = tokenizer.encode
    monkeypatch.setattr(tokenizer, "encode", lambda text: encode(text.replace(*change)))
    with pytest.raises(Refused, match="parity needs a token of its own for each of 0 1 ="):
        lexbench.task("parity").questions(tokenizer, 100, 1, 0)


@pytest.mark.parametrize("parameters", [{"shown": 3}, {"shown": "yes"}])
def test_bad_parameters_are_errors(parameters: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="shown must be true or false"):
        lexbench.task("parity", **parameters)
