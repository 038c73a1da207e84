"""Likelihoods as the harness needs them: the sum over a continuation, and whether greedy decoding would write it."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from lexbench.backends import Backend, capabilities
from lexbench.core.task import Answer, AnyQuestion, Mark, Score, Scored, Write, Written

HELD = 1 << 26
"""Most likelihoods in memory at once, over positions and vocabulary: 256 MiB."""
MARGIN = 1e-3
"""Tolerance, in nats, when a token's own likelihood decides whether it is the argmax."""

QuestionT = TypeVar("QuestionT", bound=AnyQuestion)


def answers(
    backend: Backend, questions: Sequence[QuestionT], ask: Callable[[QuestionT], Answer]
) -> Iterator[tuple[QuestionT, Answer]]:
    """Each question with its answer, longest first, so that out-of-memory shows at the start."""
    ordered = sorted(questions, key=lambda question: -question.length)
    found = backend.answers(ordered) if capabilities(backend).remote else map(ask, ordered)
    return zip(ordered, found, strict=True)


def likelihoods(backend: Backend, questions: Sequence[Score]) -> Iterator[tuple[int, float, bool]]:
    """Index, summed ln p of the targets (nats), and whether greedy decoding writes them; in any order.

    A local backend gives likelihoods of the whole vocabulary at each target, which answers both in one forward pass;
    questions that differ only in their last token share it. A remote backend would send too many numbers: if a target's
    own likelihood does not decide it, the backend writes the continuation.
    """
    if capabilities(backend).remote:
        yield from _by_writing(backend, questions)
        return
    groups: dict[tuple[bytes, int], list[Score]] = {}
    for question in sorted(questions, key=lambda question: -question.length):
        groups.setdefault((question.tokens[:-1].tobytes(), question.start), []).append(question)
    for group in groups.values():
        if (group[0].length - group[0].start) * _vocabulary(backend) <= HELD:
            yield from _at_once(backend, group)
        else:
            for question in group:
                nll = backend.score(question).nll
                yield question.index, _sum(nll), _is_best(backend, question, nll)


def _vocabulary(backend: Backend) -> int:
    return backend.model.vocabulary or backend.tokenizer.vocabulary


def _sum(nll: NDArray[np.float32]) -> float:
    return -float(nll.sum(dtype=np.float64))


def _at_once(backend: Backend, group: Sequence[Score]) -> Iterator[tuple[int, float, bool]]:
    """Answer a group of questions that differ in their last token only."""
    # All that is read before the last target is the same, so one pass holds the likelihoods of every last token.
    places = np.arange(group[0].start, group[0].length)
    nll = _of_vocabulary(backend, group[0], places)
    best = nll.argmin(axis=1)
    for question in group:
        targets = question.tokens[places]
        yield question.index, _sum(nll[np.arange(len(places)), targets]), bool((best == targets).all())


def _of_vocabulary(backend: Backend, question: Score, places: NDArray[np.int64]) -> NDArray[np.float32]:
    """[places, vocabulary] nats."""
    vocabulary = np.arange(_vocabulary(backend))
    mark = Mark(
        index=question.index, cluster=question.cluster, tokens=question.tokens, places=places, options=vocabulary
    )
    return backend.mark(mark).nll


def _open(nll: NDArray[np.float32], vocabulary: int) -> NDArray[np.int64] | None:
    """Targets that may or may not be the argmax; None if one of them surely is not.

    A token with probability above 1/2 is the argmax; one below 1 / `vocabulary` is not.
    """
    if (nll > math.log(vocabulary) + MARGIN).any():
        return None
    return np.flatnonzero(nll > math.log(2) - MARGIN)


def _is_best(backend: Backend, question: Score, nll: NDArray[np.float32]) -> bool:
    """Whether every target is the argmax; many targets are checked in blocks, until one is not."""
    left = _open(nll, _vocabulary(backend))
    if left is None:
        return False
    # Of so many places at once that their likelihoods over the vocabulary fit in HELD.
    blocks = math.ceil(len(left) * _vocabulary(backend) / HELD)
    parts = np.array_split(left + question.start, max(blocks, 1))
    return all(_are_best(backend, question, part) for part in parts)


def _are_best(backend: Backend, question: Score, places: NDArray[np.int64]) -> bool:
    """Whether the tokens at these places, and at the start of the answer, are the argmax."""
    checked = np.union1d([question.start], places)  # with the start: a backend reads the prompt up to the first place
    return bool((_of_vocabulary(backend, question, checked).argmin(axis=1) == question.tokens[checked]).all())


def _by_writing(backend: Backend, questions: Sequence[Score]) -> Iterator[tuple[int, float, bool]]:
    """Two rounds: likelihoods of all questions, then continuations of those that likelihoods do not decide."""
    waiting: dict[int, tuple[Score, float]] = {}
    for question, answer in answers(backend, questions, backend.score):
        assert isinstance(answer, Scored)
        left = _open(answer.nll, _vocabulary(backend))
        # Decided: one target surely is not the argmax, or all surely are.
        if left is None or not len(left):
            yield question.index, _sum(answer.nll), left is not None
        else:
            waiting[question.index] = question, _sum(answer.nll)
    writes = [
        Write(
            index=index,
            cluster=question.cluster,
            prompt=question.tokens[: question.start],
            room=question.length - question.start,
        )
        for index, (question, _) in waiting.items()
    ]
    for write, written in answers(backend, writes, backend.write):
        assert isinstance(written, Written)
        question, total = waiting[write.index]
        yield write.index, total, _is_written(backend, question, written)


def _is_written(backend: Backend, question: Score, written: Written) -> bool:
    """Whether the targets were written; if an end token may be among the targets, check the argmax instead."""
    targets = question.tokens[question.start :]
    # Where less was written the model has ended. A next target that is text is no end token: the texts differ.
    if len(written.tokens) == len(targets) or backend.tokenizer.decode(targets[len(written.tokens)][None]):
        return np.array_equal(written.tokens, targets)
    return _are_best(backend, question, np.arange(question.start, question.length))
