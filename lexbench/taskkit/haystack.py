"""Haystacks of an exact number of tokens, and needles inserted at given depths.

A prompt is joined from pieces that are tokenized separately: its length is exact in the model's own tokens, and a
needle has the same tokens at every depth.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lexbench.core.record import Refused
from lexbench.core.task import Tokenizer, Tokens
from lexbench.corpora import Corpus
from lexbench.taskkit.perplexity import EncodedCorpus, encoded_corpus

NOISE_SENTENCES = (
    " The grass is green.",
    " The sky is blue.",
    " The sun is yellow.",
    " Here we go.",
    " There and back again.",
)
"""Sentences that noise repeats (Mohtashami and Jaggi, arXiv 2305.16300)."""


@dataclass(frozen=True, eq=False)
class Haystack:
    """Text without any relation to the question."""

    tokens: Tokens
    ends: NDArray[np.int64]
    """[ends] ascending, from 0: the places between sentences or lines, where a needle may be inserted."""
    name: str
    """The sample's cluster: samples with the same name are not independent."""
    whole: tuple[tuple[int, int], ...] = ()
    """First token and end of each needle in it: no other may be inserted inside."""


def noise_haystack(tokenizer: Tokenizer, space: int, name: str, sentences: Sequence[str] = NOISE_SENTENCES) -> Haystack:
    """Repeat the sentences to `space` tokens; the last sentence is cut."""
    encoded = [tokenizer.encode(sentence).ids for sentence in sentences]
    assert any(map(len, encoded)), "noise needs sentences that have tokens"
    once = np.cumsum([len(ids) for ids in encoded])
    rounds = np.arange(-(-space // once[-1]))
    ends = np.concatenate([[0], (rounds[:, None] * once[-1] + once).ravel()])
    # np.resize repeats the round until the space is full and cuts the last sentence.
    return Haystack(np.resize(np.concatenate(encoded), space), ends[ends <= space], name)


def text_haystack(texts: EncodedCorpus, space: int, rng: np.random.Generator) -> Haystack:
    """`space` tokens of running text that starts at a random sentence and continues through the next documents.

    First a document is drawn, then a sentence in it; neither depends on `space`. Documents follow one another without
    BOS; after the last document comes the first, and the text before the starting sentence comes last, so no text is
    repeated. To name the text, the corpus is divided into stretches of `space` tokens: the name is the number of the
    stretch in which the text starts. Two texts that start in the same stretch share half of their tokens on average.

    Raises Refused if the whole corpus has fewer tokens.
    """
    first = int(rng.integers(len(texts)))
    # Both draws come before `space` is used: longer haystacks of one sample begin at the same sentence.
    begin = int(rng.choice(np.concatenate([[0], texts.breaks(first)])))
    name = f"stretch {(int(texts.stream_starts[first]) + begin) // max(1, space)}"
    pieces, ends, filled = [np.empty(0, np.int64)], [np.zeros(1, np.int64)], 0
    # One turn more than documents: the last one is the part of the first document before the start.
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


def fill_haystack(
    corpus: Corpus | None, tokenizer: Tokenizer, space: int, name: str, rng: np.random.Generator
) -> Haystack:
    """`space` tokens of the corpus's text from a random sentence, or without a corpus of noise with this name."""
    if corpus is None:
        return noise_haystack(tokenizer, space, name)
    return text_haystack(encoded_corpus(corpus, tokenizer), space, rng)


def join_pieces(pieces: Sequence[Tokens], rest: Haystack) -> Haystack:
    """The pieces in order, then the rest; needles may be inserted between pieces and at the ends of the rest."""
    borders = np.cumsum([0, *map(len, pieces)])
    tokens = np.concatenate([*pieces, rest.tokens]).astype(np.int64)
    whole = [*itertools.pairwise(borders.tolist()), *((a + borders[-1], b + borders[-1]) for a, b in rest.whole)]
    return Haystack(tokens, np.union1d(borders, rest.ends + borders[-1]), rest.name, tuple(whole))


def insert_needles(
    haystack: Haystack, needles: Sequence[Tokens], depths: Sequence[float], strata: int | None = None
) -> tuple[Tokens, list[float]]:
    """Insert each needle at the end of a sentence nearest to its depth; also returns the realised depths.

    A depth is a share of the haystack without needles: 0 is its start, 1 its end. Needles at the same sentence end keep
    their order. With `strata`, a needle stays in the stratum of its depth if any sentence ends there.
    """
    space = len(haystack.tokens)
    nearest = [_nearest_end(haystack, depth, strata) for depth in depths]
    pieces, last = [], 0
    # sorted is stable: needles at the same end keep their order.
    for number in sorted(range(len(needles)), key=nearest.__getitem__):
        pieces += [haystack.tokens[last : nearest[number]], needles[number]]
        last = nearest[number]
    tokens = np.concatenate([*pieces, haystack.tokens[last:]]).astype(np.int64)
    return tokens, [place / space if space else 0.0 for place in nearest]


def insert_needle(haystack: Haystack, needle: Tokens, depth: float, strata: int | None = None) -> tuple[Haystack, int]:
    """Insert one needle; further needles may go directly before or behind it. Also returns the needle's first token.

    The place is the end of a sentence nearest to the depth, in the depth's stratum. Where no sentence ends in the
    stratum, a sentence is cut at the nearest token that is not inside another needle; only where there is none, the
    needle leaves the stratum. Divided by the haystack's tokens before the insertion, it is the realised depth.
    """
    place = _nearest_end(haystack, depth, strata, _cuttable_places(haystack))
    tokens = np.concatenate([haystack.tokens[:place], needle, haystack.tokens[place:]])
    ends = haystack.ends + len(needle) * (haystack.ends > place)
    # An earlier needle that begins at this place moves behind the new one; one that ends here stays.
    moved = ((a + len(needle) * (a >= place), b + len(needle) * (b > place)) for a, b in haystack.whole)
    whole = (*moved, (place, place + len(needle)))
    return Haystack(tokens, np.union1d(ends, [place, place + len(needle)]), haystack.name, whole), place


def _cuttable_places(haystack: Haystack) -> NDArray[np.int64]:
    """[places] ascending: all places but those inside a needle."""
    free = np.ones(len(haystack.tokens) + 1, bool)
    for begin, end in haystack.whole:
        # Its first place stays free: what is inserted there stands before the needle, not inside it.
        free[begin + 1 : end] = False
    return np.flatnonzero(free)


def _nearest_end(haystack: Haystack, depth: float, strata: int | None, others: NDArray[np.int64] | None = None) -> int:
    """The end nearest to a depth, inside the depth's stratum if that has one, or one of the `others` in the stratum."""
    space, ends = max(1, len(haystack.tokens)), haystack.ends
    if strata is not None:
        for places in (ends, ends if others is None else others):
            # The end of the text, share 1, belongs to the last stratum.
            parts = np.minimum(places * strata // space, strata - 1)
            own = places[parts == min(int(depth * strata), strata - 1)]
            if len(own):
                return int(own[np.argmin(np.abs(own - depth * space))])
    return int(ends[np.argmin(np.abs(ends - depth * space))])


def cut_haystack(haystack: Haystack, space: int) -> tuple[Haystack, Tokens]:
    """The first `space` tokens of a haystack without needles, for what all questions of a text share; and the rest."""
    assert not haystack.whole, "a needle may be cut"
    first = Haystack(haystack.tokens[:space], haystack.ends[haystack.ends <= space], haystack.name)
    return first, haystack.tokens[space:]


def stratified_depth(index: int, strata: int, rng: np.random.Generator) -> float:
    """A depth in [0, 1): uniform in stratum `index` modulo `strata`, so that all strata get equally many samples."""
    return float((index % strata + rng.random()) / strata)


def stratified_depth_in_text(text: int, number: int, count: int, strata: int, rng: np.random.Generator) -> float:
    """A depth in [0, 1) for question `number` of the `count` questions behind one text.

    The questions of a text stand in strata that are spread evenly over it; from text to text they move on by one
    stratum, so all strata get equally many samples. With one question it is `stratified_depth`.
    """
    return stratified_depth(text + number * strata // count, strata, rng)
