"""Associative needles: who knows the sights answers all; who only matches words or guesses stays at chance."""

import re
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

import lexbench
from lexbench import Choose, ChooseAnswer, Generate, GenerateAnswer, Refused
from lexbench.checkpoints.tokenizer import FastTokenizer
from lexbench.core import objects, registry
from lexbench.corpora.synthetic import Synthetic

CORPUS = Synthetic()
MODULE = sys.modules[objects.class_of(registry.read_named_config("task", "associative"), "task").__module__]
SIGHTS, NAMES = MODULE.SIGHTS, MODULE.FIRST_NAMES
LINE = re.compile(r" ([A-Z][a-z]+) lives (?:next to|in) ([^.]+)\.")
N = 200


def associative(**parameters: Any) -> lexbench.Task:
    return lexbench.task("associative", corpus=CORPUS, **parameters)


def asked(tokenizer: FastTokenizer, length: int = 400, n: int = N, **parameters: Any) -> list[Any]:
    return list(associative(**parameters).questions(tokenizer, length, n, 0))


def parts(tokenizer: FastTokenizer, question: Any) -> tuple[list[tuple[str, str]], str]:
    """People with where they live, in the order of the text; and the place asked for."""
    text = tokenizer.decode(question.prompt)
    body, _, rest = text.partition("Which of these people has been to ")
    place = rest.partition("?")[0]
    return LINE.findall(body), place


def words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]+", text.lower())) - {"the", "of"}


def test_no_sight_shares_a_word_with_a_place_and_no_two_a_place() -> None:
    places = [words(place) for _, *pair in SIGHTS for place in pair]
    assert not any(words(sight) & place for sight, *_ in SIGHTS for place in places)
    for column in range(3):
        assert len({row[column] for row in SIGHTS}) == len(SIGHTS)
    assert len(set(NAMES)) == len(NAMES) and not any(words(name) & place for name in NAMES for place in places)
    assert not any(words(name) & words(sight) - {"frank"} for name in NAMES for sight, *_ in SIGHTS)


@pytest.mark.slow
@pytest.mark.parametrize("hops", [1, 2])
@pytest.mark.parametrize("haystack", ["noise", "text"])
def test_who_knows_the_sights_answers_and_who_matches_words_finds_nothing(
    lexlet: FastTokenizer, hops: int, haystack: str
) -> None:
    task = associative(hops=hops, haystack=haystack)
    for question in asked(lexlet, n=40, hops=hops, haystack=haystack):
        people, place = parts(lexlet, question)
        known = {sight: pair[hops - 1] for sight, *pair in SIGHTS}
        assert len(people) == 4
        [name] = [name for name, sight in people if known[sight] == place]
        assert [name] == question.facts["expected"]
        assert not any(words(place) & words(sight) for _, sight in people)
        for text, score in ((f" {name}.", 1.0), (f" {people[0][0]}", float(people[0][0] == name)), (" Rome", 0.0)):
            answer = GenerateAnswer(tokens=np.empty(0, np.int64), text=text, hit_room=False)
            assert task.score(question, answer).scores["accuracy"] == score


@pytest.mark.everyday("form0", "form1", "form2", "form3")
@pytest.mark.parametrize("form", [{}, {"hops": 2}, {"link": "direct"}, {"needle": False}, {"haystack": "text"}])
def test_every_length_is_exact(lexlet: FastTokenizer, form: dict[str, Any]) -> None:
    for length in (300, 301, 777):
        assert {question.length for question in asked(lexlet, length, 4, **form)} == {length}


def test_all_forms_have_the_same_people_and_the_direct_one_is_found_by_words(lexlet: FastTokenizer) -> None:
    forms = [asked(lexlet, n=20, **form) for form in ({}, {"link": "direct"}, {"needle": False})]
    for plain, direct, control in zip(*forms, strict=True):
        assert plain.facts["expected"] == direct.facts["expected"] == control.facts["expected"]
        [name] = plain.facts["expected"]
        people, place = parts(lexlet, direct)
        assert [who for who, where in people if words(place) <= words(where)] == [name]
        left = [who for who, _ in parts(lexlet, control)[0]]
        assert name not in left and len(left) == 3


