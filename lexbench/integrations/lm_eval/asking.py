"""Likelihoods as the harness wants them: of a text's tokens together, and whether each of them is the likeliest."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from lexbench.backends import Backend, capabilities
from lexbench.core.task import Answer, AnyQuestion, Mark, Score, Scored, Write, Written

HELD = 1 << 26
"""Likelihoods of whole vocabularies that are held at once: 256 MiB."""
MARGIN = 1e-3
"""Nats by which a token is surely the likeliest, or surely not."""

Asked = TypeVar("Asked", bound=AnyQuestion)


def answers(
    backend: Backend, questions: Sequence[Asked], ask: Callable[[Asked], Answer]
) -> Iterator[tuple[Asked, Answer]]:
    """Each question with its answer, the longest first: what does not fit in memory is seen at once."""
    ordered = sorted(questions, key=lambda question: -question.length)
    found = backend.answers(ordered) if capabilities(backend).remote else map(ask, ordered)
    return zip(ordered, found, strict=True)


def likelihoods(backend: Backend, questions: Sequence[Score]) -> Iterator[tuple[int, float, bool]]:
    """Index, ln p of the targets together (nats), and whether greedy writing gives them; in any order.

    Here, the likelihood of every token of the vocabulary at each target tells both in one forward pass, and so for all
    questions that differ in their last token. A remote backend is not asked for so many numbers: where a target's own
    likelihood leaves it open, it writes.
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
    """All of a group, whose questions differ in their last token only."""
    places = np.arange(group[0].start, group[0].length)
    nll = _of_vocabulary(backend, group[0], places)
    best = nll.argmin(axis=1)
    for question in group:
        targets = question.tokens[places]
        yield question.index, _sum(nll[np.arange(len(places)), targets]), bool((best == targets).all())


def _of_vocabulary(backend: Backend, question: Score, places: NDArray[np.int64]) -> NDArray[np.float32]:
    """[places, vocabulary] nats."""
    vocabulary = np.arange(_vocabulary(backend))
    asked = Mark(
        index=question.index, cluster=question.cluster, tokens=question.tokens, places=places, options=vocabulary
    )
    return backend.mark(asked).nll


def _open(nll: NDArray[np.float32], vocabulary: int) -> NDArray[np.int64] | None:
    """Targets that may or may not be the likeliest; None where one of them is not.

    What has more than half of the probability is the likeliest, what has less than one in `vocabulary` is not.
    """
    if (nll > math.log(vocabulary) + MARGIN).any():
        return None
    return np.flatnonzero(nll > math.log(2) - MARGIN)


def _is_best(backend: Backend, question: Score, nll: NDArray[np.float32]) -> bool:
    """Whether each target is the likeliest token; of many targets, block by block until one is not."""
    left = _open(nll, _vocabulary(backend))
    if left is None:
        return False
    blocks = math.ceil(len(left) * _vocabulary(backend) / HELD)
    parts = np.array_split(left + question.start, max(blocks, 1))
    return all(_are_best(backend, question, part) for part in parts)


def _are_best(backend: Backend, question: Score, places: NDArray[np.int64]) -> bool:
    """Whether the tokens at some places of the answer, and its first one, are the likeliest."""
    asked = np.union1d([question.start], places)  # the answer begins where it does
    return bool((_of_vocabulary(backend, question, asked).argmin(axis=1) == question.tokens[asked]).all())


def _by_writing(backend: Backend, questions: Sequence[Score]) -> Iterator[tuple[int, float, bool]]:
    """Two rounds: the likelihoods of all, then the continuations of those that they leave open."""
    waiting: dict[int, tuple[Score, float]] = {}
    for question, answer in answers(backend, questions, backend.score):
        assert isinstance(answer, Scored)
        left = _open(answer.nll, _vocabulary(backend))
        if left is None or not len(left):
            yield question.index, _sum(answer.nll), left is not None
        else:
            waiting[question.index] = question, _sum(answer.nll)
    writes = [
        Write(index=index, cluster=asked.cluster, prompt=asked.tokens[: asked.start], room=asked.length - asked.start)
        for index, (asked, _) in waiting.items()
    ]
    for write, written in answers(backend, writes, backend.write):
        assert isinstance(written, Written)
        asked, total = waiting[write.index]
        yield write.index, total, _is_written(backend, asked, written)


def _is_written(backend: Backend, question: Score, written: Written) -> bool:
    """Whether these are the targets; an end token is never written, so that one among the targets is looked up."""
    targets = question.tokens[question.start :]
    if len(written.tokens) == len(targets) or backend.tokenizer.decode(targets[len(written.tokens)][None]):
        return np.array_equal(written.tokens, targets)
    return _are_best(backend, question, np.arange(question.start, question.length))
