"""Common words: a plain counter finds them, the constants are constant, and the scorer cannot be fooled."""

import math
import re
import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest
from scipy import stats

import lexbench
from lexbench import Frame, Refused
from lexbench.checkpoints.tokenizer import FastTokenizer
from lexbench.taskkit import sampling
from tests.tasks.asked import accuracy, fingerprint, questions_of

HEADER = "This numbered list has words that occur more often than others.\n"
ASK = r"\nWhich (\d+) words occur most often in the list\? The words are$"
COMBINATIONS: list[dict[str, Any]] = [
    {},
    {"common": 1, "times": 2},
    {"common": 4, "times": 5, "others": 2},
    {"common": 10, "times": 6, "others": 1},
    {"common": 2, "times": 20, "others": 3, "room": 40},
]


def common(**parameters: Any) -> lexbench.Task:
    return lexbench.task("common_words", **parameters)


def listed(text: str) -> list[str]:
    """Words of the list; the numbers before them count from 1."""
    lines = re.findall(r"^(\d+)\. (\S+)$", text, re.MULTILINE)
    assert [int(number) for number, _ in lines] == list(range(1, len(lines) + 1))
    return [word for _, word in lines]


@pytest.mark.everyday("1100-parameters0", "1100-parameters3")
@pytest.mark.parametrize("parameters", COMBINATIONS)
@pytest.mark.parametrize("length", [1100, 2001])
def test_a_plain_counter_finds_the_answer_and_no_other(
    tokenizer: FastTokenizer, lexlet: FastTokenizer, parameters: dict[str, Any], length: int
) -> None:
    task = common(**parameters)
    count, times, others = (getattr(task, name) for name in ("common", "times", "others"))
    for each in (tokenizer, lexlet):
        for question in questions_of(task, each, length, 8):
            assert len(question.prompt) + question.max_new_tokens == question.length == length
            assert question.prompt[0] == each.bos
            text = each.decode(question.prompt)
            words = Counter(listed(text))
            assert sorted(words.values(), reverse=True) == [times] * count + [others] * (len(words) - count)
            top = {word for word, _ in words.most_common(count)}
            assert top == set(question.facts["expected"])
            assert question.answer == " " + ", ".join(question.facts["expected"])
            assert int(re.findall(ASK, text)[0]) == count
            assert accuracy(task, each, question.answer, question) == (1, 1)
            assert question.max_new_tokens == parameters.get("room", len(each.encode(question.answer).ids) + 8)
            assert len(words) >= 2 * count
            assert 1 / math.comb(len(words), count) < question.chance < 1


@pytest.mark.slow
@pytest.mark.parametrize("turn", [1, -1])
@pytest.mark.parametrize("parameters", [{}, {"common": 2, "times": 9, "others": 2}])
def test_who_names_the_first_or_last_different_words_is_right_as_often_as_chance_says(
    lexlet: FastTokenizer, parameters: dict[str, Any], turn: int
) -> None:
    questions, right = questions_of(common(**parameters), lexlet, 380, 300), 0
    for question in questions:
        expected = set(question.facts["expected"])
        words = dict.fromkeys(listed(lexlet.decode(question.prompt))[::turn])
        right += set(list(words)[: len(expected)]) == expected
    stated = [question.chance for question in questions]
    assert min(stated) > 0.05
    assert stats.binomtest(right, len(questions), sum(stated) / len(stated)).pvalue > 1e-3


def test_the_prompt_reads_as_in_the_docstring(tokenizer: FastTokenizer) -> None:
    """Cut noise before the list, shorter than one more word with its number: 7 and 5 tokens."""
    noise = " The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
    for question in questions_of(common(), tokenizer, 800, 24):
        text = tokenizer.decode(question.prompt)
        filler, _, rest = text.removeprefix(HEADER).partition("\n1. ")
        assert noise.startswith(filler)
        assert len(tokenizer.encode(filler).ids) < 7 + 5
        assert re.fullmatch(r"(?:\w+\n\d+\. )+\w+", re.split(ASK, rest)[0])


