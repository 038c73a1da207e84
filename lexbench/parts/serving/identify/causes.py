"""Names the cause why texts that a server has read before have other likelihoods."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from lexbench.core.task import Tokenizer, Tokens

N_FRESH_TEXTS = 3
"""Texts that the server has not read before; all of them must tell the same."""
WRONG_HITS_CAUSE = "hits of a prefix cache are not answered as the text was at first"
UNKNOWN_CAUSE = "look for requests that are mixed up, and for states of other prompts in a cache"

Question = TypeVar("Question")
Told = Mapping[int, float]
"""Nats that a server tells about a text: by the place of a token, or by the id of a likely next one."""


def fresh_texts(tokenizer: Tokenizer, texts: Tokens) -> list[Tokens]:
    """[length] ids each of a few texts, with the second half before the first, encoded anew."""
    begin, found = len(tokenizer.prefix), []
    for row in texts[:N_FRESH_TEXTS]:
        own = row[begin:]
        whole = np.concatenate([own[len(own) // 2 :], own])  # encoded anew it may have fewer tokens
        found.append(np.concatenate([row[:begin], tokenizer.encode(tokenizer.decode(whole)).ids[: len(own)]]))
    return found


def repetition_cause(
    ask: Callable[[Sequence[Question]], Sequence[Told]],
    fresh: Sequence[Question],
    texts: Sequence[Question],
    allowed: float,
) -> str:
    """The cause, from a few fresh texts: each is asked twice, then other texts are, then each fresh one again.

    Args:
        ask: of a server that was seen to answer texts otherwise than it should.
        fresh: questions about texts that it has not read before.
        texts: questions about others; as many tokens as may push the fresh ones out of a cache. None: only
            hits are looked at.
        allowed: nats by which rounding moves a text, root mean square.
    """

    def changed(one: Told, other: Told) -> bool:
        return distance_of_told(one, other) > allowed

    pairs = [(*ask([each]), *ask([each])) for each in fresh]
    hits = [changed(*pair) for pair in pairs]
    if all(hits):
        return WRONG_HITS_CAUSE
    if any(hits) or not texts:
        return UNKNOWN_CAUSE
    ask(texts)
    again = [changed(hit, *ask([each])) for each, (_, hit) in zip(fresh, pairs, strict=True)]
    if all(again):
        return "states that were evicted from a cache and restored are others; hits before that are right"
    return UNKNOWN_CAUSE


def distance_of_told(one: Told, other: Told) -> float:
    """Root of the mean of squared differences, in nats, of what both tell; infinite where that is nothing."""
    both = one.keys() & other.keys()
    return math.sqrt(math.fsum((one[each] - other[each]) ** 2 for each in both) / len(both)) if both else math.inf
