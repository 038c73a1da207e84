"""One pass over the first tokens."""

from collections.abc import Callable

import pytest

import lexbench
from lexbench import Corpus, Loglikelihood, Refused, Tokenizer


def test_the_first_tokens_are_scored_in_one_pass(
    numbers: Callable[..., Corpus], counting_with_bos: Tokenizer, counting_without_bos: Tokenizer
) -> None:
    task = lexbench.task("prefix", corpus=numbers(30)).for_lengths([6, 12])
    [with_bos] = task.questions(counting_with_bos, 6, 1, 0)
    [without] = task.questions(counting_without_bos, 6, 1, 0)
    assert isinstance(with_bos, Loglikelihood)
    assert isinstance(without, Loglikelihood)
    assert with_bos.tokens.tolist() == [0, 10_000, 10_001, 10_002, 10_003, 10_004]
    assert without.tokens.tolist() == [10_000, 10_001, 10_002, 10_003, 10_004, 10_005]
    assert with_bos.first_target == without.first_target == 1


def test_documents_are_the_same_at_every_length(numbers: Callable[..., Corpus], counting: Tokenizer) -> None:
    task = lexbench.task("prefix", corpus=numbers(10, 20, 30, 40, 50)).for_lengths([4, 25])
    short, long = (task.questions(counting, length, 3, 0) for length in (4, 25))
    assert [q.cluster for q in short] == [q.cluster for q in long]
    assert {q.cluster for q in short} == {"n2", "n3", "n4"}


def test_the_protocol_says_that_targets_grow(numbers: Callable[..., Corpus], counting: Tokenizer) -> None:
    assert "grow with length" in lexbench.task("prefix", corpus=numbers(10)).protocol(counting)


def test_a_length_beyond_what_is_read_is_refused(numbers: Callable[..., Corpus], counting: Tokenizer) -> None:
    task = lexbench.task("prefix", corpus=numbers(100), document_tokens=20)
    assert task.questions(counting, 20, 1, 0)
    with pytest.raises(Refused, match=r"^prefix reads 20 tokens a document, asked for 21: raise document_tokens"):
        task.questions(counting, 21, 1, 0)


def test_the_least_length_is_said_and_is_the_least(
    numbers: Callable[..., Corpus], counting_with_bos: Tokenizer, counting_without_bos: Tokenizer
) -> None:
    task = lexbench.task("prefix", corpus=numbers(100), document_tokens=20)
    for tokenizer, least in ((counting_with_bos, 3), (counting_without_bos, 2)):
        assert task.questions(tokenizer, least, 1, 0)
        with pytest.raises(Refused, match=f"needs at least {least} tokens, asked for {least - 1}"):
            task.questions(tokenizer, least - 1, 1, 0)
