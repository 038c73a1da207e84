"""Kept samples: which of them answer today's questions, and whether today's model answers as the one that gave them.

An unfinished cell, and one that asked fewer of the same questions, hold samples under the cell's identity. Two things
may have changed that an identity does not tell: what a task of the user's own reads, and the weights of a server.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lexbench.core.record import Sample
from lexbench.core.task import AnyQuestion, Tokenizer
from lexbench.store.checksum import has_changed
from lexbench.store.format import plain_value
from lexbench.taskkit.asked import question_hash
from lexbench.taskkit.excerpt import question_excerpt

N_QUESTIONS_ASKED_AGAIN = 2
"""Kept questions that a model of unknown weights answers again."""
MAX_NATS_BETWEEN_ANSWERS = 0.05
"""Largest mean difference of the likelihoods of two answers of one model in half precision, in nats per number."""
MAX_SHARE_BETWEEN_ANSWERS = 0.01
"""The same as a share of the likelihoods: those of whole options are sums."""


def kept_answers(samples: Sequence[Sample], questions: Sequence[AnyQuestion], tokenizer: Tokenizer) -> list[Sample]:
    """Those of the samples that answer one of the questions, unchanged since."""
    asked = {question.index: question for question in questions}
    return [
        sample
        for sample in samples
        if sample.index in asked
        and answers_question(sample, asked[sample.index], tokenizer)
        and not has_changed(sample)
    ]


def answers_question(sample: Sample, question: AnyQuestion, tokenizer: Tokenizer) -> bool:
    """Whether a kept sample is of this question: what was asked, cluster, tokens, facts and chance agree.

    A sample of an earlier version does not keep the hash of its question; then the text of its prompt must agree.
    """
    facts, chance = as_stored(question.facts), getattr(question, "chance", None)
    held = as_stored(sample.facts)
    if (sample.index, sample.cluster, sample.tokens) != (question.index, question.cluster, question.length):
        return False
    if sample.chance is not None and chance is not None and sample.chance != chance:
        return False
    if any(held[name] != value for name, value in facts.items() if name in held):
        return False
    if sample.question is None:
        return sample.prompt == question_excerpt(question, tokenizer)
    return sample.question == question_hash(question)


def as_stored(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts as a file gives them back: tuples are lists, keys are texts."""
    found: dict[str, Any] = json.loads(json.dumps(facts, default=plain_value))
    return found


def is_same_model(
    kept: Collection[Sample], questions: Sequence[AnyQuestion], ask: Callable[[Sequence[AnyQuestion]], list[Sample]]
) -> bool:
    """Whether a model answers two kept questions as the kept samples do.

    Those are asked whose answers tell most: low scores first, as right answers are the same of many models; then long
    ones.

    Args:
        kept: samples that are not failed, at least one.
        questions: all questions of their cell.
        ask: answers some of them.
    """
    telling = sorted(kept, key=lambda sample: (sum(sample.scores.values()), -_size(sample)))
    known = {sample.index: sample for sample in telling[:N_QUESTIONS_ASKED_AGAIN]}
    again = ask([question for question in questions if question.index in known])
    return all(is_same_answer(known[sample.index], sample) for sample in again)


def _size(sample: Sample) -> int:
    return len(sample.output or "") + (0 if sample.nll is None else len(sample.nll))


def is_same_answer(one: Sample, other: Sample) -> bool:
    """Whether two samples of a question hold the same text, and likelihoods that differ by rounding alone."""
    if (one.output, one.failed is None, one.statistics.keys()) != (
        other.output,
        other.failed is None,
        other.statistics.keys(),
    ):
        return False
    pairs = [(one.nll, other.nll), *((array, other.statistics[name]) for name, array in one.statistics.items())]
    return all(_is_near(*pair) for pair in pairs)


def _is_near(one: NDArray[np.float32] | None, other: NDArray[np.float32] | None) -> bool:
    if one is None or other is None:
        return one is other
    if one.shape != other.shape:
        return False
    apart, size = np.abs(np.asarray(one, np.float64) - other), np.abs(np.asarray(one, np.float64))
    limit = MAX_NATS_BETWEEN_ANSWERS + MAX_SHARE_BETWEEN_ANSWERS * size.mean() if size.size else 0.0
    return bool(apart.size == 0 or apart.mean() <= limit)
