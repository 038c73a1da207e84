"""Algorithms: the marked digits are what Python's own reversing, sorting and adding give."""

from itertools import pairwise

import numpy as np
import pytest

import lexbench
from lexbench import ClassifyTokens, ClassifyTokensAnswer, Refused
from lexbench.checkpoints.tokenizer import FastTokenizer


def found(name: str, tokenizer: FastTokenizer, length: int) -> list[tuple[str, str, ClassifyTokens]]:
    """What is asked and the marked result, as text."""
    pairs = []
    for question in lexbench.task(name).questions(tokenizer, length, 5, 0):
        assert isinstance(question, ClassifyTokens) and len(question.tokens) == question.length == length
        whole = tokenizer.decode(question.tokens).lstrip("\n")
        size = len(question.places)
        assert list(question.places) == list(range(length - size, length))
        pairs.append((whole[:-size], whole[-size:], question))
    return pairs


@pytest.mark.parametrize("length", [5, 40, 41, 400])
def test_strings_are_reversed_and_sorted(tokenizer: FastTokenizer, length: int) -> None:
    for asked, result, question in found("reverse", tokenizer, length):
        assert result == "".join(reversed(asked.rstrip("<"))) and question.facts["size"] == (length - 2) // 2
    for asked, result, _ in found("sort", tokenizer, length):
        assert result == "".join(sorted(asked.rstrip(">")))


@pytest.mark.parametrize("length", [6, 40, 41, 42, 400])
def test_numbers_are_added_units_first(tokenizer: FastTokenizer, length: int) -> None:
    for asked, result, _ in found("addition", tokenizer, length):
        first, second = (int(number[::-1]) for number in asked.removesuffix("=").split("+"))
        assert int(result[::-1]) == (first + second) % 10 ** len(result)


def test_chance_is_that_of_the_best_guess_without_the_algorithm(tokenizer: FastTokenizer) -> None:
    """Reversed: strike out the digits that have come and name the commonest one left. Added: any digit."""
    got: list[float] = []
    chances: list[float] = []
    for _, result, question in found("reverse", tokenizer, 30) * 40:
        order = np.random.default_rng(len(got)).permutation([int(digit) for digit in result])
        counts = [np.bincount(order[place:]).max() / (len(order) - place) for place in range(len(order))]
        got.append(float(np.mean(counts)))
        chances.append(question.chance)
    assert np.mean(got) == pytest.approx(np.mean(chances), abs=4 * np.std(got) / len(got) ** 0.5)
    assert all(question.chance == 0.1 for _, _, question in found("addition", tokenizer, 30))
    for length in (8, 30, 130):
        for _, result, question in found("sort", tokenizer, length):
            named = f"0{result[:-1]}"  # 0, the least there is, and then each digit again
            right = sum(a == b for a, b in zip(named, result, strict=True))
            assert question.chance == pytest.approx(max(0.1, right / len(result)))


def test_a_perfect_answer_is_right_and_short_lengths_are_refused(tokenizer: FastTokenizer) -> None:
    task = lexbench.task("sort")
    ((_, result, question), *_) = found("sort", tokenizer, 40)
    right = np.array([int(digit) for digit in result])
    answer = ClassifyTokensAnswer(nll=(right[:, None] != np.arange(10)).astype(np.float32))
    sample = task.score(question, answer)
    assert sample.scores == {"accuracy": 1.0, "exact": 1.0} and sample.chance == question.chance
    assert question.facts["again"] == pytest.approx(sum(a == b for a, b in pairwise(result)) / 19)
    with pytest.raises(Refused):
        lexbench.task("addition").questions(tokenizer, 5, 1, 0)
    with pytest.raises(ValueError, match="reverse, sort or add"):
        lexbench.task("sort", kind="shuffle")
