"""Likelihoods as the harness needs them: the sum over a continuation, and whether greedy decoding would write it."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from lexbench.backends import Backend, capabilities
from lexbench.core.task import (
    Answer,
    AnyQuestion,
    ClassifyTokens,
    Generate,
    GenerateAnswer,
    Loglikelihood,
    LoglikelihoodAnswer,
)

MAX_HELD_LIKELIHOODS = 1 << 26
"""Most likelihoods in memory at once, over positions and vocabulary: 256 MiB."""
ARGMAX_TOLERANCE_NATS = 1e-3
"""Tolerance, in nats, when a token's own likelihood decides whether it is the argmax."""

QuestionT = TypeVar("QuestionT", bound=AnyQuestion)


def answer_longest_first(
    backend: Backend, questions: Sequence[QuestionT], ask: Callable[[QuestionT], Answer]
) -> Iterator[tuple[QuestionT, Answer]]:
    """Each question with its answer, longest first, so that out-of-memory shows at the start."""
    ordered = sorted(questions, key=lambda question: -question.length)
    found = backend.answers(ordered) if capabilities(backend).remote else map(ask, ordered)
    return zip(ordered, found, strict=True)


def continuation_likelihoods(backend: Backend, questions: Sequence[Loglikelihood]) -> Iterator[tuple[int, float, bool]]:
    """Index, summed ln p of the targets (nats), and whether greedy decoding writes them; in any order.

    A local backend gives likelihoods of the whole vocabulary at each target, which answers both in one forward pass;
    questions that differ only in their last token share it. A remote backend would send too many numbers: if a target's
    own likelihood does not decide it, the backend writes the continuation.
    """
    if capabilities(backend).remote:
        yield from _decide_by_generation(backend, questions)
        return
    groups: dict[tuple[bytes, int], list[Loglikelihood]] = {}
    for question in sorted(questions, key=lambda question: -question.length):
        groups.setdefault((question.tokens[:-1].tobytes(), question.first_target), []).append(question)
    for group in groups.values():
        if (group[0].length - group[0].first_target) * _vocabulary_size(backend) <= MAX_HELD_LIKELIHOODS:
            yield from _answer_group(backend, group)
        else:
            for question in group:
                nll = backend.score(question).nll
                yield question.index, _sum_likelihoods(nll), _is_best(backend, question, nll)


def _vocabulary_size(backend: Backend) -> int:
    return backend.model.vocabulary or backend.tokenizer.vocabulary


def _sum_likelihoods(nll: NDArray[np.float32]) -> float:
    return -float(nll.sum(dtype=np.float64))


def _answer_group(backend: Backend, group: Sequence[Loglikelihood]) -> Iterator[tuple[int, float, bool]]:
    """Answer a group of questions that differ in their last token only."""
    # All that is read before the last target is the same, so one pass holds the likelihoods of every last token.
    places = np.arange(group[0].first_target, group[0].length)
    nll = _vocabulary_nll(backend, group[0], places)
    best = nll.argmin(axis=1)
    for question in group:
        targets = question.tokens[places]
        yield question.index, _sum_likelihoods(nll[np.arange(len(places)), targets]), bool((best == targets).all())


def _vocabulary_nll(backend: Backend, question: Loglikelihood, places: NDArray[np.int64]) -> NDArray[np.float32]:
    """[places, vocabulary] nats."""
    vocabulary = np.arange(_vocabulary_size(backend))
    mark = ClassifyTokens(
        index=question.index, cluster=question.cluster, tokens=question.tokens, places=places, options=vocabulary
    )
    return backend.mark(mark).nll


def _undecided_targets(nll: NDArray[np.float32], vocabulary: int) -> NDArray[np.int64] | None:
    """Targets that may or may not be the argmax; None if one of them surely is not.

    A token with probability above 1/2 is the argmax; one below 1 / `vocabulary` is not.
    """
    if (nll > math.log(vocabulary) + ARGMAX_TOLERANCE_NATS).any():
        return None
    return np.flatnonzero(nll > math.log(2) - ARGMAX_TOLERANCE_NATS)


def _is_best(backend: Backend, question: Loglikelihood, nll: NDArray[np.float32]) -> bool:
    """Whether every target is the argmax; many targets are checked in blocks, until one is not."""
    left = _undecided_targets(nll, _vocabulary_size(backend))
    if left is None:
        return False
    # Of so many places at once that their likelihoods over the vocabulary fit in MAX_HELD_LIKELIHOODS.
    blocks = math.ceil(len(left) * _vocabulary_size(backend) / MAX_HELD_LIKELIHOODS)
    parts = np.array_split(left + question.first_target, max(blocks, 1))
    return all(_are_best(backend, question, part) for part in parts)


def _are_best(backend: Backend, question: Loglikelihood, places: NDArray[np.int64]) -> bool:
    """Whether the tokens at these places, and at the start of the answer, are the argmax."""
    checked = np.union1d(
        [question.first_target], places
    )  # with the start: a backend reads the prompt up to the first place
    return bool((_vocabulary_nll(backend, question, checked).argmin(axis=1) == question.tokens[checked]).all())


def _decide_by_generation(backend: Backend, questions: Sequence[Loglikelihood]) -> Iterator[tuple[int, float, bool]]:
    """Answer in two rounds: likelihoods of all questions, then continuations where likelihoods do not decide."""
    waiting: dict[int, tuple[Loglikelihood, float]] = {}
    for question, answer in answer_longest_first(backend, questions, backend.score):
        assert isinstance(answer, LoglikelihoodAnswer)
        left = _undecided_targets(answer.nll, _vocabulary_size(backend))
        # Decided: one target surely is not the argmax, or all surely are.
        if left is None or not len(left):
            yield question.index, _sum_likelihoods(answer.nll), left is not None
        else:
            waiting[question.index] = question, _sum_likelihoods(answer.nll)
    writes = [
        Generate(
            index=index,
            cluster=question.cluster,
            prompt=question.tokens[: question.first_target],
            max_new_tokens=question.length - question.first_target,
        )
        for index, (question, _) in waiting.items()
    ]
    for write, written in answer_longest_first(backend, writes, backend.write):
        assert isinstance(written, GenerateAnswer)
        question, total = waiting[write.index]
        yield write.index, total, _is_written(backend, question, written)


def _is_written(backend: Backend, question: Loglikelihood, written: GenerateAnswer) -> bool:
    """Whether the targets were written; if an end token may be among the targets, check the argmax instead."""
    targets = question.tokens[question.first_target :]
    # Where less was written the model has ended. A next target that is text is no end token: the texts differ.
    if len(written.tokens) == len(targets) or backend.tokenizer.decode(targets[len(written.tokens)][None]):
        return np.array_equal(written.tokens, targets)
    return _are_best(backend, question, np.arange(question.first_target, question.length))
