"""Questions, their hashes and the accuracy of an answer, for tests of several tasks."""

import hashlib
import json

from lexbench import Generate, Task
from lexbench.checkpoints.tokenizer import FastTokenizer
from tests.answerers import written

TASKS_OF_PARTS = (
    *("variable_tracking", "associative", "spread_arithmetic", "nth_needle", "counting", "ordering", "copy", "parity"),
    *("conflicting_needles", "graph_walk", "graph_walk_bfs", "many_labels", "frequent_words", "next_line"),
)
"""Tasks that are not the core's, for the mark `parts`."""


def questions_of(task: Task, tokenizer: FastTokenizer, length: int, n: int, seed: int = 0) -> list[Generate]:
    """The questions of a cell whose answers are written."""
    return [question for question in task.questions(tokenizer, length, n, seed) if isinstance(question, Generate)]


def fingerprint(task: Task, tokenizer: FastTokenizer, n: int, seed: int = 0) -> list[str]:
    """A hash of each question of 700 tokens."""
    said = [
        (q.prompt.tolist(), q.max_new_tokens, q.answer, dict(q.facts))
        for q in questions_of(task, tokenizer, 700, n, seed)
    ]
    return [hashlib.sha256(json.dumps(each).encode()).hexdigest() for each in said]


def accuracy(task: Task, tokenizer: FastTokenizer, text: str, question: Generate) -> tuple[float, float]:
    """The answer's scores: strict, lenient."""
    scores = task.score(question, written(text, tokenizer)).scores
    return scores["accuracy"], scores["contains"]
