"""A plain counter of lines answers, no line alone tells, and who reads no label stays at chance."""

import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
from scipy import stats

import lexbench
from lexbench import Choose, ConfigError, Generate, Refused
from lexbench.checkpoints.tokenizer import FastTokenizer
from tests.answerers import perfect, written

ASKS = ("order", "count", "share")


def asked(tokenizer: FastTokenizer, length: int, n: int, **given: Any) -> list[Any]:
    return list(lexbench.task("aggregate", **given).questions(tokenizer, length, n, 0))


def labels_of(text: str) -> list[str]:
    return re.findall(r"\n[A-Z][a-z]+ \| [A-Z][a-z ]+\. \| ([a-z]+)(?=\n)", text)


def counted(text: str) -> str:
    """The answer, by counting all lines."""
    labels, ask = Counter(labels_of(text)), text.rpartition("\n")[2]
    if order := re.match(r"Which label has more lines, (\w+) or (\w+)\?", ask):
        return max(order.groups(), key=labels.__getitem__)
    if count := re.match(r"How many lines have the label (\w+)\?", ask):
        return str(labels[count[1]])
    [label] = re.findall(r"^How many percent of the lines have the label (\w+),", ask)
    return str(round(10 * labels[label] / labels.total()) * 10)


@pytest.mark.parametrize("length", [400, 1501])
@pytest.mark.parametrize("ask", ASKS)
def test_a_plain_counter_answers_at_every_exact_length(lexlet: FastTokenizer, ask: str, length: int) -> None:
    task = lexbench.task("aggregate", ask=ask)
    for question in asked(lexlet, length, 12, ask=ask):
        text = lexlet.decode(question.prompt)
        assert question.length == len(question.prompt) + question.max_new_tokens == length
        assert len(labels_of(text)) == question.facts["lines"] > length / 20, "lines fill the length"
        assert [counted(text)] == question.facts["expected"] and question.answer == f" {counted(text)}"
        assert set(task.score(question, written(question.answer, lexlet)).scores.values()) == {1.0}


def test_question_labels_and_shares_are_the_same_at_every_length(lexlet: FastTokenizer) -> None:
    for ask in ("order", "share"):
        for short, long in zip(asked(lexlet, 400, 8, ask=ask), asked(lexlet, 1500, 8, ask=ask), strict=True):
            assert short.facts["expected"] == long.facts["expected"]
            assert list(short.facts["counts"]) == list(long.facts["counts"])
            ends = [lexlet.decode(question.prompt).rpartition("\n")[2] for question in (short, long)]
            assert ends[0] == ends[1]


@pytest.mark.parametrize("ask", ASKS)
def test_the_control_lacks_the_asked_labels(lexlet: FastTokenizer, ask: str) -> None:
    for question, control in zip(
        asked(lexlet, 500, 6, ask=ask), asked(lexlet, 500, 6, ask=ask, needle=False), strict=True
    ):
        shown = Counter(labels_of(lexlet.decode(control.prompt)))
        named = list(question.facts["counts"])[: 2 if ask == "order" else 1]
        assert control.facts == question.facts and control.length == 500 and not set(named) & set(shown)
        assert shown.total() == question.facts["lines"]


@pytest.mark.slow
def test_guesses_without_a_label_are_right_as_often_as_chance_says(lexlet: FastTokenizer) -> None:
    n = 360
    for ask in ASKS:
        found = asked(lexlet, 300, n, ask=ask)
        chance = {"order": 1 / 2, "count": 1 / 9, "share": 1 / 9}[ask]
        assert {question.chance for question in found} == {chance}
        for place in range(2):  # always the first named label, or the least number; always the second
            right = sum(question.facts["options"][place] == question.facts["expected"][0] for question in found)
            assert stats.binomtest(right, n, chance).pvalue > 1e-3
        last = [labels_of(lexlet.decode(question.prompt))[-1] == question.facts["expected"][0] for question in found]
        assert ask != "order" or np.mean(last) < 0.4, "the last line tells little"


def test_a_number_is_scored_by_its_distance_as_in_oolong(lexlet: FastTokenizer) -> None:
    task = lexbench.task("aggregate", ask="count")
    question = next(each for each in asked(lexlet, 600, 9, ask="count") if int(each.facts["expected"][0]) > 5)
    right = int(question.facts["expected"][0])

    def scores(text: str) -> tuple[float, float]:
        found = task.score(question, written(text, lexlet)).scores
        return found["accuracy"], found["nearly"]

    assert scores(f" {right - 2}.") == (0, 0.75**2)
    assert scores(f" about {right + 3}") == (0, 27 / 64)
    assert scores(" many") == (0, 0)


def test_a_choice_is_among_answers_of_equally_many_tokens(lexlet: FastTokenizer) -> None:
    for question in asked(lexlet, 400, 6, choose=True):
        assert isinstance(question, Choose) and question.length == 400 and question.chance == 0.5
        assert len({len(option) for option in question.options}) == 1
        found = lexbench.task("aggregate", choose=True).score(question, perfect(question, lexlet))
        assert found.scores == {"accuracy": 1.0}
    with pytest.raises(Refused, match="aggregate's answers differ in tokens here"):
        asked(lexlet, 600, 8, choose=True, ask="count")
    with pytest.raises(Refused, match=r"aggregate needs at least \d+ tokens, asked for 90: raise length"):
        asked(lexlet, 90, 1)
    with pytest.raises(ConfigError, match="aggregate's ask must be one of order, count, share, got most"):
        lexbench.task("aggregate", ask="most")


def test_nearly_of_an_order_is_the_right_label_alone(lexlet: FastTokenizer) -> None:
    task, [question] = lexbench.task("aggregate"), asked(lexlet, 400, 1)
    assert isinstance(question, Generate)
    right, other = sorted(question.facts["options"], key=lambda label: label != question.facts["expected"][0])
    for text, expected in ((f" the label {right}", 1), (f" {right} or {other}", 0), (f" {other}", 0)):
        assert task.score(question, written(text, lexlet)).scores["nearly"] == expected
