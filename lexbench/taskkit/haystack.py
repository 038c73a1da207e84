"""Haystacks of exactly so many tokens, and needles at their depths.

A prompt is joined from pieces that are tokenized on their own, so that its length is exact in the model's own tokens
and a needle has the same tokens wherever it stands.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lexbench.core.record import Refused
from lexbench.core.task import Tokenizer, Tokens
from lexbench.taskkit.perplexity import EncodedCorpus

NOISE = (
    " The grass is green.",
    " The sky is blue.",
    " The sun is yellow.",
    " Here we go.",
    " There and back again.",
)
"""The usual noise (Mohtashami and Jaggi, arXiv 2305.16300)."""


@dataclass(frozen=True, eq=False)
class Haystack:
    """Text that has nothing to do with what is asked."""

    tokens: Tokens
    ends: NDArray[np.int64]
    """[ends] ascending, with 0: where one may cut, between sentences or lines."""
    name: str
    """Of the text: samples of one name are not independent."""


def noise(tokenizer: Tokenizer, space: int, name: str, sentences: Sequence[str] = NOISE) -> Haystack:
    """Sentences again and again, `space` tokens of them; the last one is cut to fit."""
    encoded = [tokenizer.encode(sentence).ids for sentence in sentences]
    assert any(map(len, encoded)), "noise needs sentences that have tokens"
    once = np.cumsum([len(ids) for ids in encoded])
    rounds = np.arange(-(-space // once[-1]))
    ends = np.concatenate([[0], (rounds[:, None] * once[-1] + once).ravel()])
    return Haystack(np.resize(np.concatenate(encoded), space), ends[ends <= space], name)


def text(texts: EncodedCorpus, space: int, rng: np.random.Generator) -> Haystack:
    """`space` tokens of running text from a random sentence on, through as many documents as it takes.

    Documents begin without BOS; after the last one comes the first, and at last what stands before that sentence, so
    that no text comes twice. A document is drawn by chance, then a sentence of it; neither depends on `space`. The name
    is the stretch of `space` tokens of the whole corpus in which the text begins: two texts that begin in one share
    half of their tokens on average, and of a small corpus there are few.

    Raises Refused where the whole corpus has fewer tokens.
    """
    first = int(rng.integers(len(texts)))
    begin = int(rng.choice(np.concatenate([[0], texts.breaks(first)])))
    name = f"stretch {(int(texts.stream_starts[first]) + begin) // max(1, space)}"
    pieces, ends, filled = [np.empty(0, np.int64)], [np.zeros(1, np.int64)], 0
    for turn in range(len(texts) + 1):
        if filled >= space:
            break
        document = (first + turn) % len(texts)
        low, high = (begin if turn == 0 else 0), (begin if turn == len(texts) else len(texts[document].ids))
        cuts = texts.breaks(document)
        pieces.append(texts[document].ids[low:high])
        ends += [cuts[cuts > low] - low + filled, np.asarray([filled + high - low])]
        filled += high - low
    if filled < space:
        raise Refused(f"a haystack needs {space} tokens, the corpus has {filled}: take a larger corpus")
    cuts = np.unique(np.concatenate(ends))
    return Haystack(np.concatenate(pieces)[:space], cuts[cuts <= space], name)


def joined(pieces: Sequence[Tokens], rest: Haystack) -> Haystack:
    """Pieces in their order and the rest behind them; one may cut between any two pieces, and where the rest says."""
    borders = np.cumsum([0, *map(len, pieces)])
    tokens = np.concatenate([*pieces, rest.tokens]).astype(np.int64)
    return Haystack(tokens, np.union1d(borders, rest.ends + borders[-1]), rest.name)


def insert(
    haystack: Haystack, needles: Sequence[Tokens], depths: Sequence[float], strata: int | None = None
) -> tuple[Tokens, list[float]]:
    """The haystack with needles near their depths, at ends of sentences; and the depths as realised.

    A depth is a share of the haystack before anything is inserted, 0 its start and 1 its end. Needles that meet at one
    end stand there in their order. With `strata`, none leaves its depth's part where a sentence ends in that.
    """
    space = len(haystack.tokens)
    nearest = [_nearest_end(haystack, depth, strata) for depth in depths]
    pieces, last = [], 0
    for number in sorted(range(len(needles)), key=nearest.__getitem__):
        pieces += [haystack.tokens[last : nearest[number]], needles[number]]
        last = nearest[number]
    tokens = np.concatenate([*pieces, haystack.tokens[last:]]).astype(np.int64)
    return tokens, [place / space if space else 0.0 for place in nearest]


def put(haystack: Haystack, needle: Tokens, depth: float, strata: int | None = None) -> tuple[Haystack, int]:
    """The haystack with a needle as a part of it, which others may stand before or behind; and where it begins.

    The place is as `insert` chooses it: divided by the tokens of the haystack it is the depth as realised.
    """
    place = _nearest_end(haystack, depth, strata)
    tokens = np.concatenate([haystack.tokens[:place], needle, haystack.tokens[place:]])
    ends = haystack.ends + len(needle) * (haystack.ends > place)
    return Haystack(tokens, np.union1d(ends, [place, place + len(needle)]), haystack.name), place


def _nearest_end(haystack: Haystack, depth: float, strata: int | None) -> int:
    """The end nearest to a depth, in the depth's own one of so many equal parts if that has any."""
    space, ends = max(1, len(haystack.tokens)), haystack.ends
    if strata is not None:
        parts = np.minimum(ends * strata // space, strata - 1)
        own = ends[parts == min(int(depth * strata), strata - 1)]
        ends = own if len(own) else ends
    return int(ends[np.argmin(np.abs(ends - depth * space))])


def stratified(index: int, strata: int, rng: np.random.Generator) -> float:
    """A depth in [0, 1): sample i's is uniform in part i modulo `strata`, so that all parts have equally many."""
    return float((index % strata + rng.random()) / strata)
