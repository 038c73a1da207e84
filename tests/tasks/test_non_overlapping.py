"""Disjoint windows."""

from collections.abc import Callable

import numpy as np
import pytest

import lexbench
from lexbench import Corpus, Loglikelihood, Refused, Tokenizer


def windows_of(task: lexbench.Task, tokenizer: Tokenizer, length: int) -> list[tuple[list[int], list[int]]]:
    """(context, targets) of each question; tokens count from 1 in a document."""
    found = []
    for question in task.questions(tokenizer, length, 1, 0):
        assert isinstance(question, Loglikelihood)
        tokens = [token - 9999 if token else 0 for token in question.tokens.tolist()]
        found.append((tokens[: question.first_target], tokens[question.first_target :]))
    return found


def test_windows_are_those_of_the_docstring(
    numbers: Callable[..., Corpus], counting_with_bos: Tokenizer, counting_without_bos: Tokenizer
) -> None:
    task = lexbench.task("non_overlapping", corpus=numbers(8), document_tokens=9)
    assert windows_of(task, counting_with_bos, 4) == [([0], [1, 2, 3]), ([0], [4, 5, 6]), ([0], [7, 8])]
    task = lexbench.task("non_overlapping", corpus=numbers(8), document_tokens=8)
    assert windows_of(task, counting_without_bos, 4) == [([1], [2, 3, 4]), ([4], [5, 6, 7]), ([7], [8])]


def test_targets_have_half_a_window_before_them_on_average(
    numbers: Callable[..., Corpus], counting_with_bos: Tokenizer
) -> None:
    """Positions 1 .. length - 1 of every window are targets, each once: their mean is length / 2."""
    task = lexbench.task("non_overlapping", corpus=numbers(200), document_tokens=1 + 9 * 20)
    questions = task.questions(counting_with_bos, 10, 1, 0)
    before = [
        position for q in questions if isinstance(q, Loglikelihood) for position in range(q.first_target, q.length)
    ]
    assert len(before) == 180
    assert np.mean(before) == 10 / 2


def test_one_window_of_a_whole_document_is_every_protocols_window(
    numbers: Callable[..., Corpus], counting: Tokenizer
) -> None:
    """If a window covers the document, sliding, disjoint and prefix windows are the same."""
    names = ["non_overlapping", "sliding", "prefix"]
    tasks = [lexbench.task(name, corpus=numbers(90, 80), document_tokens=64) for name in names]
    assert (
        windows_of(tasks[0], counting, 64) == windows_of(tasks[1], counting, 64) == windows_of(tasks[2], counting, 64)
    )


def test_a_refusal_names_the_task_as_the_registry_does(numbers: Callable[..., Corpus], counting: Tokenizer) -> None:
    task = lexbench.task("non_overlapping", corpus=numbers(20), document_tokens=64)
    with pytest.raises(Refused, match=r"^non_overlapping needs 1 documents of 64 tokens, the corpus has 0"):
        task.questions(counting, 32, 1, 0)
