"""Trials of a server when it is first met, and once at the greatest length of a run: whether its numbers fit together,
whether it writes greedily, and whether it reads the whole prompt."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from lexbench.core.record import Deferred, Refused
from lexbench.core.task import Tokenizer, Tokens
from lexbench.parts.serving.completions import MOST_OPTIONS, Losses
from lexbench.parts.serving.openai.trial_texts import OPEN_ENDED_BEGINNINGS, UNRELATED_WORDS, text_tokens

MAX_WRITTEN_READ_DIFFERENCE_NATS = 0.5
"""Nats by which a token may differ between being written and being read by the same engine; rounding moves it less."""
MAX_PREFIX_RMS_NATS = 0.15
"""Root mean square, in nats, by which the first tokens of a long prompt may differ from the same ones alone."""
N_PREFIX_TOKENS, MIN_PREFIX_TOKENS = 96, 48
"""Tokens of a beginning that is read alone, and the fewest that are enough."""
MIN_FLOOR_TOKENS, MIN_FLOOR_SHARE = 8, 0.02
"""Least likely tokens of a text, and share of its tokens, that are equally likely only below a floor."""
MAX_MEDIAN_DIFFERENCE_NATS = 0.2
"""Nats by which the middle one of all these tokens may differ, with its sign: rounding moves as many up as down."""
MIN_TOKEN_SPREAD_NATS = 0.01
"""Nats between the least and the most likely token of a text, below which all are taken for one constant."""
CONSTANT_BLOCK_TOKENS = 24
"""Neighbours in a text of unrelated words, which no model finds equally likely."""
ROUNDING_NATS, MAX_SCALE_IN_ROUNDING, MIN_SCALE_DIFFERENCE = 0.15, 4.0, 0.1
"""Difference of a token between being written and read by rounding, standard deviation; and differences that are
proportional to the likelihoods, at least, in units of that, and as a share."""
N_COMPARED_PLACES, TOKENS_PER_PLACE, MIN_COMPARED_TOKENS = 8, 3, 4
"""Places at which tokens are written to be compared, tokens at each in a long text, and the fewest places that are
enough where most of what is written joins other tokens."""
TRIAL_NEW_TOKENS = 12
"""Tokens to write behind each of the `OPEN_ENDED_BEGINNINGS`."""
N_DECISIVE_BEGINNINGS = 2
"""First of the `OPEN_ENDED_BEGINNINGS` after which a server is taken for greedy, where no text differed."""
MAX_GREEDY_DIFFERENCE_SHARE = 0.25
"""Share of tokens at which two greedy texts may part: where two tokens are equally likely, by rounding. Draws part at
more than half of the tokens behind `OPEN_ENDED_BEGINNINGS`, and at a third where the model is very sure."""
MAX_SLIP_NATS, MAX_SLIP_SHARE = 0.1, 0.2
"""Nats by which a written token may be less likely than another one, and the share of tokens that may be so: drafts of
a faster model are taken within a tolerance, and rounding exchanges equal ones."""
MIN_UNRANKED_TOKENS = 40
"""Written tokens, of which one must be more likely than all others together, where a server does not name the others:
of a true server's, a third are."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Drawn:
    """New tokens behind a text, and what the server tells of them."""

    tokens: Tokens
    """Ids; of a text, those that it is encoded to."""
    text: str = ""
    nats: Sequence[float] = ()
    """Of each of these tokens; empty where the server tells none, or its tokens are others."""
    ranked: Sequence[tuple[float, float | None]] = ()
    """Nats of each token that was written, and how many it has above the likeliest in its place; None: no other token
    is named."""


class TrialRequests(Protocol):
    """The requests that trials make by a dialect."""

    tokenizer: Tokenizer

    @property
    def takes_ids(self) -> bool:
        """Whether prompts are sent as ids."""

    @property
    def tells_options(self) -> bool:
        """Whether one request tells the likelihoods of many next tokens."""

    def target_losses(self, tokens: Tokens, start: int) -> Losses:
        """NLL of tokens[start:]."""

    def option_losses(self, tokens: Tokens, options: Tokens) -> Losses:
        """NLL of each option as the next token."""

    def draw(self, tokens: Tokens, count: int) -> Drawn:
        """What the server writes behind these tokens, so many new ones."""

    def can_send(self, tokens: Tokens) -> bool:
        """Whether a prompt of these tokens can be sent."""


