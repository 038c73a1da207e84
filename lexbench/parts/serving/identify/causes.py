"""Names the cause why texts that a server has read before have other likelihoods."""

from collections.abc import Callable

import numpy as np

from lexbench.core.task import Tokens
from lexbench.parts.serving.identify.pack import Nats

N_FRESH_TEXTS = 3
"""Texts that the server has not read before; all of them must tell the same."""
UNKNOWN_CAUSE = "look for requests that are mixed up, and for states of other prompts in a cache"


def repetition_cause(ask: Callable[[Tokens], Nats], texts: Tokens, allowed: float) -> str:
    """The cause, from a few fresh texts: each is asked twice, then all texts are, then each fresh one again.

    Args:
        ask: gives [texts, targets] nats of texts [texts, length], as a server has them that was seen to answer texts
            otherwise when they were asked again.
        texts: [texts, length] ids; as many tokens as may push others out of a cache.
        allowed: nats by which rounding moves a text, root mean square.
    """

    def changed(one: Nats, other: Nats) -> list[bool]:
        return [bool(moved > allowed) for moved in np.sqrt(np.square(one - other).mean(axis=1))]

    # The first token stays, which may be BOS.
    turned = np.roll(texts[:N_FRESH_TEXTS, 1:], texts.shape[1] // 2, axis=1)
    fresh = [row[None] for row in np.concatenate([texts[:N_FRESH_TEXTS, :1], turned], axis=1)]
    cold, hit = map(np.concatenate, zip(*((ask(row), ask(row)) for row in fresh), strict=True))
    if all(changed(cold, hit)):
        return "hits of a prefix cache are not answered as the text was at first"
    ask(texts)
    again = np.concatenate([ask(row) for row in fresh])
    if all(changed(hit, again)) and not any(changed(cold, hit)):
        return "states that were evicted from a cache and restored are others; hits before that are right"
    return UNKNOWN_CAUSE
