"""Questions without an answer: the text lacks what is asked for and nothing else, and no bias is a skill."""

import csv
import functools
import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lexbench
from lexbench import Choose, ChooseAnswer, ConfigError, Generate
from lexbench.checkpoints.tokenizer import FastTokenizer
from lexbench.core import objects, registry
from lexbench.core.suites import expand_suite
from tests.answerers import perfect, written

ALL_TASKS: dict[str, dict[str, Any]] = {
    "passkey": {},
    "needle": {"haystack": "noise", "distractors": 3},
    "variable_tracking": {},
    "associative": {},
}
TASKS = {name: given for name, given in ALL_TASKS.items() if name in registry.registered_names("task")}
LENGTH, N = 460, 40


@functools.cache
def sights() -> dict[str, str]:
    """The sight of each city."""
    cls = objects.class_of(registry.read_named_config("task", "associative"), "task")
    file = Path(inspect.getfile(cls)).with_name("associative_sights.csv")
    with file.open(encoding="utf-8", newline="") as rows:
        return {city: sight for sight, city, _ in csv.reader(rows)}


def read(name: str, text: str) -> tuple[int, bool]:
    """Needles in a text, and whether one answers the question behind it; wording read anew here."""
    body, ask = text[: text.rindex("\n")], text[text.rindex("\n") :]
    if name == "passkey":
        named = re.search(r"pass key of ([A-Z][a-z]+)", ask)
        people = re.findall(r"The pass key(?: of ([A-Z][a-z]+))? is \d{5}\.", body)
        return 0, (named[1] if named else "") in people
    if name == "needle":
        keys = re.findall(r"magic numbers for ([a-z]+-[a-z]+) is: \d{7}\.", body)
        return len(keys), re.findall(r"number for ([a-z]+-[a-z]+)", ask)[0] in keys
    if name == "variable_tracking":
        given = re.findall(r"VAR [A-Z]{5} = (VAR [A-Z]{5}|\d{5})\.", body)
        return len(given), re.findall(r"the value (\d{5})", ask)[0] in given
    lives = re.findall(r"lives next to ([^.]+)\.", body)
    return len(lives), sights()[re.findall(r"been to ([^.?]+)[.?]", ask)[0]] in lives


def asked(name: str, tokenizer: FastTokenizer, how: str, **more: Any) -> list[Any]:
    return list(lexbench.task(name, **TASKS[name], absent=how, **more).questions(tokenizer, LENGTH, N, 0))


@pytest.mark.everyday("passkey-write", "needle-write", "variable_tracking-choose", "associative-write")
@pytest.mark.parametrize("how", ["write", "choose"])
@pytest.mark.parametrize("name", TASKS)
def test_half_of_the_texts_lack_the_answer_and_no_needle(lexlet: FastTokenizer, name: str, how: str) -> None:
    for several in (1, 2):
        found = asked(name, lexlet, how, questions_per_text=several)
        read_here = [read(name, lexlet.decode(question.prompt)) for question in found]
        assert [present for _, present in read_here] == [question.facts["present"] for question in found]
        assert len({needles for needles, _ in read_here}) == 1, "their number tells nothing"
        assert {question.length for question in found} == {LENGTH}
        pairs = np.reshape([present for _, present in read_here], (-1, 2))
        assert (pairs.sum(axis=1) == 1).all() and 0 < pairs[:, 0].sum() < 20, "one of each two, at random"


