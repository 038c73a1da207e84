"""Rules for every perplexity protocol and every task's questions: uniform model, coverage, off-by-one, seeds."""

import hashlib
import json
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lexbench
from lexbench import AnyQuestion, Corpus, Loglikelihood, LoglikelihoodAnswer, Sample, Tokenizer
from lexbench.checkpoints.tokenizer import FastTokenizer
from lexbench.corpora.synthetic import Synthetic
from tests.answerers import asked_tokens

ROOT = Path(__file__).parent.parent.parent
PERPLEXITY = ["last_segment", "sliding", "non_overlapping", "prefix"]
TEXTS = Synthetic(count=8, words=600)


def variants(name: str, corpus: Corpus, lengths: list[int]) -> Iterator[lexbench.Task]:
    """A task with its defaults, and with other parameters of its windows."""
    further: dict[str, list[dict[str, Any]]] = {
        "sliding": [{"stride": 1}, {"stride": 9}],
        "last_segment": [{"stream": True}],
    }
    for change in [{}, *further.get(name, [])]:
        yield lexbench.task(name, corpus=corpus, **change).for_lengths(lengths)


def likelihoods(
    task: lexbench.Task, questions: list[Loglikelihood], scorer: Callable[[Loglikelihood], np.ndarray]
) -> list[Sample]:
    return [
        task.score(question, LoglikelihoodAnswer(nll=scorer(question).astype(np.float32))) for question in questions
    ]


def perplexity(samples: list[Sample]) -> float:
    """exp of the mean over all targets, in nats."""
    return math.exp(np.concatenate([sample.nll for sample in samples if sample.nll is not None]).mean(dtype=np.float64))


def questions_of(task: lexbench.Task, tokenizer: Tokenizer, length: int, n: int, seed: int = 0) -> list[Loglikelihood]:
    return [question for question in task.questions(tokenizer, length, n, seed) if isinstance(question, Loglikelihood)]


@pytest.mark.parametrize("name", PERPLEXITY)
@pytest.mark.parametrize("length", [20, 47, 64])
def test_a_uniform_model_has_the_vocabulary_as_perplexity(tokenizer: FastTokenizer, name: str, length: int) -> None:
    for task in variants(name, TEXTS, [20, 47, 64]):
        uniform = likelihoods(
            task,
            questions_of(task, tokenizer, length, 4),
            lambda question: np.full(question.length - question.first_target, math.log(tokenizer.vocabulary)),
        )
        assert perplexity(uniform) == pytest.approx(tokenizer.vocabulary, rel=1e-6)


@pytest.mark.parametrize("name", PERPLEXITY)
def test_windows_have_room_for_all_tokens_in_front(
    numbers: Callable[..., Corpus], counting_without_bos: Any, name: str
) -> None:
    """GLM-4 begins texts with two tokens: no window is longer than asked, and each target stands in one."""
    counting_without_bos.prefix = (7, 8)
    task = lexbench.task(name, corpus=numbers(40)).for_lengths([12])
    asked = questions_of(task, counting_without_bos, 12, 1)
    assert all(question.tokens[:2].tolist() == [7, 8] for question in asked)
    assert {question.length for question in asked[:-1]} <= {12} and asked[-1].length <= 12
    targets = np.concatenate([question.tokens[question.first_target :] for question in asked])
    assert len(set(targets.tolist())) == len(targets) and (targets >= 10_000).all()


@pytest.mark.parametrize("name", ["sliding", "non_overlapping", "prefix"])
@pytest.mark.parametrize("length", [12, 20, 64])
def test_every_target_is_scored_once(
    numbers: Callable[..., Corpus], counting: Tokenizer, name: str, length: int
) -> None:
    """All 64 tokens of a document, without BOS all but the first; for a prefix as many as fit."""
    first = 0 if counting.prefix else 1
    end = (length if name == "prefix" else 64) - len(counting.prefix)
    for task in variants(name, numbers(70, 100), [12, 20, 64]):
        scored = [
            token for q in questions_of(task, counting, length, 2) for token in q.tokens[q.first_target :].tolist()
        ]
        assert sorted(scored) == [10_000 * (d + 1) + word for d in range(2) for word in range(first, end)]


@pytest.mark.parametrize("name", PERPLEXITY)
def test_a_model_that_repeats_the_token_before_knows_a_constant_text(numbers: Callable[..., Corpus], name: str) -> None:
    """A model that adds one to the last token has perplexity 1 on counting texts, for targets with a token before."""

    class Same:
        """Every text is the token 7, repeated; no BOS."""

        bos, prefix, vocabulary = None, (), 8

        def encode(self, text: str) -> lexbench.Encoded:
            words = len(text.split())
            return lexbench.Encoded(ids=np.full(words, 7), starts=6 * np.arange(words), text=text)

        def decode(self, ids: object) -> str:
            return ""

        def frame(self, chat: bool) -> lexbench.Frame:
            return lexbench.Frame(np.empty(0, np.int64), np.empty(0, np.int64))

    def repeats(step: int) -> Callable[[Loglikelihood], np.ndarray]:
        def score(question: Loglikelihood) -> np.ndarray:
            before = question.tokens[question.first_target - 1 : -1]
            return np.where(question.tokens[question.first_target :] == before + step, 0.0, 50.0)

        return score

    for task in variants(name, numbers(100, 80), [20, 64]):
        assert perplexity(likelihoods(task, questions_of(task, Same(), 20, 2), repeats(0))) == 1.0
        assert perplexity(likelihoods(task, questions_of(task, Same(), 20, 2), repeats(1))) == pytest.approx(
            math.exp(50)
        )


