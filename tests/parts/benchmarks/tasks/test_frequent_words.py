"""Frequent words: a plain counter finds them, counts follow the law, and the scorer cannot be fooled."""

import itertools
import math
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.special import zeta

import lexbench
from lexbench import Frame, Refused
from lexbench.checkpoints.tokenizer import FastTokenizer
from lexbench.parts.benchmarks.tasks.frequent_words import _chance_of_first
from tests.tasks.asked import accuracy, fingerprint, questions_of

HEADER = "This coded text repeats some words more often than others.\n"
ASK = "\nApart from the dots, which three words occur most often in it? The words are"
COMBINATIONS: list[dict[str, Any]] = [
    {},
    {"vocabulary": 5},
    {"vocabulary": 80, "alpha": 3.5},
    {"alpha": 1.1, "room": 40},
]


def frequent(**parameters: Any) -> lexbench.Task:
    return lexbench.task("frequent_words", **parameters)


def coded(text: str) -> list[str]:
    """Words of the coded text, without dots."""
    assert text.startswith(HEADER) and text.endswith(ASK)
    return re.findall(r"[^\s.]+", text.removeprefix(HEADER).removesuffix(ASK))


@pytest.mark.everyday("1900-parameters1")
@pytest.mark.parametrize("parameters", COMBINATIONS)
@pytest.mark.parametrize("length", [1900, 3001])
def test_a_plain_counter_finds_the_answer_and_no_other(
    tokenizer: FastTokenizer, lexlet: FastTokenizer, parameters: dict[str, Any], length: int
) -> None:
    task = frequent(**parameters)
    vocabulary = task.vocabulary  # type: ignore[attr-defined]
    for each in (tokenizer, lexlet):
        for question in questions_of(task, each, length, 8):
            assert len(question.prompt) + question.max_new_tokens == question.length == length
            assert question.prompt[0] == each.bos
            words = Counter(coded(each.decode(question.prompt)))
            ranked = words.most_common()
            assert [word for word, _ in ranked[:3]] == question.facts["expected"]
            counts = [count for _, count in ranked]
            assert counts[0] > counts[1] > counts[2] > counts[3]
            assert counts == question.facts["counts"]
            assert len(words) == vocabulary - 1
            assert question.answer == " " + ", ".join(question.facts["expected"])
            assert accuracy(task, each, question.answer, question) == (1, 1)
            assert question.max_new_tokens == parameters.get("room", len(each.encode(question.answer).ids) + 8)
            assert 1 / math.comb(vocabulary - 1, 3) < question.chance < 1


@pytest.mark.everyday("1")
@pytest.mark.parametrize("turn", [1, -1])
def test_who_names_the_first_or_last_different_words_is_right_as_often_as_chance_says(
    lexlet: FastTokenizer, turn: int
) -> None:
    questions, right = questions_of(frequent(), lexlet, 1024, 300), 0
    for question in questions:
        words = dict.fromkeys(coded(lexlet.decode(question.prompt))[::turn])
        right += set(list(words)[:3]) == set(question.facts["expected"])
    stated = [question.chance for question in questions]
    assert min(stated) > 0.1 and max(stated) < 0.2
    assert stats.binomtest(right, len(questions), sum(stated) / len(stated)).pvalue > 1e-3


@pytest.mark.everyday("counts0")
@pytest.mark.parametrize("counts", [(3, 2, 1, 1), (4, 3, 2, 1)])
def test_the_chance_is_that_of_all_orders_counted_one_by_one(counts: tuple[int, ...]) -> None:
    words = [word for word, count in enumerate(counts) for _ in range(count)]
    orders = set(itertools.permutations(words))
    right = sum(set(list(dict.fromkeys(order))[:3]) == {0, 1, 2} for order in orders)
    assert _chance_of_first(counts) == pytest.approx(right / len(orders))


