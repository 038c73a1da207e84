"""Whether a server answers each of several requests by its own prompt."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from lexbench.core.record import Deferred, Refused
from lexbench.core.task import Tokens
from lexbench.parts.serving.openai.trial_texts import repeating_texts
from lexbench.parts.serving.openai.trials import (
    MAX_WRITTEN_READ_DIFFERENCE_NATS,
    Drawn,
    TrialRequests,
    rank_by_reading,
)

N_TEXTS, N_DRAWN_TOKENS = 16, 8
"""Texts that are asked together, and once more one by one; and tokens written behind each."""
N_RANKED_TEXTS = 4
"""Texts whose new tokens are read, where the server names no other tokens beside them."""
MIN_MIXED = 2
"""Texts with the answer of another one, from which requests are mixed up."""


def find_mixing(dialect: TrialRequests, length: int, at_once: int) -> tuple[str, list[Drawn]]:
    """Words for a server that answers one request by the answer to another; and what it has written.

    Texts of `length` tokens, answer counted, share their beginning, and end each in another passage of it, so that a
    model goes on as the text did. They are asked `at_once` at a time, and then one by one in another order.
    """
    texts = repeating_texts(dialect.tokenizer, length - N_DRAWN_TOKENS, N_TEXTS)

    def draw(tokens: Tokens) -> Drawn:
        return dialect.draw(tokens, N_DRAWN_TOKENS)

    try:
        with ThreadPoolExecutor(at_once) as pool:
            together = list(pool.map(draw, texts))
        alone = list(map(draw, texts[::-1]))[::-1]
    except Deferred:
        raise
    except Refused:  # its window is shorter: questions of this length are refused in its own words
        return "", []
    ranked = [rank_by_reading(dialect, *pair) for pair in zip(texts[:N_RANKED_TEXTS], alone, strict=False)]
    count = sum(is_of_another(one, own, alone) for one, own in zip(together, alone, strict=True))
    if count < MIN_MIXED:
        return "", [*together, *ranked, *alone[N_RANKED_TEXTS:]]
    return (
        f"answers {count} of {len(texts)} prompts otherwise when they are asked again, one by one in another order: it "
        "mixes requests up",
        [],
    )


def is_of_another(one: Drawn, own: Drawn, others: Sequence[Drawn]) -> bool:
    """Whether a text parts from the right one by more than rounding: it is the whole text behind another prompt, or the
    first other token has other nats."""
    pairs = list(zip(one.tokens.tolist(), own.tokens.tolist(), strict=False))
    place = next((place for place, (a, b) in enumerate(pairs) if a != b), len(pairs))
    if place == len(pairs):
        return False
    if any(np.array_equal(one.tokens, other.tokens) for other in others):
        return True
    told = place < min(len(one.ranked), len(own.ranked))
    return told and abs(one.ranked[place][0] - own.ranked[place][0]) > MAX_WRITTEN_READ_DIFFERENCE_NATS
