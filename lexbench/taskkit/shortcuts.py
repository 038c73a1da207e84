"""Shortcuts of made questions: the accuracy of a perfect reader of the last tokens of a prompt alone.

The reader knows how the task makes its questions, reads every window without fault, and guesses what it does not see.
A question holds its accuracy as steps (`Question.shortcut`): the task knows where it has put what decides the answer.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from lexbench.core.task import Choose, Generate, Tokens

Prompted = TypeVar("Prompted", Generate, Choose)
Steps = tuple[tuple[int, float], ...]
MIN_WINDOW = 64
"""Tokens of the smallest window of readers who count."""


def tokens_from(prompt: Tokens, piece: Tokens, told: Tokens | None = None) -> int | None:
    """Tokens of a prompt from the last occurrence of a piece on; None where it is not there.

    Args:
        prompt: of the question.
        piece: a needle, not empty.
        told: tokens inside the piece, from whose last occurrence on the piece tells the answer; None: all of it.
    """
    if not 0 < len(piece) <= len(prompt):
        return None
    for place in np.flatnonzero(prompt[: len(prompt) - len(piece) + 1] == piece[0])[::-1].tolist():
        if np.array_equal(prompt[place : place + len(piece)], piece):
            inside = len(piece) if told is None else (tokens_from(piece, told) or len(piece))
            return len(prompt) - int(place) - len(piece) + inside
    return None


def once_read(question: Prompted, needed: Iterable[int | None], guess: float) -> Prompted:
    """The question, which is answered by whoever reads all of what is needed, and guessed by others.

    Args:
        question: whose steps are added.
        needed: last tokens of the prompt from which on each part of the answer is read; None, or empty: never.
        guess: expected accuracy without.
    """
    found = list(needed)
    known = [each for each in found if each is not None]
    answered: Steps = ((max(known), 1.0),) if known and len(known) == len(found) else ()
    return replace(question, shortcut=((0, guess), *answered))


def once_read_or_struck_out(question: Choose, needed: int | None) -> Choose:
    """The choice, from which a reader strikes out the wrong options that it reads, as they are other keys' values."""
    wrong = [option for place, option in enumerate(question.options) if place != question.expected]
    seen = sorted(each for option in wrong if (each := tokens_from(question.prompt, option)) is not None)
    left = [(tokens, 1 / (len(wrong) + 1 - struck)) for struck, tokens in enumerate([0, *seen])]
    steps = [step for step in left if needed is None or step[0] < needed]
    return replace(question, shortcut=(*steps, *([(needed, 1.0)] if needed is not None else [])))


def of_counts(items: Sequence[int], places: Sequence[int], asked: Collection[int]) -> Steps:
    """Steps of a reader who counts the items in its window, at windows of 64 tokens, of twice as many, and so on.

    The commonest ones are named; of equal ones any, so that the accuracy is 1 over the sets that may be named.

    Args:
        items: number of each item of the text.
        places: last tokens of the prompt from which on each item is read.
        asked: numbers of the items that are the commonest of the whole text.
    """
    steps, window = [(0, 0.0)], MIN_WINDOW
    while window // 2 < max(places):
        seen = np.asarray([item for item, place in zip(items, places, strict=True) if place <= window], np.int64)
        counts = dict(zip(*(each.tolist() for each in np.unique(seen, return_counts=True)), strict=True))
        steps.append((window, _share_of_commonest(counts, asked)))
        window *= 2
    return tuple(steps)


def _share_of_commonest(counts: Mapping[int, int], asked: Collection[int]) -> float:
    """Share of the sets of so many commonest items that are the asked ones; 0 where fewer items were read."""
    if len(counts) < len(asked):
        return 0.0
    least = sorted(counts.values())[-len(asked)]
    sure = {item for item, count in counts.items() if count > least}
    tied = {item for item, count in counts.items() if count == least}
    if not (sure <= set(asked) <= sure | tied):
        return 0.0
    return 1 / math.comb(len(tied), len(asked) - len(sure))