@pytest.mark.parametrize(("alpha", "vocabulary"), [(2.0, 20), (2.0, 200), (3.0, 10)])
def test_shares_are_those_of_the_law_at_every_length(lexlet: FastTokenizer, alpha: float, vocabulary: int) -> None:
    """Each word's count, over the whole text with its dots, within 1 of k^-alpha by the truncated zeta function."""
    total = zeta(alpha, 1) - zeta(alpha, vocabulary + 1)
    for length in (3000, 9000):
        for question in questions_of(frequent(alpha=alpha, vocabulary=vocabulary), lexlet, length, 2):
            text = lexlet.decode(question.prompt)
            words = Counter(coded(text))
            dots = len(re.findall(r"(?<=\s)\.\.\.", text))
            law = np.arange(2, vocabulary + 1) ** -alpha / total * (dots + words.total())
            counts = np.asarray([count for _, count in words.most_common()])
            # rare words are raised to 1, which takes their excess from all others' shares
            excess = sum(max(0.0, 1 - share) for share in law)
            assert (np.abs(counts - np.maximum(law, 1)) <= 1 + excess * law / law.sum() + 0.02 * law).all()


def test_counts_by_hand() -> None:
    """Five ranks, alpha 2: 3600/5269 of 1, 1/4, 1/9, 1/16, 1/25; rounded down, at least 1."""
    task = frequent(vocabulary=5)
    assert task._counts(5269).tolist() == [3600, 900, 400, 225, 144]  # type: ignore[attr-defined]
    assert task._counts(100).tolist() == [68, 17, 7, 4, 2]  # type: ignore[attr-defined]
    assert task._counts(10).tolist() == [6, 1, 1, 1, 1]  # type: ignore[attr-defined]
    assert next(total for total in range(1, 101) if task._separate(total)) == 47  # type: ignore[attr-defined]
    assert [math.floor(47 * 3600 / 5269 / k**2) for k in range(1, 6)] == [32, 8, 3, 2, 1]
    assert [math.floor(46 * 3600 / 5269 / k**2) for k in range(1, 6)][2:4] == [3, 1]


@pytest.mark.slow
def test_a_text_without_a_clear_third_word_is_never_taken(tokenizer: FastTokenizer) -> None:
    """At every length from the least one on, though roundings make some totals tie."""
    task = frequent(alpha=1.2, vocabulary=8)
    assert not all(task._separate(total) for total in range(30, 90))  # type: ignore[attr-defined]
    with pytest.raises(Refused) as refusal:
        task.questions(tokenizer, 10, 1, 0)
    least = int(re.findall(r"\d+", refusal.value.reason)[0])
    for length in range(least, least + 150):
        [question] = questions_of(task, tokenizer, length, 1)
        counts = sorted(Counter(coded(tokenizer.decode(question.prompt))).values(), reverse=True)
        assert question.length == length
        assert counts[0] > counts[1] > counts[2] > counts[3]


def test_only_dots_fill_what_is_left(tokenizer: FastTokenizer) -> None:
    for question in questions_of(frequent(), tokenizer, 777, 16):
        text = tokenizer.decode(question.prompt).removeprefix(HEADER).removesuffix(ASK)
        assert set(re.sub(r"[b-z]{6}", "", text)) == {" ", "."}
        assert all(re.fullmatch(r"[bcdfghjklmnpqrstvwxz]{6}", word) for word in coded(HEADER + text + ASK))


def test_words_and_shares_are_the_same_at_every_length(lexlet: FastTokenizer) -> None:
    for short, long in zip(*(questions_of(frequent(), lexlet, length, 6) for length in (1000, 8000)), strict=True):
        assert (short.answer, short.max_new_tokens) == (long.answer, long.max_new_tokens)
        one, other = (Counter(coded(lexlet.decode(question.prompt))) for question in (short, long))
        assert set(one) == set(other)
        ratios = [other[word] / one[word] for word in short.facts["expected"]]
        assert max(ratios) / min(ratios) < 1.3


def test_the_order_is_uniform_and_differs_by_sample(lexlet: FastTokenizer) -> None:
    """The places of the most frequent word are uniform (chi-square of tenths, 0.001) and differ between samples."""
    places = []
    for question in questions_of(frequent(), lexlet, 1500, 60):
        words = re.findall(r"[b-z]{6}|\.\.\.", lexlet.decode(question.prompt).removeprefix(HEADER).removesuffix(ASK))
        first = question.facts["expected"][0]
        places.append([place / len(words) for place, word in enumerate(words) if word == first])
    counts = np.histogram(np.concatenate(places), bins=10, range=(0, 1))[0]
    assert counts.sum() > 1000
    assert stats.chisquare(counts).pvalue > 0.001
    assert len({tuple(each) for each in places}) == 60