def test_words_are_pronounceable_equally_long_and_never_meet(lexlet: FastTokenizer) -> None:
    words = {
        word for question in questions_of(common(), lexlet, 4000, 8) for word in listed(lexlet.decode(question.prompt))
    }
    assert len(words) > 3000
    assert all(re.fullmatch(r"([bcdfghjklmnprstvwz][aeiou]){3}", word) for word in words)


def test_all_words_come_once_and_then_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """18 consonants and 5 vowels: 90 words of one syllable."""
    module = sys.modules[type(common()).__module__]
    assert module.CANDIDATE_WORDS.count == 90**3
    monkeypatch.setattr(module, "CANDIDATE_WORDS", sampling.Combined([sampling.TWO_LETTER_SYLLABLES]))
    spelled = module._shuffled_words(np.random.default_rng(0))
    words = [next(spelled) for _ in range(90)]
    assert sorted(words) == sorted(c + v for c in "bcdfghjklmnprstvwz" for v in "aeiou")
    with pytest.raises(Refused, match="90 different words, the list needs more"):
        next(spelled)


def test_a_list_that_needs_more_words_is_refused(tokenizer: FastTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules[type(common()).__module__]
    monkeypatch.setattr(module, "CANDIDATE_WORDS", sampling.Combined([sampling.TWO_LETTER_SYLLABLES]))
    assert questions_of(common(), tokenizer, 500, 1)
    with pytest.raises(Refused, match="90 different words, the list needs more: raise others or lower length"):
        questions_of(common(), tokenizer, 4000, 1)


def test_what_grows_is_the_number_of_other_words_alone(lexlet: FastTokenizer) -> None:
    for short, long in zip(*(questions_of(common(), lexlet, length, 6) for length in (800, 3200)), strict=True):
        assert (short.answer, short.max_new_tokens) == (long.answer, long.max_new_tokens)
        one, other = (Counter(listed(lexlet.decode(question.prompt))) for question in (short, long))
        assert set(one) < set(other)
        assert all(other[word] == count for word, count in one.items())
        assert len(other) == other.total() - 3 * 7 == long.facts["different"]
        assert len(other) > 3 * len(one)


@pytest.mark.slow
def test_the_order_is_uniform_and_differs_by_sample(lexlet: FastTokenizer) -> None:
    """The place of a common word, as a share of the list, is uniform (chi-square of tenths, 0.001), and samples have
    different orders (with a fixed order the places would be equal)."""
    places = []
    for question in questions_of(common(), lexlet, 1200, 60):
        words = listed(lexlet.decode(question.prompt))
        places.append([place / len(words) for place, word in enumerate(words) if word in question.facts["expected"]])
    counts = np.histogram(np.concatenate(places), bins=10, range=(0, 1))[0]
    assert counts.sum() == 60 * 24
    assert stats.chisquare(counts).pvalue > 0.001
    assert len({tuple(each) for each in places}) == 60


def test_words_are_uniform(lexlet: FastTokenizer) -> None:
    """First letters of 20 * 90 and more different words, 17 degrees of freedom, chi-square at 0.001."""
    words = [w for q in questions_of(common(), lexlet, 1200, 20) for w in set(listed(lexlet.decode(q.prompt)))]
    counts = Counter(word[0] for word in words)
    assert len(counts) == 18
    assert stats.chisquare(list(counts.values())).pvalue > 0.001


def test_only_exactly_the_words_come_first(tokenizer: FastTokenizer) -> None:
    task = common(common=2)
    [question] = questions_of(task, tokenizer, 600, 1)
    one, two = question.facts["expected"]
    text = tokenizer.decode(question.prompt)
    third = next(word for word in listed(text) if word not in (one, two))
    expected = {
        question.answer: (1, 1),
        f" {two} and {one}.\nThe others": (1, 1),
        f"\n1. {one}\n2. {two}\n": (1, 1),
        f"1) {two} 2) {one}": (1, 1),
        f" {one}, {two} come most often": (1, 1),
        f" {one}, {two}\n3. {third}": (0, 1),
        "": (0, 0),
        "I do not know": (0, 0),
        f" {one}": (0, 0.5),
        f" {one}, {one}": (0, 0.5),
        f" {one}, {two}, {third}": (0, 1),
        f" {third}, {one}, {two}": (0, 1),
        f"\n1. {one}\n2. {two}\n3. {third}": (0, 1),
        f" {one}{two}": (0, 1),
        f" {one}s, {two}": (0, 1),
        ", ".join(dict.fromkeys(listed(text))): (0, 1),
        text: (0, 1),
        "\n1. " + text.partition("\n1. ")[2]: (0, 1),
    }
    assert {text: accuracy(task, tokenizer, text, question) for text in expected} == expected


def test_a_chat_asks_the_same_in_its_template(tokenizer: FastTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = questions_of(common(), tokenizer, 700, 4)
    before, after = (tokenizer.encode(text).ids for text in ("User: ", "\n\nModel:\n"))
    monkeypatch.setattr(tokenizer, "frame", lambda chat: Frame(before, after) if chat else None)
    task = common(chat=True)
    for question, other in zip(questions_of(task, tokenizer, 700, 4), plain, strict=True):
        assert question.length == 700
        assert question.answer == other.answer
        text = tokenizer.decode(question.prompt)
        assert text.startswith("User: " + HEADER)
        assert text.endswith("in the list?\n\nModel:\nThe words are")
    assert "chat template" in task.protocol(tokenizer)


def test_the_least_length_is_said_and_is_the_least(tokenizer: FastTokenizer) -> None:
    with pytest.raises(Refused, match=r"needs at least \d+ tokens, asked for 10: raise length or lower times") as said:
        common().questions(tokenizer, 10, 6, 0)
    least = int(re.findall(r"\d+", said.value.reason)[0])
    questions = questions_of(common(), tokenizer, least, 6)
    assert {question.length for question in questions} == {least}
    assert min(question.facts["different"] for question in questions) == 6
    with pytest.raises(Refused, match=f"needs at least {least} tokens, asked for {least - 1}"):
        common().questions(tokenizer, least - 1, 6, 0)
    with pytest.raises(Refused, match=r"room of at least \d+ tokens for its answer, got 3: raise room"):
        common(room=3).questions(tokenizer, 900, 1, 0)


@pytest.mark.parametrize(
    ("parameters", "bound"),
    [({"times": 10**8}, 2 * 3 * (10**8 + 1)), ({"common": 10**8}, 2 * 10**8 * 9), ({"times": 1600}, None)],
)
def test_what_cannot_fit_is_refused_at_once(
    tokenizer: FastTokenizer, parameters: dict[str, Any], bound: int | None
) -> None:
    """Every occurrence has a word and a number; up to 10,000 tokens the least length is exact."""
    with pytest.raises(Refused, match="raise length or lower times") as refusal:
        common(**parameters).questions(tokenizer, 2000, 4, 0)
    said = int(re.findall(r"\d+", refusal.value.reason)[0])
    assert said == bound if bound else said > 2 * 3 * 1601


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        *(({name: 0}, f"{name} must be at least 1, got 0") for name in ("common", "others", "room")),
        ({"times": 3, "others": 3}, "times must be more than others=3, got 3"),
    ],
)
def test_a_wrong_parameter_is_an_error(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        common(**parameters)


def test_questions_follow_from_seed_and_index(lexlet: FastTokenizer) -> None:
    here = fingerprint(common(), lexlet, 3)
    assert len(set(here)) == 3
    assert fingerprint(common(), lexlet, 9)[:3] == here
    assert not set(here) & set(fingerprint(common(), lexlet, 3, seed=1))
