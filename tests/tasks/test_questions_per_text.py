"""Several questions behind one text: a shared prefix, exact lengths, spread depths, and the questions of before."""

import hashlib
import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lexbench
from lexbench import Choose, Generate, Task
from lexbench.backends.caches import common_prefix_length
from lexbench.checkpoints.tokenizer import FastTokenizer
from lexbench.core.task import AnyQuestion
from lexbench.runner.cells import Component
from lexbench.taskkit import haystack
from tests.tasks.asked import TASKS_OF_PARTS, questions_of

BEFORE: list[tuple[str, dict[str, Any], str]] = [
    ("passkey", {}, "35d07132008d18f5"),
    ("passkey", {"needle": False, "strata": 3}, "829f16d0457e524e"),
    ("niah_single_2", {}, "362425183ff7bb08"),
    ("niah_multikey_1", {"options": 4}, "b57273157850a3af"),
    ("niah_multikey_2", {}, "1b04acec7ecdc8c6"),
    ("niah_multikey_3", {}, "feb2317b6f3a58a3"),
    ("niah_multiquery", {}, "1babc02c05606f48"),
    ("niah_multivalue", {"needle": False}, "b9fe1991d000706b"),
    ("needle", {}, "5ce33c77300d25d3"),
    ("variable_tracking", {"example": True}, "f34a619b948e51cf"),
    ("variable_tracking", {"chains": 1, "needle": False}, "366198c29d23e0fe"),
    ("associative", {"options": 3}, "092b9b21a33fdd6b"),
    ("associative", {"needle": False, "haystack": "text"}, "0684d10af8d8b9d2"),
    ("spread_arithmetic", {}, "96c2e74da8bd2560"),
    ("spread_arithmetic", {"steps": 0, "needle": False}, "fabe56622958b5fd"),
    ("spread_arithmetic", {"choose": True}, "b3f77941fb87d6b8"),
    ("nth_needle", {}, "bcb591a709ece5a5"),
    ("nth_needle", {"which": "last", "choose": True}, "25072319d25d34ff"),
    ("conflicting_needles", {}, "49053bc7a93be67c"),
    ("counting", {}, "ba72ffa95479eb73"),
    ("ordering", {}, "688794a20b1f8840"),
    ("graph_walk", {}, "48bdc599bc87fcb1"),
    ("graph_walk_bfs", {}, "e20b66e8e693e7d8"),
    ("many_labels", {}, "50bef56b83edee38"),
    ("passkey", {"absent": "write"}, "0ab17e46d29d4c03"),
    ("needle", {"absent": "write"}, "c9b646dcb7ee33b4"),
    ("variable_tracking", {"absent": "write"}, "b46ae609c94ab2e4"),
    ("associative", {"absent": "write"}, "4b772d7e7823b3a6"),
]
"""Tasks with a hash of their questions in the commit before there could be several behind one text; with absent=write,
in the one before "There is none" was right."""
SEVERAL: list[tuple[str, dict[str, Any]]] = [
    ("passkey", {}),
    ("niah_single_2", {}),
    ("niah_multikey_2", {}),
    ("niah_multiquery", {"queries": 2}),
    ("niah_multivalue", {"values": 2}),
    ("niah_multikey_1", {"options": 4}),
    ("variable_tracking", {"example": True}),
    ("associative", {}),
    ("associative", {"options": 3, "haystack": "text"}),
    ("spread_arithmetic", {}),
    ("spread_arithmetic", {"steps": 0}),
    ("nth_needle", {"alike": 3}),
    ("counting", {}),
    ("ordering", {}),
]
LENGTH = 1500


def task_of(name: str, **given: Any) -> Task:
    return lexbench.task(name, corpus=lexbench.corpus("synthetic", count=6, words=1000), **given)


def said_before(question: AnyQuestion) -> dict[str, Any]:
    """What a question said when the hashes were made: without later fields, and without later facts for scores."""
    assert isinstance(question, Generate | Choose)
    said = {key: value for key, value in vars(question).items() if key not in ("text_tokens", "shortcut", "layout")}
    said["prompt"] = question.prompt.tolist()
    said["facts"] = {key: value for key, value in question.facts.items() if key not in ("keys_in_text", "taught")}
    if isinstance(question, Choose):
        return {**said, "options": [option.tolist() for option in question.options]}
    return {"room" if key == "max_new_tokens" else key: said[key] for key in said.keys() - {"options", "expected"}}