def test_words_are_uniform_and_all_different(lexlet: FastTokenizer) -> None:
    """First letters of 40 * 19 words, 19 degrees of freedom, chi-square at 0.001."""
    words = [w for q in questions_of(frequent(), lexlet, 700, 40) for w in set(coded(lexlet.decode(q.prompt)))]
    assert len(words) == len(set(words)) == 40 * 19
    counts = Counter(word[0] for word in words)
    assert stats.chisquare([counts[letter] for letter in "bcdfghjklmnpqrstvwxz"]).pvalue > 0.001


def test_only_exactly_the_words_come_first(tokenizer: FastTokenizer) -> None:
    task = frequent()
    [question] = questions_of(task, tokenizer, 600, 1)
    words = question.facts["expected"]
    text = tokenizer.decode(question.prompt)
    ranked = [word for word, _ in Counter(coded(text)).most_common()]
    expected = {
        question.answer: (1, 1),
        f" {words[2]}, {words[0]} and {words[1]}.\nThe others": (1, 1),
        "": (0, 0),
        " ...": (0, 0),
        "I do not know": (0, 0),
        f" {words[0]}, {words[1]}": (0, 2 / 3),
        f" {words[0]}, {words[0]}, {words[0]}": (0, 1 / 3),
        " " + ", ".join(ranked[:4]): (0, 1),
        " " + ", ".join(ranked[1:4]): (0, 2 / 3),
        " " + ", ".join(ranked): (0, 1),
        " " + "".join(words): (0, 1),
        text: (0, 1),
    }
    assert {text: accuracy(task, tokenizer, text, question) for text in expected} == expected


def test_any_order_is_right(tokenizer: FastTokenizer) -> None:
    [question] = questions_of(frequent(), tokenizer, 600, 1)
    for order in itertools.permutations(question.facts["expected"]):
        assert accuracy(frequent(), tokenizer, " " + ", ".join(order), question) == (1, 1)


def test_a_chat_asks_the_same_in_its_template(tokenizer: FastTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = questions_of(frequent(), tokenizer, 700, 4)
    before, after = (tokenizer.encode(text).ids for text in ("User: ", "\n\nModel:\n"))
    monkeypatch.setattr(tokenizer, "frame", lambda chat: Frame(before, after) if chat else None)
    task = frequent(chat=True)
    for question, other in zip(questions_of(task, tokenizer, 700, 4), plain, strict=True):
        assert question.length == 700
        assert question.answer == other.answer
        text = tokenizer.decode(question.prompt)
        assert text.startswith("User: " + HEADER)
        assert text.endswith("most often in it?\n\nModel:\nThe words are")
    assert "chat template" in task.protocol(tokenizer)


def test_more_words_than_tokens_are_refused_at_once(tokenizer: FastTokenizer) -> None:
    with pytest.raises(Refused, match=r"frequent_words has 1,000,000,000 words, asked for 512 tokens: lower their"):
        frequent(vocabulary=10**9).questions(tokenizer, 512, 2, 0)


def test_the_least_length_is_said_and_is_the_least(tokenizer: FastTokenizer) -> None:
    with pytest.raises(Refused, match=r"needs at least \d+ tokens, asked for 20: raise length") as refusal:
        frequent().questions(tokenizer, 20, 6, 0)
    least = int(re.findall(r"\d+", refusal.value.reason)[0])
    assert {question.length for question in questions_of(frequent(), tokenizer, least, 6)} == {least}
    with pytest.raises(Refused, match=f"needs at least {least} tokens, asked for {least - 1}"):
        frequent().questions(tokenizer, least - 1, 6, 0)
    with pytest.raises(Refused, match=r"room of at least \d+ tokens for its answer, got 3: raise room"):
        frequent(room=3).questions(tokenizer, 900, 1, 0)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"vocabulary": 4}, "vocabulary must be at least 5, got 4"),
        ({"alpha": 1.0}, "alpha must be above 1 and at most 4, got 1.0"),
        ({"alpha": 4.5}, "alpha must be above 1 and at most 4, got 4.5"),
        ({"room": 0}, "room must be at least 1, got 0"),
    ],
)
def test_a_wrong_parameter_is_an_error(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        frequent(**parameters)


def test_questions_follow_from_seed_and_index(lexlet: FastTokenizer) -> None:
    here = fingerprint(frequent(), lexlet, 3)
    assert len(set(here)) == 3
    assert fingerprint(frequent(), lexlet, 9)[:3] == here
    assert not set(here) & set(fingerprint(frequent(), lexlet, 3, seed=1))
