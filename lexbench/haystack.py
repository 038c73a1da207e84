"""Haystacks of exactly so many tokens, and needles at their depths.

A prompt is joined from pieces that are tokenized on their own, so that its length is exact in the model's own tokens
and a needle has the same tokens wherever it stands.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lexbench.perplexity import EncodedCorpus
from lexbench.record import Refused
from lexbench.task import Tokenizer, Tokens

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
    pieces: list[Tokens] = []
    ends = [0]
    while ends[-1] < space:
        pieces.append(encoded[len(pieces) % len(encoded)])
        ends.append(ends[-1] + len(pieces[-1]))
    tokens = np.concatenate([*pieces, np.empty(0, np.int64)])[:space].astype(np.int64)
    return Haystack(tokens, np.asarray([end for end in ends if end <= space]), name)


def text(texts: EncodedCorpus, space: int, rng: np.random.Generator) -> Haystack:
    """`space` tokens of running text from a random sentence on, through as many documents as it takes.

    Documents begin without BOS; after the last one comes the first. A document is drawn by chance, then a sentence of
    it. The name is that of the first document and the stretch of `space` tokens in which the text begins there.

    Raises Refused where the whole corpus has fewer tokens.
    """
    first = int(rng.integers(len(texts)))
    begin = int(rng.choice(np.concatenate([[0], texts.breaks(first)])))
    name = f"{texts.name(first)} {begin // max(1, space)}"
    pieces, ends, filled, document = [np.empty(0, np.int64)], [np.zeros(1, np.int64)], 0, first
    while filled < space:
        ids, cuts = texts[document].ids[begin:], texts.breaks(document) - begin
        pieces.append(ids)
        ends += [cuts[cuts > 0] + filled, np.asarray([filled + len(ids)])]
        filled += len(ids)
        document, begin = (document + 1) % len(texts), 0
        if document == first and filled < space:
            total = sum(len(texts[each].ids) for each in range(len(texts)))
            raise Refused(f"a haystack needs {space} tokens, the corpus has {total}: take a larger corpus")
    cuts = np.unique(np.concatenate(ends))
    return Haystack(np.concatenate(pieces)[:space], cuts[cuts <= space], name)


def insert(haystack: Haystack, needles: Sequence[Tokens], depths: Sequence[float]) -> tuple[Tokens, list[float]]:
    """The haystack with needles near their depths, at ends of sentences; and the depths as realised.

    A depth is a share of the haystack before anything is inserted, 0 its start and 1 its end. Needles that meet at one
    end stand there in their order.
    """
    space = len(haystack.tokens)
    nearest = [int(haystack.ends[np.argmin(np.abs(haystack.ends - depth * space))]) for depth in depths]
    pieces, last = [], 0
    for number in sorted(range(len(needles)), key=nearest.__getitem__):
        pieces += [haystack.tokens[last : nearest[number]], needles[number]]
        last = nearest[number]
    tokens = np.concatenate([*pieces, haystack.tokens[last:]]).astype(np.int64)
    return tokens, [place / space if space else 0.0 for place in nearest]


def stratified(index: int, strata: int, rng: np.random.Generator) -> float:
    """A depth in [0, 1): sample i's is uniform in part i modulo `strata`, so that all parts have equally many."""
    return float((index % strata + rng.random()) / strata)