@pytest.mark.parts(*TASKS_OF_PARTS)
@pytest.mark.parametrize(("name", "given", "expected"), BEFORE, ids=str)
def test_questions_seeds_and_identities_stay_by_default(
    name: str, given: dict[str, Any], expected: str, lexlet: FastTokenizer
) -> None:
    task = task_of(name, **given)
    found = [said_before(question) for question in task.questions(lexlet, 900, 10, 3)]
    if name == "counting":  # since then its chance is that of the best blind guess
        found = [{**said, "chance": 1 / 5} for said in found]
    page = json.dumps(found, sort_keys=True, default=dict)
    assert hashlib.sha256(page.encode()).hexdigest()[:16] == expected
    assert "questions_per_text" not in Component(name, task, name).identity
    if name.startswith(("graph_walk", "many_labels")):
        with pytest.raises(ValueError, match="asks one question behind each text, got questions_per_text=2"):
            task_of(name, **given, questions_per_text=2)
        return
    several = task_of(name, **given, questions_per_text=2)
    assert Component(name, several, name).identity["questions_per_text"] == 2
    assert several.rng(1).random() != task.rng(1).random()


@pytest.mark.parts(*TASKS_OF_PARTS)
@pytest.mark.everyday(
    "passkey-{}-True", "niah_multiquery-{'queries': 2}-False", "variable_tracking-{'example': True}-True"
)
@pytest.mark.parametrize("needle", [True, False])
@pytest.mark.parametrize(("name", "given"), SEVERAL, ids=str)
def test_questions_of_a_text_share_all_but_the_end_and_fill_the_length(
    name: str, given: dict[str, Any], needle: bool, lexlet: FastTokenizer
) -> None:
    task = task_of(name, **given, needle=needle, questions_per_text=4)
    asked = [each for each in task.questions(lexlet, LENGTH, 10, 0) if isinstance(each, Generate | Choose)]
    assert [question.index for question in asked] == [*range(10)], "a text may have fewer questions than needles"
    for first in (0, 4, 8):
        text = asked[first : first + 4]
        assert len({question.cluster for question in text}) == 1
        for question in text:
            # Only the last words, which name what is asked for, and the filler in front of them differ.
            assert common_prefix_length(text[0].prompt, question.prompt) > LENGTH - 150
            fixed = len(question.prompt) + (question.max_new_tokens if isinstance(question, Generate) else 1)
            assert question.length == LENGTH if isinstance(question, Generate) else fixed <= LENGTH
            if name not in ("spread_arithmetic", "counting", "ordering"):  # computed, or named by the question
                said = lexlet.decode(question.prompt)
                for value in [question.facts["expected"]] if name == "passkey" else question.facts["expected"]:
                    assert (value in said) == needle
        assert len({lexlet.decode(question.prompt).rpartition("\n")[2] for question in text}) == len(text)


@pytest.mark.parts(*TASKS_OF_PARTS)
@pytest.mark.parametrize(("name", "given"), SEVERAL, ids=str)
def test_more_samples_only_append_questions(name: str, given: dict[str, Any], lexlet: FastTokenizer) -> None:
    task = task_of(name, **given, questions_per_text=3)
    few, many = (task.questions(lexlet, LENGTH, n, 0) for n in (4, 7))
    for one, other in zip(few, many, strict=False):
        assert isinstance(one, Generate | Choose) and isinstance(other, Generate | Choose)
        np.testing.assert_array_equal(one.prompt, other.prompt)
        assert one.facts == other.facts


@pytest.mark.parametrize("count", [1, 3, 4, 8, 12])
def test_depths_are_spread_over_each_text_and_evenly_over_all(count: int) -> None:
    """Over 8 texts each of 8 strata holds as many questions as there are in a text; in a text they stand apart."""
    rng, strata = np.random.default_rng(0), 8
    drawn = np.array(
        [[haystack.stratified_depth_in_text(t, q, count, strata, rng) for q in range(count)] for t in range(strata)]
    )
    parts = (drawn * strata).astype(int)
    assert np.bincount(parts.ravel(), minlength=strata).tolist() == [count] * strata
    assert all(len({*row}) == min(count, strata) for row in parts.tolist())


def test_depths_of_a_text_of_passkeys_are_one_in_each_stratum(tokenizer: FastTokenizer) -> None:
    asked = questions_of(task_of("passkey", questions_per_text=8), tokenizer, 6000, 16)
    for text in (asked[:8], asked[8:]):
        depths = [question.facts["depth"] for question in text]
        assert sorted(min(int(depth * 8), 7) for depth in depths) == [*range(8)]