@dataclass(frozen=True, kw_only=True, eq=False)
class WrittenText:
    """A text of unrelated words, and of tokens that the server has written between them."""

    tokens: Tokens
    written: Sequence[tuple[int, int, float]]
    """Place, id and nats of each of these tokens."""
    firsts: Sequence[int]
    """Which of `written` are the first at their place."""
    drawn: Sequence[Drawn]
    """All that was written, comparable or not."""


def write_between_words(dialect: TrialRequests, length: int | None = None) -> WrittenText:
    """Let the server write between `UNRELATED_WORDS`, behind a text that fills `length` tokens; None: behind none.

    Each word follows what was written, so that neighbours of a token have other likelihoods than the token.
    """
    tokenizer, written, firsts, drawn = dialect.tokenizer, list[tuple[int, int, float]](), list[int](), list[Drawn]()
    parts = [tokenizer.encode(part).ids for part in UNRELATED_WORDS[1:]]
    room = 1 + TOKENS_PER_PLACE * N_COMPARED_PLACES + sum(map(len, parts[:N_COMPARED_PLACES]))
    count = TOKENS_PER_PLACE if length is not None else 1  # short texts stay short
    tokens = text_tokens(tokenizer, None if length is None else length - room, UNRELATED_WORDS[0])
    for following in parts if length is None else parts[:N_COMPARED_PLACES]:
        try:
            found = dialect.draw(tokens, count)
        except Deferred:
            raise
        except Refused:
            found = Drawn(tokens=tokens[:0])
        drawn.append(found)
        told = len(found.nats)
        new = found.tokens[:told]
        whole = np.concatenate([tokens, new, following]).astype(np.int64)
        if told and dialect.can_send(whole):
            firsts.append(len(written))
            written += [(len(tokens) + k, int(new[k]), found.nats[k]) for k in range(told)]
            tokens = whole
        else:
            tokens = np.concatenate([tokens, following]).astype(np.int64)
        if len(firsts) == N_COMPARED_PLACES or (
            len(drawn) == MIN_COMPARED_TOKENS and not any(each.ranked for each in drawn)
        ):
            break
    return WrittenText(tokens=tokens, written=written, firsts=firsts, drawn=drawn)


def find_contradiction(
    dialect: TrialRequests, text: WrittenText, prompts: bool, options: int, prefix: bool = False
) -> tuple[str, bool]:
    """Words for likelihoods that cannot be those of the model that writes, and whether they contradict each other.

    Empty: none were seen. Each token, but for one of eight, must be as likely when it is read as it was when it was
    written, by neither a constant nor a factor more, and neighbours must not have one constant, such as 0.

    Args:
        dialect: of the server.
        text: that the server has written.
        prompts: ask for the likelihoods of the whole text.
        options: places at which to ask for the likelihood of a written token as an option of the next token.
        prefix: read the beginning of the text alone, too.
    """
    tokens, written = text.tokens, text.written
    if len(text.firsts) < MIN_COMPARED_TOKENS:
        return "gives no log-probabilities of tokens that it writes, by which those of a prompt could be checked", False
    found, rows, said = list[tuple[float, float]](), list[Losses](), ""
    try:
        if prompts:
            rows.append(dialect.target_losses(tokens, 1))
            found += [(nats, float(rows[0][place - 1])) for place, _, nats in written]
            said = _prefix_words(dialect, tokens, rows[0]) if prefix else ""
        for place, own, nats in [written[first] for first in text.firsts[-options:]] if options else []:
            among = np.unique(tokens[place : place + N_COMPARED_PLACES])
            rows.append(dialect.option_losses(tokens[:place], among))
            found.append((nats, float(rows[-1][np.searchsorted(among, own)])))
    except Deferred:
        raise
    except Refused as refusal:
        return f"does not give the likelihoods of a text that it has written itself ({refusal.reason})", False
    said = next(filter(None, map(_constant_words, rows)), "") or _difference_words(found) or said
    return said, bool(said)


