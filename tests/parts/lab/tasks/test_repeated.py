"""A passage again and again, and one long text: against the docstring, and a model that copies."""

from collections.abc import Callable

import numpy as np
import pytest

import lexbench
from lexbench import ClassifyTokens, ClassifyTokensAnswer, Corpus, Refused, Tokenizer


def texts(task: lexbench.Task, tokenizer: Tokenizer, length: int) -> list[ClassifyTokens]:
    found = task.questions(tokenizer, length, 1, 0)
    return [question for question in found if isinstance(question, ClassifyTokens)]


def test_texts_are_those_of_the_docstring(
    numbers: Callable[..., Corpus], counting_with_bos: Tokenizer, counting_without_bos: Tokenizer
) -> None:
    corpus = numbers(20)
    for repeat, counted in ((True, [1, 2, 3] * 3), (False, list(range(1, 10)))):
        task = lexbench.task("repeated", corpus=corpus, repeat=repeat).for_lengths([4, 10])
        (question,) = texts(task, counting_with_bos, 10)
        assert question.tokens.tolist() == [0, *(9999 + each for each in counted)]
        assert question.places.tolist() == list(range(1, 10))
    (question,) = texts(lexbench.task("repeated", corpus=corpus, passage=4), counting_without_bos, 10)
    assert (question.tokens - 9999).tolist() == [1, 2, 3, 4, 1, 2, 3, 4, 1, 2] and question.places[0] == 1
    assert question.facts["seen"] == 6 / 9


@pytest.mark.everyday("bos-5", "no_bos-5")
@pytest.mark.parametrize("targets", [None, 5])
def test_naming_the_token_one_passage_before_is_right_where_it_was_seen(
    numbers: Callable[..., Corpus], counting: Tokenizer, targets: int | None
) -> None:
    task = lexbench.task("repeated", corpus=numbers(40), passage=12, targets=targets)
    (question,) = texts(task, counting, 30)
    assert len(question.places) == (targets or 29) and question.chance == 1 / counting.vocabulary
    before = question.places - (12 - len(counting.prefix))
    named = np.where(before >= len(counting.prefix), question.tokens[before], -1)
    nll = (named[:, None] != question.options).astype(np.float32)
    nll[named < 0, question.options == 5] = -1.0  # a token that no text has
    assert task.score(question, ClassifyTokensAnswer(nll=nll)).scores["accuracy"] == pytest.approx(
        question.facts["seen"]
    )
    assert (question.facts["seen"] == 1.0) == (targets == 5)


def test_both_read_documents_that_are_long_enough_for_the_longest_length(
    numbers: Callable[..., Corpus], counting: Tokenizer
) -> None:
    for repeat in (True, False):
        task = lexbench.task("repeated", corpus=numbers(20, 70), repeat=repeat).for_lengths([8, 64])
        assert {texts(task, counting, length)[0].cluster for length in (8, 64)} == {"n1"}
        with pytest.raises(Refused, match="repeated needs 2 documents of 64 tokens, the corpus has 1"):
            task.questions(counting, 8, 2, 0)