def test_a_depth_of_niah_is_where_the_needle_stands(lexlet: FastTokenizer) -> None:
    """Without the needle itself, as the docstring says; counted in the decoded text's tokens."""
    asked = questions_of(task_of("niah_single_1", questions_per_text=4), lexlet, LENGTH, 8)
    header = len(lexlet.encode("Remember the special magic numbers in this text.\n").ids) + len(
        lexlet.frame(False).before
    )
    for question in asked:
        key, [value] = question.facts["keys"][0], question.facts["expected"]
        needle = lexlet.encode(f" One of the special magic numbers for {key} is: {value}.").ids
        rows = np.lib.stride_tricks.sliding_window_view(question.prompt, len(needle))
        [place] = np.flatnonzero((rows == needle).all(axis=1))
        longest = max(each.length - header - each.max_new_tokens for each in asked)
        assert question.facts["depth"] == pytest.approx((place - header) / (longest - len(needle)), abs=0.03)


def test_chance_is_that_of_any_key_of_the_text(tokenizer: FastTokenizer) -> None:
    """One of 8 keys; the control shows none: one of 90,000 numbers. Of niah: 1 / C(8, 2) for 2 of 8 keys."""
    for needle, expected in ((True, 1 / 8), (False, 1 / 90_000)):
        [question, *_] = questions_of(task_of("passkey", needle=needle, questions_per_text=8), tokenizer, 1500, 8)
        assert question.chance == expected
    [question, *_] = questions_of(task_of("niah_multiquery", queries=2, questions_per_text=4), tokenizer, 4000, 4)
    assert question.chance == 1 / 28


def test_keys_of_other_questions_count_as_distractors(tokenizer: FastTokenizer) -> None:
    """Of 3 other keys 1 is asked for: 4 needles in a text, as with one question behind it."""
    for count, needles in ((1, 4), (2, 4), (4, 4), (6, 6)):
        task = task_of("niah_multikey_1", questions_per_text=count)
        [question, *_] = questions_of(task, tokenizer, 3000, count)
        assert tokenizer.decode(question.prompt).count("One of the special magic numbers for") == needles
        assert question.chance == 1 / needles


def last_of_chain(text: str, ask: str) -> list[str]:
    given = dict(re.findall(r"The (\w+) has the number (\d)\.", text))
    steps = {
        name: (before, int(value))
        for name, before, value in re.findall(r"The (\w+) has the number of the (\w+) plus (\d)\.", text)
    }
    [name], total = re.findall(r"Which number does the (\w+) have", ask), 0
    while name in steps:
        name, value = steps[name]
        total += value
    return [str((total + int(given[name])) % 10)]


def nth_word(text: str, ask: str) -> list[str]:
    [(name, nth)] = re.findall(r"Which word does (\w+) say the (\w+) time", ask)
    place = ("first", "second", "third").index(nth)
    return [re.findall(rf"{name} says the word (\w+)\.", text)[place]]


def times_rung(text: str, ask: str) -> list[str]:
    [name] = re.findall(r"How often does (\w+) ring", ask)
    return [str(text.count(f"{name} rings the bell."))]


def order_of_coming(text: str, ask: str) -> list[str]:
    [names] = re.findall(r"In which order do (.+) come in\?", ask)
    return sorted(names.split(", "), key=lambda name: text.index(f"{name} comes in."))


def names_of_value(text: str, ask: str) -> list[str]:
    [value] = re.findall(r"have the value (\w+),", ask)
    given, held = dict(re.findall(r"VAR (\w+) = (?:VAR )?(\w+)\.", text)), list[str]()
    while name := next((name for name, of in given.items() if of == (held[-1] if held else value)), None):
        held.append(name)
    return held


@pytest.mark.parts
@pytest.mark.parametrize(
    ("name", "given", "solve"),
    [
        ("spread_arithmetic", {}, last_of_chain),
        ("spread_arithmetic", {"steps": 0, "others": 1}, last_of_chain),
        ("nth_needle", {"alike": 3}, nth_word),
        ("counting", {}, times_rung),
        ("ordering", {}, order_of_coming),
        ("variable_tracking", {}, names_of_value),
    ],
)
def test_each_question_has_its_answer_in_the_text(
    name: str, given: dict[str, Any], solve: Callable[[str, str], list[str]], lexlet: FastTokenizer
) -> None:
    """Read by regular expressions from text and question."""
    for question in questions_of(task_of(name, **given, questions_per_text=5), lexlet, LENGTH, 10):
        text, _, ask = lexlet.decode(question.prompt).rpartition("\n")
        assert solve(text, ask) == question.facts["expected"]


def test_too_many_questions_are_an_error() -> None:
    with pytest.raises(ValueError, match="questions_per_text must be at least 1, got 0"):
        task_of("passkey", questions_per_text=0)
    with pytest.raises(ValueError, match="passkey has 9 people with a key of their own, got questions_per_text=10"):
        task_of("passkey", questions_per_text=10, digits=1)
