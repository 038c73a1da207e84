"""Trials of a server when it is first met: whether its numbers fit together, and whether it writes greedily."""

import itertools
from collections.abc import Callable
from typing import Protocol

import numpy as np

from lexbench.core.record import Deferred, Refused
from lexbench.core.task import Tokenizer, Tokens
from lexbench.parts.serving.completions import Losses

MAX_WRITTEN_READ_DIFFERENCE_NATS = 0.5
"""Nats by which a token may differ between being written and being read by the same engine; rounding moves it less."""
MAX_MEDIAN_DIFFERENCE_NATS = 0.2
"""Nats by which the middle one of all these tokens may differ, with its sign: rounding moves as many up as down."""
MIN_TOKEN_SPREAD_NATS = 0.01
"""Nats between the least and the most likely token of a text, below which all are taken for one constant."""
N_COMPARED_TOKENS, MIN_COMPARED_TOKENS = 8, 4
"""Written tokens to compare, and the fewest that are enough where most of what is written joins other tokens."""
UNRELATED_WORDS = (
    *("The old grey", " clock above", " seven wooden", " lamps hummed", " because Norwegian", " bread cannot"),
    *(" swim across", " purple arithmetic", " unless Tuesday", " brings fourteen", " quiet engines", " beneath our"),
    *(" frozen library", " whose doctor", " paints only", " bitter windows", " toward salt"),
)
"""Words that hardly ever follow one another: neighbours of a written token have other likelihoods than the token."""
OPEN_ENDED_BEGINNINGS = (
    "Once upon a time, in a town by the sea, there lived a",
    "Dear diary, today something happened that I had not",
    "The five strangest things in my drawer are a",
    "She opened the letter slowly. It began:",
    "My favourite recipe starts with some",
)
"""Beginnings that go on in many ways, so that two draws hardly ever agree."""
TRIAL_NEW_TOKENS = 12
"""Tokens to write behind each of the `OPEN_ENDED_BEGINNINGS`."""
N_DECISIVE_BEGINNINGS = 2
"""First of the `OPEN_ENDED_BEGINNINGS` after which a server is taken for greedy, where no text differed."""
MAX_GREEDY_DIFFERENCE_SHARE = 0.25
"""Share of tokens at which two greedy texts may part: where two tokens are equally likely, by rounding. Draws part at
more than half of the tokens behind `OPEN_ENDED_BEGINNINGS`, and at a third where the model is very sure."""


class TrialRequests(Protocol):
    """The requests that trials make by a dialect."""

    tokenizer: Tokenizer

    def target_losses(self, tokens: Tokens, start: int) -> Losses:
        """NLL of tokens[start:]."""

    def option_losses(self, tokens: Tokens, options: Tokens) -> Losses:
        """NLL of each option as the next token."""

    def draw_token(self, tokens: Tokens) -> tuple[int, float] | None:
        """Id and nats of the token that the server writes behind these; None where its id cannot be told."""

    def can_send(self, tokens: Tokens) -> bool:
        """Whether a prompt of these tokens can be sent."""


def find_contradiction(dialect: TrialRequests, prompts: bool, options: bool) -> str:
    """Words for likelihoods that cannot be those of the model that writes; empty: none were seen.

    The server writes one token after another, between words that it does not expect. Each, but for one of eight, must
    be as likely when it is read as it was when it was written, and a whole text must not have one constant, such as 0.

    Args:
        dialect: of the server.
        prompts: ask for the likelihoods of the whole text.
        options: ask for the likelihood of each written token as an option of the next token.
    """
    tokens, written = _write_between_parts(dialect)
    if len(written) < MIN_COMPARED_TOKENS:
        return "gives no log-probabilities of tokens that it writes, by which those of a prompt could be checked"
    found, rows = list[tuple[float, float]](), list[Losses]()
    try:
        if prompts:
            rows.append(dialect.target_losses(tokens, 1))
            found += [(nats, float(rows[0][place - 1])) for place, _, nats in written]
        for place, own, nats in written if options else ():
            among = np.unique(tokens[place : place + N_COMPARED_TOKENS])
            rows.append(dialect.option_losses(tokens[:place], among))
            found.append((nats, float(rows[-1][np.searchsorted(among, own)])))
    except Deferred:
        raise
    except Refused as refusal:
        return f"does not give the likelihoods of a text that it has written itself ({refusal.reason})"
    for row in rows:
        if len(row) > 1 and np.ptp(row) < MIN_TOKEN_SPREAD_NATS:
            return f"gives all tokens the same likelihood, {abs(row[0]):.2f} nats"
    apart = sorted(found, key=lambda pair: -abs(pair[0] - pair[1]))
    before, after = apart[len(found) // N_COMPARED_TOKENS]  # one of eight may be an outlier of activations in few bits
    if abs(before - after) <= MAX_WRITTEN_READ_DIFFERENCE_NATS:
        middle = float(np.median([read - wrote for wrote, read in found]))
        if abs(middle) <= MAX_MEDIAN_DIFFERENCE_NATS:
            return ""
        return (
            f"contradicts itself: tokens have {middle:+.2f} nats when they are read against when written, so "
            "its likelihoods of a prompt are of another unit or temperature"
        )
    return (
        f"contradicts itself: a token of {before:.2f} nats when it was written has {after:.2f} when it is read, so "
        "its likelihoods of a prompt are of other tokens"
    )


def _write_between_parts(dialect: TrialRequests) -> tuple[Tokens, list[tuple[int, int, float]]]:
    """A text of `UNRELATED_WORDS` and of tokens that the server writes between them: place, id and nats of each of
    these."""
    tokenizer, written = dialect.tokenizer, list[tuple[int, int, float]]()
    tokens = np.array([*tokenizer.prefix, *tokenizer.encode(UNRELATED_WORDS[0]).ids], dtype=np.int64)
    for part in UNRELATED_WORDS[1:]:
        following = tokenizer.encode(part).ids
        try:
            drawn = dialect.draw_token(tokens)
        except Deferred:
            raise
        except Refused:
            drawn = None
        whole = np.concatenate([tokens, [] if drawn is None else [drawn[0]], following]).astype(np.int64)
        if drawn is not None and dialect.can_send(whole):
            written.append((len(tokens), *drawn))
            tokens = whole
        else:
            tokens = np.concatenate([tokens, following])
        if len(written) == N_COMPARED_TOKENS:
            break
    return tokens, written


def find_sampling(write: Callable[[str, int], Tokens]) -> str:
    """Words for a server that does not write greedily; empty: it does, or it cannot be asked.

    Each of the `OPEN_ENDED_BEGINNINGS` is asked twice. Of all tokens up to the first that differs, its share is
    counted.

    Args:
        write: tokens that the server writes behind a text, at most so many.
    """
    agreed = parted = asked = 0
    for opening in OPEN_ENDED_BEGINNINGS:
        try:
            one, other = (write(opening, TRIAL_NEW_TOKENS)[:TRIAL_NEW_TOKENS].tolist() for _ in range(2))
        except Deferred:
            raise
        except Refused:
            return ""
        pairs = itertools.zip_longest(one, other)
        alike = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        agreed, parted, asked = agreed + alike, parted + (one != other), asked + 1
        if asked == N_DECISIVE_BEGINNINGS and not parted:
            break
    if parted <= MAX_GREEDY_DIFFERENCE_SHARE * (agreed + parted):
        return ""
    return (
        f"does not write greedily: {parted} of {asked} prompts had other answers when they were asked again with "
        "temperature 0"
    )
