"""Questions that have no answer in the text: half of a task's questions, whose right answer is that there is none.

A task's parameter `absent` says how the model answers all its questions:

    write    the prompt adds 'Where the text does not tell, the answer is "none".', and the model writes
    choose   the question is whether the text holds the answer, and the likelier of " True" and " False" counts

The needle of a question without an answer is replaced by one that answers another question, at the same place. So every
text has as many needles, and only what is asked for decides. passkey, which has no other key, is the easy end: noise
replaces the needle. Of two neighbouring questions (2k and 2k + 1) a random one has no answer: half of an even n, in
every stratum. The best guess without the text says that there is none, or that there is an answer, always: 0.5.

Of niah, variable_tracking and associative, models of 135 million parameters and less stay there in either form: they
name an item, or nothing, whatever the text holds. Where noise replaces the needle, in passkey, SmolLM2 has a d' well
above 0 (`results/reference/tasks_2026.md`). So no other suite than `absent` has these questions.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from lexbench.core.errors import ConfigError
from lexbench.core.record import Refused, Sample
from lexbench.core.task import Answer, AnyQuestion, Choose, Generate, GenerateAnswer, Task, Tokenizer, Tokens
from lexbench.taskkit import matching
from lexbench.taskkit.prompt import FixedParts, task_name_of
from lexbench.taskkit.scoring import score_choice, score_written

NO_ANSWER = "none"
NO_ANSWER_HINT = f'Where the text does not tell, the answer is "{NO_ANSWER}".\n'
SAYS_NONE_PATTERN = re.compile(r"^\W*there(?:\s+(?:is|are)|['’]s)\s+(?=\W*none\b)", re.IGNORECASE)
"""Words before "none" in an answer that says in a sentence that there is none."""
DETECTION_CHANCE = 0.5
TRUE_FALSE = (" True", " False")


class MayLackAnswers(Protocol):
    """A task with the parameter `absent`."""

    @property
    def absent(self) -> str | None:
        """Form of the answers, write or choose; None: the text holds every answer."""


def check_absent(task: Any) -> None:
    """ConfigError for a parameter `absent` that is no form of an answer, or that clashes with another parameter."""
    name = task_name_of(task)
    if task.absent not in (None, "write", "choose"):
        raise ConfigError(f"{name}'s absent must be write or choose, got {task.absent}: leave it out for none")
    if not task.absent:
        return
    if not task.needle:
        raise ConfigError(f"{name} with absent leaves out half of the needles, got needle=false: leave one of them out")
    if getattr(task, "options", None):
        raise ConfigError(f"{name} with absent chooses between True and False, got options: give absent=choose alone")
    if task.absent == "choose" and task.room:
        raise ConfigError(f"{name} writes nothing with absent=choose, got room={task.room}: leave it out")


def edition(task: MayLackAnswers, version: int) -> int:
    """The version of the form, `version` of a task without `absent`.

    Written answers have one more since "There is none" is right.
    """
    return version + (task.absent == "write")


def has_answer(task: Task, seed: int, index: int) -> bool:
    """Whether the text holds the answer to question `index`: one of each two neighbours, at random."""
    return bool(index % 2 == int(task.rng("absent", seed, index // 2).integers(2)))


def headers(task: MayLackAnswers) -> list[str]:
    """Sentence that the prompt adds to the headers of the task."""
    return [NO_ANSWER_HINT] if task.absent == "write" else []


def describe_form(task: MayLackAnswers) -> str:
    """The form of the questions, for the protocol."""
    how = {"write": f'"{NO_ANSWER}" is written', "choose": "the likelier of True and False: there is one"}
    return f", half of the questions without an answer ({how[task.absent]})" if task.absent else ""


def answers(task: MayLackAnswers, answer: str, present: bool) -> list[str]:
    """All answers that the room must hold, the right one first; `answer` is that of the text."""
    found = list(TRUE_FALSE) if task.absent == "choose" else [answer, f" {NO_ANSWER}"]
    return found if present else found[::-1]


def ask(
    task: MayLackAnswers,
    tokenizer: Tokenizer,
    fixed: FixedParts,
    body: Sequence[Tokens],
    cluster: str,
    present: bool,
    facts: dict[str, Any],
) -> Generate | Choose:
    """A question of either form.

    Args:
        task: of the question.
        tokenizer: of the model.
        fixed: the parts of its prompt around the text.
        body: the text.
        cluster: name of the text.
        present: whether the text holds the answer.
        facts: those of the task; `expected` is its answer where there is one.
    """
    facts = {**facts, "expected": facts["expected"] if present else [NO_ANSWER], "present": present}
    if task.absent == "write":
        return fixed.write(body, cluster, DETECTION_CHANCE, facts)
    options = [tokenizer.encode(option).ids for option in TRUE_FALSE]
    if len({len(option) for option in options}) > 1:
        raise Refused("absent=choose needs True and False of equally many tokens, here they differ: take absent=write")
    return fixed.choose(body, cluster, options, int(not present), facts)


def score_absent(question: AnyQuestion, answer: Answer, item: str, plain: Callable[[str], str] = str) -> Sample:
    """The sample of a question that may have no answer.

    `accuracy`: the right answer, or that there is none, as a word or as "There is none". `balance`: an item is named
    (or True is likelier) exactly where the text holds an answer, whichever item it is; the mean is (hit rate + 1 -
    false-alarm rate) / 2. `contains` of written answers: the expected answer occurs anywhere.

    Args:
        question: made by `ask`.
        answer: to it.
        item: regular expression of one item that the task asks for.
        plain: applied to a written answer first.
    """
    if isinstance(question, Choose):
        sample = score_choice(question, answer)
        return replace(sample, scores={**sample.scores, "balance": sample.scores["accuracy"]})
    assert isinstance(question, Generate) and isinstance(answer, GenerateAnswer)
    expected, items = question.facts["expected"], f"{NO_ANSWER}|{item}"
    text = SAYS_NONE_PATTERN.sub("", plain(answer.text))
    named = any(each != NO_ANSWER for each in matching.leading_items(text, items))
    return score_written(
        question,
        answer,
        {
            "accuracy": matching.strict_list_score(text, expected, items),
            "balance": float(named == question.facts["present"]),
            "contains": matching.contains_all(answer.text, expected),
        },
    )