@pytest.mark.parametrize("name", TASKS)
def test_a_written_answer_is_the_item_or_none(lexlet: FastTokenizer, name: str) -> None:
    task = lexbench.task(name, **TASKS[name], absent="write")
    found = task.questions(lexlet, LENGTH, N, 0)
    right = next(question for question in found if isinstance(question, Generate) and question.facts["present"])
    lacking = next(question for question in found if isinstance(question, Generate) and not question.facts["present"])
    # Room and prompt do not tell: the same hint stands in both, and the longer answer fits.
    assert right.chance == lacking.chance == 0.5 and lacking.answer == " none"
    assert all('the answer is "none".' in lexlet.decode(each.prompt) for each in (right, lacking))
    other = {"passkey": "12345", "needle": "1234567", "variable_tracking": "QQQQQ", "associative": "Adam"}[name]

    def scores(question: Generate, text: str) -> tuple[float, float]:
        found = task.score(question, written(text, lexlet)).scores
        return found["accuracy"], found["balance"]

    assert scores(right, right.answer) == (1, 1)
    assert scores(right, " none") == (0, 0)
    assert scores(right, f" {other}") == (0, 1), "an answer, though a wrong one: a hit that is no right answer"
    assert scores(right, f" none, {right.answer}") == (0, 1)
    assert scores(lacking, " none") == scores(lacking, ' "None".') == (1, 1)
    for none in (" There is none.", "There are none", ' There\'s "none".', "There is\nnone\n"):
        assert scores(lacking, none) == (1, 1) and scores(right, none) == (0, 0), none
    assert scores(lacking, f" There is none, {other}") == (0, 0), "none, and yet an item"
    assert scores(right, f" There is {right.answer.strip()}") == (0, 0), "no other answer may stand in a sentence"
    assert scores(lacking, f" {other}") == (0, 0)
    assert scores(lacking, " green grass") == (0, 1), "no false alarm, and not right"


@pytest.mark.parametrize("name", TASKS)
def test_only_written_answers_have_a_new_edition(name: str) -> None:
    """Their scores have changed, so cells of before are not shown with those of now."""
    write, choose = (lexbench.task(name, **TASKS[name], absent=how) for how in ("write", "choose"))
    before = {"passkey": 2, "needle": 2, "variable_tracking": 1, "associative": 2}[name]
    assert (write.edition, choose.edition) == (before + 1, before)


@pytest.mark.parametrize("name", TASKS)
def test_the_likelier_of_true_and_false_counts(lexlet: FastTokenizer, name: str) -> None:
    task = lexbench.task(name, **TASKS[name], absent="choose")
    for question in task.questions(lexlet, LENGTH, 6, 0):
        assert isinstance(question, Choose) and question.chance == 0.5
        assert [lexlet.decode(option) for option in question.options] == [" True", " False"]
        assert question.expected == (not question.facts["present"])
        assert set(task.score(question, perfect(question, lexlet)).scores.values()) == {1.0}
        assert task.score(question, ChooseAnswer(nll=np.array([1.0, 1.0]))).scores == {"accuracy": 0.5, "balance": 0.5}


@pytest.mark.parts
def test_the_suite_names_all_tasks_and_takes_the_form() -> None:
    found = expand_suite({"name": "absent", **registry.read_named_config("task", "absent"), "absent": "choose"})
    assert {entry["name"]: entry["absent"] for entry in found} == dict.fromkeys(TASKS, "choose")


@pytest.mark.parts("associative", "variable_tracking")
@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("needle", {"absent": "often"}, "niah's absent must be write or choose, got often: leave it out for none"),
        ("needle", {"absent": "write", "queries": 2}, "niah's absent needs values=1 and queries=1, got values=1 and"),
        ("needle", {"absent": "choose", "options": 4}, "niah with absent chooses between True and False, got options"),
        ("associative", {"absent": "write", "needle": False}, "associative with absent leaves out half of the needles"),
        ("associative", {"absent": "choose", "room": 9}, "associative writes nothing with absent=choose, got room=9"),
        ("associative", {"absent": "write", "distractors": 23}, "distractors must be at most 22, one a sight, got 23"),
        (
            "variable_tracking",
            {"absent": "choose", "example": True},
            "variable_tracking's example has a written answer",
        ),
    ],
)
def test_what_cannot_be_asked_is_said_in_one_line(name: str, given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)) as error:
        lexbench.task(name, corpus=lexbench.corpus("synthetic"), **given)
    assert "\n" not in str(error.value)