def _constant_words(row: Losses) -> str:
    """Words for a row of likelihoods, part of which is one constant; empty: none is."""
    size = min(CONSTANT_BLOCK_TOKENS, len(row))
    for begin in range(0, len(row) - size + 1, max(1, size // 2)) if len(row) > 1 else ():
        block = row[begin : begin + size]
        if np.ptp(block) < MIN_TOKEN_SPREAD_NATS:
            return f"gives all tokens the same likelihood, {abs(block[0]):.2f} nats"
    floor = float(row.max(initial=0))
    count = int((row == floor).sum())
    if floor > 0 and count >= max(MIN_FLOOR_TOKENS, MIN_FLOOR_SHARE * len(row)):
        return f"gives {count} of {len(row)} tokens the same likelihood, {floor:.2f} nats, and none a lower one"
    return ""


def _prefix_words(dialect: TrialRequests, tokens: Tokens, losses: Losses) -> str:
    """Words for a beginning that is less or more likely in a long prompt than alone; empty: as likely, or not known.

    No token depends on what follows it. Of each eight tokens the one that differs most is left out, an outlier.
    """
    sizes = range(min(N_PREFIX_TOKENS, len(tokens) // 2), MIN_PREFIX_TOKENS - 1, -1)
    size = next((size for size in sizes if dialect.can_send(tokens[:size])), None)
    if size is None:
        return ""
    moved = np.sort(np.abs(losses[: size - 1] - dialect.target_losses(tokens[:size], 1)))
    rms = float(np.sqrt(np.square(moved[: len(moved) - len(moved) // N_COMPARED_PLACES]).mean()))
    if rms <= MAX_PREFIX_RMS_NATS:
        return ""
    return (
        f"contradicts itself: the first {size} tokens of a prompt of {len(tokens)} have likelihoods that are {rms:.2f} "
        "nats away from those of the same tokens alone, so it reads something else in front of long prompts, or by "
        "another model"
    )


def _difference_words(found: Sequence[tuple[float, float]]) -> str:
    """Words for tokens that differ between being written (nats) and being read (nats); empty: rounding explains it."""
    apart = sorted(found, key=lambda pair: -abs(pair[0] - pair[1]))
    before, after = apart[len(found) // N_COMPARED_PLACES]  # one of eight may be an outlier of activations in few bits
    if abs(before - after) > MAX_WRITTEN_READ_DIFFERENCE_NATS:
        return (
            f"contradicts itself: a token of {before:.2f} nats when it was written has {after:.2f} when it is read, so "
            "its likelihoods of a prompt are of other tokens"
        )
    middle, scale = (
        float(np.median([read - wrote for wrote, read in found])),
        _scale(apart[len(found) // N_COMPARED_PLACES :]),
    )
    if abs(middle) <= MAX_MEDIAN_DIFFERENCE_NATS and scale == 1:
        return ""
    by = f"{middle:+.2f} nats" if scale == 1 else f"{scale:.2f} times the nats"
    return (
        f"contradicts itself: tokens have {by} when they are read against when written, so its likelihoods of a prompt "
        "are of another unit or temperature"
    )


def _scale(pairs: Sequence[tuple[float, float]]) -> float:
    """The factor by which read tokens have more nats than written ones; 1 where rounding may explain it.

    Least squares through 0: with errors of `ROUNDING_NATS` the factor's own is ROUNDING_NATS / sqrt(sum of squares).
    """
    wrote, read = np.array(pairs).T
    squares = float(np.square(wrote).sum())
    if squares == 0:
        return 1.0
    found = float((wrote * read).sum()) / squares
    certain = abs(found - 1) * math.sqrt(squares) > MAX_SCALE_IN_ROUNDING * ROUNDING_NATS
    return found if certain and abs(found - 1) > MIN_SCALE_DIFFERENCE else 1.0


def find_sampling(dialect: TrialRequests, length: int | None = None) -> tuple[str, list[Drawn]]:
    """Words for a server that does not write greedily, and what it has written.

    Empty: it does, or it cannot be asked. Each of the `OPEN_ENDED_BEGINNINGS` is asked twice. Of all tokens up to the
    first that differs, its share is counted.

    Args:
        dialect: of the server.
        length: tokens of prompt and answer, which a text in front fills; None: there is none.
    """
    agreed = parted = asked = 0
    drawn = list[Drawn]()
    for opening in OPEN_ENDED_BEGINNINGS:
        tokens = text_tokens(dialect.tokenizer, None if length is None else length - TRIAL_NEW_TOKENS, opening)
        try:
            pair = [dialect.draw(tokens, TRIAL_NEW_TOKENS) for _ in range(2)]
        except Deferred:
            raise
        except Refused:
            return "", drawn
        drawn += [rank_by_reading(dialect, tokens, pair[0]), pair[1]]
        one, other = (each.tokens[:TRIAL_NEW_TOKENS].tolist() for each in pair)
        pairs = itertools.zip_longest(one, other)
        alike = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        agreed, parted, asked = agreed + alike, parted + (one != other), asked + 1
        if asked == N_DECISIVE_BEGINNINGS and not parted:
            break
    if parted <= MAX_GREEDY_DIFFERENCE_SHARE * (agreed + parted):
        return "", drawn
    said = (
        f"does not write greedily: {parted} of {asked} prompts had other answers when they were asked again with "
        "temperature 0"
    )
    return said, drawn


def rank_by_reading(dialect: TrialRequests, tokens: Tokens, drawn: Drawn) -> Drawn:
    """The same new tokens with nats from being read, where the server names no other tokens beside them.

    The first one is compared with tokens of the prompt as its options, where the server tells such.
    """
    if not len(drawn.tokens) or any(slip is not None for _, slip in drawn.ranked):
        return drawn
    try:
        whole = np.concatenate([tokens, drawn.tokens]).astype(np.int64)
        if not dialect.can_send(whole):
            return drawn
        read = dialect.target_losses(whole, len(tokens))
        ranked: list[tuple[float, float | None]] = [(float(nats), None) for nats in read]
        if dialect.tells_options:
            options = np.unique(np.append(tokens[-MOST_OPTIONS + 1 :], drawn.tokens[0]))
            losses = dialect.option_losses(tokens, options)
            own = float(losses[np.searchsorted(options, drawn.tokens[0])])
            ranked[0] = own, own - float(losses.min())
    except Deferred:
        raise
    except Refused:  # it tells none
        return drawn
    return replace(drawn, ranked=ranked)


def find_slips(drawn: Sequence[Drawn]) -> str:
    """Words for a server that writes other tokens than the likeliest by its own likelihoods; empty: it was not seen."""
    ranked = [slip for each in drawn for _, slip in each.ranked if slip is not None]
    slipped = [slip for slip in ranked if slip > MAX_SLIP_NATS]
    if len(slipped) > max(1.0, MAX_SLIP_SHARE * len(ranked)):
        return (
            f"does not write greedily: {len(slipped)} of {len(ranked)} tokens that it wrote are less likely than "
            f"others, by its own log-probabilities, by {np.median(slipped):.2g} nats"
        )
    nats = [nats for each in drawn for nats, slip in each.ranked if slip is None]
    if len(nats) >= MIN_UNRANKED_TOKENS and min(nats) > math.log(2):
        return (
            f"does not write greedily: of {len(nats)} tokens that it wrote none has a probability of one half, by its "
            "own log-probabilities"
        )
    return ""


def distance_of_drawn(one: Drawn, other: Drawn) -> float:
    """Largest difference of the nats of new tokens; infinite where the tokens differ."""
    if one.text != other.text or len(one.ranked) != len(other.ranked):
        return math.inf
    return max((abs(a - b) for (a, _), (b, _) in zip(one.ranked, other.ranked, strict=True)), default=0.0)
