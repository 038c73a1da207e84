"""Sizes that tasks tell before any question is written, against the questions themselves."""

import itertools
from typing import Any

import pytest

import lexbench
from lexbench import Choose, Generate, Outline, ProbeAttention, Refused, Task
from lexbench.backends.caches import common_prefix_length
from lexbench.checkpoints.tokenizer import FastTokenizer
from lexbench.core import registry
from lexbench.taskkit.prompt import TEXTS_FOR_SIZES
from tests.tasks.asked import TASKS_OF_PARTS
from tests.tasks.test_questions_per_text import SEVERAL

N, SEED, LENGTHS = 20, 3, (900, 1500)
WRITTEN = 0.1
"""Share by which the room of all questions may differ from the one told by the first texts."""
BEHIND = 25
"""Tokens of a question behind a shared text by which those told may differ: questions begin alike, some are filled."""
TEXTS = lexbench.corpus("synthetic", count=24, words=3000)
DATA = {"long_ppl", "longbench", "qa_squad", "qa_hotpotqa"} | {
    name
    for name in registry.registered_names("task")
    if "official" in str(registry.read_named_config("task", name).get("_target_"))
}
"""Tasks whose data are not here; their own tests tell."""
MORE: list[tuple[str, dict[str, Any]]] = [
    *((name, {"questions_per_text": 4, **given}) for name, given in SEVERAL),
    ("arithmetic", {"ask": "choose"}),
    ("arithmetic", {"ask": "mark", "shown": True}),
    ("copy", {"size": 40}),
    ("distractor_qa", {"options": 4}),
    ("last_segment", {"stream": True}),
    ("nth_needle", {"choose": True}),
    ("passkey", {"room": 30}),
    ("repeated", {"repeat": False}),
    ("sliding", {"stride": 33}),
]
"""Tasks with other parameters than those of their yaml."""


EVERYDAY = pytest.mark.everyday(
    *("last_segment-{}", "sliding-{'stride': 33}", "divergence-{}", "mqar-{}", "passkey-{}", "passkey-{'room': 30}"),
    *("copy-{}", "arithmetic-{'ask': 'mark', 'shown': True}", "nth_needle-{'choose': True}", "resolution-{}"),
    "variable_tracking-{'questions_per_text': 4, 'example': True}",
)
"""One of each kind: losses, options, places, written answers, probes; a text of its own, and one for several."""


def names() -> list[str]:
    return [
        name
        for name in registry.registered_names("task")
        if "suite" not in registry.read_named_config("task", name) and name not in DATA
    ]


def task_of(name: str, **given: Any) -> Task:
    corpus = lexbench.corpus("stdlib") if name == "next_line" else TEXTS  # lines of Python
    return lexbench.task(name, corpus=corpus, **given).for_lengths(LENGTHS)


@pytest.mark.parts(*TASKS_OF_PARTS)
@EVERYDAY
@pytest.mark.parametrize(("name", "given"), [*((name, {}) for name in names()), *MORE], ids=str)
def test_sizes_are_those_of_the_questions(name: str, given: dict[str, Any], lexlet: FastTokenizer) -> None:
    task = task_of(name, **given)
    for length in LENGTHS:
        told, asked = task.outline(lexlet, length, N, SEED), task.questions(lexlet, length, N, SEED)
        assert told.questions == len(asked)
        assert round(told.questions * told.length) == sum(question.length for question in asked)
        rooms = sum(question.max_new_tokens for question in asked if isinstance(question, Generate))
        assert told.questions * told.max_new_tokens == pytest.approx(rooms, rel=WRITTEN)
        assert told.probes == any(isinstance(question, ProbeAttention) for question in asked)


@pytest.mark.parts(*TASKS_OF_PARTS)
@pytest.mark.parametrize(("name", "given"), SEVERAL, ids=str)
def test_what_stands_behind_a_text_is_what_its_questions_do_not_share(
    name: str, given: dict[str, Any], lexlet: FastTokenizer
) -> None:
    task = task_of(name, questions_per_text=4, **given)
    told = task.outline(lexlet, LENGTHS[1], 24, SEED)
    asked = [each for each in task.questions(lexlet, LENGTHS[1], 24, SEED) if isinstance(each, Generate | Choose)]
    assert told.per_text == 4 and {question.index % 4 for question in asked} == {0, 1, 2, 3}
    pairs = [pair for pair in itertools.pairwise(asked) if pair[1].index % 4]
    new = [other.length - common_prefix_length(one.prompt, other.prompt) for one, other in pairs]
    assert told.apart == pytest.approx(sum(new) / len(new), abs=BEHIND)


@pytest.mark.parts(*TASKS_OF_PARTS)
@EVERYDAY
@pytest.mark.parametrize(("name", "given"), [*((name, {}) for name in names()), *MORE], ids=str)
def test_a_length_is_foreseen_as_too_short_only_where_the_questions_say_the_same(
    name: str, given: dict[str, Any], lexlet: FastTokenizer
) -> None:
    """All samples are looked at here, so the outline says all that the questions do, but for the corpus's texts."""
    task, n, told = task_of(name, **given), TEXTS_FOR_SIZES, set[bool]()
    for length in (2, 20, 60, 130, 200, 280, LENGTHS[0], LENGTHS[1] + 1):
        foreseen = refusal(task.outline, lexlet, length, n)
        assert foreseen == refusal(task.questions, lexlet, length, n)
        told.add(foreseen is None)
    assert told == {True, False}


def refusal(ask: Any, tokenizer: FastTokenizer, length: int, n: int) -> str | None:
    """Why there is nothing to ask; None where there is something."""
    try:
        ask(tokenizer, length, n, SEED)
    except Refused as refused:
        return refused.reason
    return None


def test_a_task_that_tells_nothing_fills_the_length_and_is_read(lexlet: FastTokenizer) -> None:
    assert Task().outline(lexlet, 640, 7, 0) == Outline(7, 640)