@pytest.mark.parametrize("name", ["sliding", "non_overlapping", "prefix"])
def test_units_of_windows_add_up_to_the_scored_text(tokenizer: FastTokenizer, name: str) -> None:
    """Bytes and words of all targets equal those of their decoded text."""
    lengths = [20, 47, 64]
    for task in variants(name, TEXTS, lengths):
        for length in lengths:
            questions = questions_of(task, tokenizer, length, 1)
            text = tokenizer.decode(
                np.concatenate([question.tokens[question.first_target :] for question in questions])
            )
            assert sum(question.bytes for question in questions) == len(text.encode())
            assert sum(question.words for question in questions) == len(text.split())


def test_units_of_a_last_segment_are_those_of_its_text(tokenizer: FastTokenizer) -> None:
    for stream in (False, True):
        task = lexbench.task("last_segment", corpus=TEXTS, targets=30, longest=200, stream=stream)
        for question in questions_of(task, tokenizer, 100, 8):
            before, text = (tokenizer.decode(question.tokens[part]) for part in (slice(70), slice(70, None)))
            inside = not before[-1:].isspace() and not text[:1].isspace() and before != ""
            assert question.bytes == len(text.encode())
            assert question.words == len(text.split()) - inside


def test_documents_and_targets_of_sliding_and_disjoint_windows_are_the_same(
    numbers: Callable[..., Corpus], counting: Tokenizer
) -> None:
    found = set()
    for name in ("sliding", "non_overlapping"):
        for task in variants(name, numbers(*[80] * 20), [20, 64]):
            for length in (20, 64):
                scored = [
                    t for q in questions_of(task, counting, length, 5) for t in q.tokens[q.first_target :].tolist()
                ]
                found.add(tuple(scored))
    assert len(found) == 1


def test_every_protocol_is_another_line(tokenizer: FastTokenizer) -> None:
    tasks = [task for name in PERPLEXITY for task in variants(name, TEXTS, [20, 64])]
    lines = [task.protocol(tokenizer) for task in tasks]
    assert len(set(lines)) == len(lines)
    assert all("BOS" in line and "nats" in line and "target" in line for line in lines)


# every task's questions follow from (seed, index)


def fingerprints(questions: list[AnyQuestion]) -> list[str]:
    """A hash of each question's tokens and facts."""
    hashes = []
    for question in questions:
        page = json.dumps(
            [question.index, question.cluster, asked_tokens(question).tolist(), dict(question.facts)], sort_keys=True
        )
        hashes.append(hashlib.sha256(page.encode()).hexdigest())
    return hashes


def fingerprints_of(name: str, tokenizer: Tokenizer, n: int, seed: int = 0) -> list[str]:
    task = lexbench.task(name, corpus=TEXTS).for_lengths([160, 320])
    return fingerprints(list(task.questions(tokenizer, 160, n, seed)))


@pytest.mark.parametrize("name", [*PERPLEXITY, "passkey"])
def test_questions_do_not_change_with_n_or_with_what_else_is_asked(tokenizer: FastTokenizer, name: str) -> None:
    alone = fingerprints_of(name, tokenizer, 3)
    assert len(set(alone)) == len(alone)
    for other in [*PERPLEXITY, "passkey"]:
        fingerprints_of(other, tokenizer, 2, seed=5)
    np.random.seed(1)  # noqa: NPY002 (the process-wide state is what must not matter)
    random.seed(1)
    more = fingerprints_of(name, tokenizer, 6)
    assert more[: len(alone)] == alone
    assert not set(alone) & set(fingerprints_of(name, tokenizer, 3, seed=1)) or name in (
        "sliding",
        "non_overlapping",
        "prefix",
    )
    assert alone != fingerprints_of(name, tokenizer, 3, seed=1)


@pytest.mark.parametrize("name", ["last_segment", "sliding", "prefix", "passkey"])
@pytest.mark.parametrize("length", [160, 251, 320])
def test_questions_have_exactly_the_asked_length(tokenizer: FastTokenizer, name: str, length: int) -> None:
    task = lexbench.task(name, corpus=TEXTS).for_lengths([160, 251, 320])
    assert {question.length for question in task.questions(tokenizer, length, 4, 0)} == {length}
