"""Whether a server reads the whole of a long prompt: each of its tokens must matter to what follows."""

import math
from collections.abc import Iterator

import numpy as np

from lexbench.core.record import Deferred, Refused
from lexbench.core.task import Tokens
from lexbench.parts.serving.openai.trial_texts import FIRST_WORD, text_tokens
from lexbench.parts.serving.openai.trials import Drawn, TrialRequests, distance_of_drawn

UNKNOWN_CUT = "whether it reads the whole of a long prompt"
N_DRAWN_TOKENS = 8
"""Tokens written behind the long prompt."""
N_SHORT_TOKENS = 32
"""Last tokens of the prompt, by which alone a model may answer whatever stands before."""
MAX_NOISE_RATIO = 3.0
"""Differences of answers to another prompt, at most, in those of answers to the same one, where none is seen."""
COARSE_NATS = 1e-4
"""Nats to whose multiples a server rounds, where it hides what one token changes."""


def find_cut(dialect: TrialRequests, length: int) -> tuple[str, str]:
    """Words for a server that answers alike whatever stands in a part of the prompt; and words for what is not known.

    A prompt of `length` tokens, answer counted, ends in its first word, so that a model looks back to it. One token is
    exchanged: the first (BOS), the next, one in the middle. The new tokens, or their log-probabilities, must change. A
    model that answers by the last tokens alone, and says nothing by which it could be told, is not judged.
    """
    tokens = text_tokens(dialect.tokenizer, length - N_DRAWN_TOKENS, FIRST_WORD)
    try:
        base, again = (dialect.draw(tokens, N_DRAWN_TOKENS) for _ in range(2))
        found = [(where, dialect.draw(other, N_DRAWN_TOKENS)) for where, other in _exchange_tokens(dialect, tokens)]
        noise = distance_of_drawn(base, again)
        alike = [where for where, other in found if distance_of_drawn(base, other) <= MAX_NOISE_RATIO * noise]
        if not alike:
            return "", ""
        prefix = len(dialect.tokenizer.prefix)
        short = np.concatenate([tokens[:prefix], tokens[-N_SHORT_TOKENS:]])
        if noise > 0 or not base.ranked or _is_coarse(base) or not dialect.can_send(short):
            return "", UNKNOWN_CUT
        if distance_of_drawn(base, dialect.draw(short, N_DRAWN_TOKENS)) == 0:
            return "", UNKNOWN_CUT
    except Deferred:
        raise
    except Refused:  # its window is shorter: questions of this length are refused in its own words
        return "", ""
    return (
        f"answers a prompt of {len(tokens)} tokens alike whatever {' and '.join(alike)} is, and otherwise than its "
        f"last {N_SHORT_TOKENS} tokens: it reads a part of long prompts, though it counts them whole",
        "",
    )


def _exchange_tokens(dialect: TrialRequests, tokens: Tokens) -> Iterator[tuple[str, Tokens]]:
    """The prompt with another token in one place, and that place in words, as far as it can be sent."""
    prefix = len(dialect.tokenizer.prefix)
    places = {"its first token": 0, "its first word": prefix, "the token in its middle": len(tokens) // 2}
    for where, place in places.items():
        if place or not prefix or dialect.takes_ids:
            for own in dict.fromkeys(tokens[prefix + 1 :].tolist()):
                other = tokens.copy()
                other[place] = own
                if own != tokens[place] and dialect.can_send(other):
                    yield where, other
                    break


def _is_coarse(drawn: Drawn) -> bool:
    """Whether all nats are rounded to multiples of `COARSE_NATS`."""
    return all(math.isclose(round(nats / COARSE_NATS) * COARSE_NATS, nats, abs_tol=1e-9) for nats, _ in drawn.ranked)
