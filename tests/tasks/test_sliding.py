"""Sliding windows: targets of each window, and their contexts."""

from collections.abc import Callable

import pytest

import lexbench
from lexbench import Corpus, Loglikelihood, Refused, Tokenizer


def windows(task: lexbench.Task, tokenizer: Tokenizer, length: int, n: int = 1) -> list[tuple[list[int], list[int]]]:
    """(context, targets) of each question; tokens count from 1 in a document."""
    found = []
    for question in task.questions(tokenizer, length, n, 0):
        assert isinstance(question, Loglikelihood)
        tokens = [token - 9999 if token else 0 for token in question.tokens.tolist()]
        found.append((tokens[: question.first_target], tokens[question.first_target :]))
    return found


def test_windows_are_those_of_the_docstring(
    numbers: Callable[..., Corpus], counting_with_bos: Tokenizer, counting_without_bos: Tokenizer
) -> None:
    task = lexbench.task("sliding", corpus=numbers(9), stride=2, document_tokens=10)
    assert windows(task, counting_with_bos, 6) == [
        ([0], [1, 2, 3, 4, 5]),
        ([0, 3, 4, 5], [6, 7]),
        ([0, 5, 6, 7], [8, 9]),
    ]
    task = lexbench.task("sliding", corpus=numbers(9), stride=2, document_tokens=9)
    assert windows(task, counting_without_bos, 6) == [
        ([1], [2, 3, 4, 5, 6]),
        ([3, 4, 5, 6], [7, 8]),
        ([4, 5, 6, 7, 8], [9]),
    ]


@pytest.mark.everyday("bos-None-8", "bos-3-40")
@pytest.mark.parametrize("length", [8, 13, 40, 99, 100])
@pytest.mark.parametrize("stride", [None, 1, 3, 7])
def test_a_target_has_at_least_length_minus_stride_tokens_before_it(
    numbers: Callable[..., Corpus], counting: Tokenizer, length: int, stride: int | None
) -> None:
    task = lexbench.task("sliding", corpus=numbers(150), stride=stride, document_tokens=100)
    first, *later = windows(task, counting, length)
    assert len(first[0]) == 1
    for given, targets in later:
        assert length - (stride or length // 4) <= len(given)
        assert len(given) + len(targets) == length


def test_documents_that_are_too_short_are_left_out_and_counted(
    numbers: Callable[..., Corpus], counting_with_bos: Tokenizer
) -> None:
    task = lexbench.task("sliding", corpus=numbers(50, 99, 98, 120), document_tokens=100)
    questions = task.questions(counting_with_bos, 100, 2, 0)
    assert {question.cluster for question in questions} == {"n1", "n3"}
    reason = (
        r"^sliding needs 3 documents of 100 tokens, the corpus has 2 \(its longest has 121\): give a corpus of longer"
    )
    with pytest.raises(Refused, match=reason):
        task.questions(counting_with_bos, 100, 3, 0)


def test_a_stride_that_skips_tokens_is_refused_with_the_least_length(
    numbers: Callable[..., Corpus], counting: Tokenizer
) -> None:
    task = lexbench.task("sliding", corpus=numbers(50), stride=16, document_tokens=40)
    assert task.questions(counting, 17, 1, 0)
    with pytest.raises(Refused, match="needs at least 17 tokens, asked for 16"):
        task.questions(counting, 16, 1, 0)
    with pytest.raises(ValueError, match="stride must be at least 1, got 0"):
        lexbench.task("sliding", corpus=numbers(50), stride=0)