GUESSERS: dict[str, Callable[[list[str]], str]] = {
    "first": lambda names: names[0],
    "last": lambda names: names[-1],
    "middle": lambda names: names[len(names) // 2],
    "first in the alphabet": min,
    "shortest": lambda names: min(names, key=len),
}


@pytest.mark.everyday("middle")
@pytest.mark.parametrize("guess", GUESSERS)
def test_guessing_from_the_text_is_right_as_often_as_chance_says(lexlet: FastTokenizer, guess: str) -> None:
    questions = asked(lexlet)
    right = sum(
        GUESSERS[guess]([name for name, _ in parts(lexlet, question)[0]]) == question.facts["expected"][0]
        for question in questions
    )
    assert {question.chance for question in questions} == {0.25}
    assert stats.binomtest(right, N, 0.25).pvalue > 1e-3


@pytest.mark.slow
def test_options_are_of_equal_size_stand_in_the_text_and_the_right_one_anywhere(lexlet: FastTokenizer) -> None:
    task = associative(options=4)
    questions = [question for question in asked(lexlet, options=4) if isinstance(question, Choose)]
    assert len(questions) == N
    for question in questions:
        names = [lexlet.decode(option).strip() for option in question.options]
        assert sorted(names) == sorted(name for name, _ in parts(lexlet, question)[0])
        assert names[question.expected] == question.facts["expected"][0]
        assert len({len(option) for option in question.options}) == 1
    assert stats.chisquare(list(Counter(question.expected for question in questions).values())).pvalue > 1e-3
    sample = task.score(questions[0], ChooseAnswer(nll=-np.eye(4)[questions[0].expected]))
    assert (sample.scores["accuracy"], sample.chance, sample.depth) == (1.0, 0.25, questions[0].facts["depth"])
    for question in asked(lexlet, n=20, options=4, needle=False):
        offered = {lexlet.decode(option).strip() for option in question.options}
        assert not offered & {name for name, _ in parts(lexlet, question)[0]}


def test_depths_fill_every_stratum_equally_and_needles_stay_at_every_length(lexlet: FastTokenizer) -> None:
    short, long = (asked(lexlet, length, 32) for length in (300, 900))
    for near, far in zip(short, long, strict=True):
        assert parts(lexlet, near)[1] == parts(lexlet, far)[1]
        assert set(parts(lexlet, near)[0]) == set(parts(lexlet, far)[0])
    for questions in (short, long):
        assert Counter(min(7, int(each.facts["depth"] * 8)) for each in questions) == dict.fromkeys(range(8), 4)
        assert all(isinstance(each, Generate) for each in questions)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"hops": 3}, "associative's hops must be one of 1, 2, got 3"),
        ({"link": "none"}, "associative's link must be one of association, direct, got none"),
        ({"distractors": 24}, "associative's distractors must be at most 23, one a sight, got 24"),
        ({"distractors": 0}, "associative's distractors must be at least 1, got 0"),
        ({"options": 4, "room": 9}, "associative writes nothing with options, got room=9: leave it out"),
    ],
)
def test_wrong_parameters_are_one_line(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        associative(**parameters)


def test_too_short_a_length_and_too_few_names_are_refused(lexlet: FastTokenizer) -> None:
    with pytest.raises(Refused, match=r"^associative needs at least \d+ tokens, asked for 40: raise length"):
        asked(lexlet, 40)
    with pytest.raises(
        Refused, match=r"^associative has \d+ names of equally many tokens, needs 55: lower options or distractors"
    ):
        asked(lexlet, options=50, distractors=4)


def test_a_name_may_be_followed_by_other_words_but_not_by_a_name(lexlet: FastTokenizer) -> None:
    task = lexbench.task("associative")
    for question in task.questions(lexlet, 420, 4, 0):
        name = question.facts["expected"][0]
        other = "Adam" if name != "Adam" else "Alice"
        forms = {"{}, who lives next to it.": 1, "{} because of it": 1, "{}\n\nQuestion": 1, "{} and " + other: 0}
        for form, accuracy in forms.items():
            answer = GenerateAnswer(tokens=np.empty(0, np.int64), text=" " + form.format(name), hit_room=False)
            assert task.score(question, answer).scores["accuracy"] == accuracy, form
