"""Riffle: documents interleaved block by block, where only the earlier blocks of the own document help."""

import functools
import itertools
import string
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from lexbench import (
    Answer,
    AnyQuestion,
    ConfigError,
    Corpus,
    Loglikelihood,
    Outline,
    Refused,
    Sample,
    Task,
    Tokenizer,
    Tokens,
)
from lexbench.taskkit.perplexity import (
    AVERAGING_NOTE,
    LONGER_CORPUS_REMEDY,
    EncodedCorpus,
    bos_policy,
    encoded_corpus,
    fewer_samples_remedy,
)
from lexbench.taskkit.prompt import check_at_least, check_length
from lexbench.taskkit.scoring import score_likelihood

STORY_MARKER = "\n[{letter}] "
Piece = tuple[int, Tokens, bool]
"""Number of the stream of a block, the block's tokens with the marker, and whether they hold targets."""


@dataclass(frozen=True)
class Riffle(Task):
    """Score the last block of each of several documents that are shuffled like two halves of a pack of cards.

        [C] a1 a2  [A] b1 b2  [B] c1 c2  [A] b3 b4  [B] c3 c4  [C] a3 a4  [B] c5 c6  [C] a5 a6  [A] b5 b6
                                                                    targets:  c5 c6      a5 a6      b5 b6

    The idea is that of marin-community/marin, issue 8655. Each document is a stream of blocks under an opaque marker, a
    letter that says nothing but which stream goes on. In each round every stream has one block, and the order of the
    streams in a round is random: the marker, or the text itself, must say where the block goes on. Base models can do
    it, as nothing is asked or answered.

    The targets, the last block of every stream, are the same at every length: only earlier rounds are added. Of a
    document the last block and all earlier ones are as in the document. So what a longer text gains is what the model
    takes from blocks of its own stream between those of others. `riffled=false` is the control: the same blocks with
    their markers, one document after another. NLL of the riffled text minus that of the control, on the same targets,
    is what the shuffling costs; with one round both are the same text.

    Documents are taken in groups of `streams`, which share none, and a group is one cluster. Texts of a group differ in
    their places. Floors: n-grams of the corpus's other documents on the same targets, weighted alike; with one round
    (the shortest length) a model has nothing but the block itself and blocks of other documents.

    Args:
        corpus: of the documents.
        streams: documents in a text.
        block: tokens of a block, without its marker.
        riffled: False is the control, one document after another.
        longest: tokens of text that every place has, at any length; None: the run's longest length.
    """

    form: ClassVar[tuple[str, ...]] = ("riffled",)
    corpus: Corpus
    streams: int = 4
    block: int = 24
    riffled: bool = True
    longest: int | None = None

    def __post_init__(self) -> None:
        check_at_least("riffle", self, streams=2, block=1, longest=1)
        if self.streams > len(string.ascii_uppercase):
            raise ConfigError(f"riffle's streams must be at most 26, a letter each, got {self.streams}")

    def for_lengths(self, lengths: Sequence[int]) -> Self:
        """Choose places that fit the longest length."""
        return replace(self, longest=self.longest or max(lengths))

    def protocol(self, tokenizer: Tokenizer) -> str:
        """Protocol in words: streams, blocks, targets, context, averaging, BOS."""
        order = "in turns of random order" if self.riffled else "control, one document after another"
        return (
            f"riffle: {self.streams} documents in blocks of {self.block} tokens, {order}; targets: the last block of "
            f"each, the same at every length, only their context grows (places of {self.longest} tokens); "
            f"{AVERAGING_NOTE}; "
            f"{bos_policy(tokenizer)}"
        )

    def outline(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Outline:
        """Sizes of n texts of `length` tokens, one for each place of a group of documents."""
        self.for_lengths([length])._check(tokenizer, length)
        return Outline(n, length)

    def _check(self, tokenizer: Tokenizer, length: int) -> None:
        """Refused where a text of the length has no whole round, or is longer than the places."""
        assert self.longest is not None
        check_length("riffle", len(tokenizer.prefix) + self._round(tokenizer), length, "raise length or lower block")
        if length > self.longest:
            raise Refused(f"riffle's places have {self.longest} tokens, asked for {length}: raise longest")

    def _round(self, tokenizer: Tokenizer) -> int:
        """Tokens of a round, markers included."""
        return self.streams * (self.block + len(_markers(tokenizer, self.streams)[0]))

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        """Questions, one for each place of a group of documents."""
        task = self.for_lengths([length])
        task._check(tokenizer, length)
        texts = encoded_corpus(self.corpus, tokenizer)
        rounds = -(-((task.longest or 0) - len(texts.prefix)) // self._round(tokenizer))
        groups = task._groups(texts, rounds * self.block, seed)
        first = list(itertools.islice(groups, n))
        ends = [task._ends(texts, group, rounds * self.block, seed) for group in first]
        # A first place in every group, then a second one in each, and so on.
        turns = itertools.zip_longest(*([(group, end) for end in own] for group, own in zip(first, ends, strict=True)))
        places = [place for turn in turns for place in turn if place is not None][:n]
        if len(places) < n:
            raise Refused(
                f"riffle needs {n} places in groups of {self.streams} documents of {rounds * self.block} tokens, the "
                f"corpus has {len(places)}: give {LONGER_CORPUS_REMEDY}{fewer_samples_remedy(len(places))}, or a lower "
                "task.streams"
            )
        return [task._question(tokenizer, texts, length, seed, index, *place) for index, place in enumerate(places)]

    def _groups(self, texts: EncodedCorpus, tokens: int, seed: int) -> Iterator[tuple[int, ...]]:
        """Groups of documents with at least so many tokens, in the seed's order; no document is in two."""
        order = self.rng("documents", seed).permutation(len(texts)).tolist()
        long = (document for document in order if len(texts[document].ids) > tokens)
        while len(group := tuple(itertools.islice(long, self.streams))) == self.streams:
            yield group

    def _ends(self, texts: EncodedCorpus, group: tuple[int, ...], tokens: int, seed: int) -> list[tuple[int, ...]]:
        """Ends of disjoint last blocks in the documents of a group, in random order: grids with random offsets."""
        rng, found = self.rng("places", seed, *map(texts.name, group)), []
        for document in group:
            space = len(texts[document].ids) - tokens
            offset = tokens + int(rng.integers(space % self.block + 1))
            found.append([offset + self.block * int(each) for each in rng.permutation(space // self.block + 1)])
        return list(zip(*found, strict=False))

    def _question(
        self,
        tokenizer: Tokenizer,
        texts: EncodedCorpus,
        length: int,
        seed: int,
        index: int,
        group: tuple[int, ...],
        ends: tuple[int, ...],
    ) -> Loglikelihood:
        pieces = self._pieces(tokenizer, texts, length - len(texts.prefix), seed, index, group, ends)
        last = [stream for stream, _, targeted in pieces if targeted]
        if not self.riffled:
            pieces.sort(key=lambda piece: last.index(piece[0]))  # stable: the blocks of a stream keep their order
        begins = len(texts.prefix) + np.cumsum([0, *(len(tokens) for _, tokens, _ in pieces)])
        places = np.concatenate(
            [np.arange(begin - self.block, begin) for begin, piece in zip(begins[1:], pieces, strict=True) if piece[2]]
        )
        spans = [(group[stream], ends[stream] - self.block, ends[stream]) for stream in last]
        units = [texts[document].units(first, end) for document, first, end in spans]
        return Loglikelihood(
            index=index,
            cluster=texts.name(group[0]),
            tokens=np.concatenate([texts.prefix, *(tokens for _, tokens, _ in pieces)]),
            first_target=int(places[0]),
            bytes=sum(each[0] for each in units),
            words=sum(each[1] for each in units),
            floors=_mean_floors(texts, spans),
            facts={"documents": [texts.name(document) for document, _, _ in spans], "targets": places.tolist()},
        )

    def _pieces(
        self,
        tokenizer: Tokenizer,
        texts: EncodedCorpus,
        space: int,
        seed: int,
        index: int,
        group: tuple[int, ...],
        ends: tuple[int, ...],
    ) -> list[Piece]:
        """The riffled blocks of the last `space` tokens, in order; the first one is cut."""
        rng, found, left, back = self.rng("turns", seed, index), list[Piece](), space, 0
        known = _markers(tokenizer, self.streams)
        markers = [known[each] for each in rng.permutation(self.streams)]
        while left > 0:
            # Backwards from the last round, so that the rounds of a shorter text are the last ones of a longer.
            for stream in rng.permutation(self.streams).tolist():
                end = ends[stream] - back * self.block
                if left > 0:
                    block, marker = texts[group[stream]].ids[end - self.block : end], markers[stream]
                    # A block that is cut keeps its marker, where it has a token behind it.
                    room = left - len(marker)
                    piece = np.concatenate([marker, block[-room:]]) if room > 0 else block[-left:]
                    found.append((stream, piece, back == 0))
                    left -= len(piece)
            back += 1
        return found[::-1]

    def score(self, question: AnyQuestion, answer: Answer) -> Sample:
        """The NLL of the last blocks, without their markers."""
        sample, targets = score_likelihood(question, answer), np.asarray(question.facts["targets"])
        assert sample.nll is not None
        nll = sample.nll[targets - targets[0]]
        bad = int((~np.isfinite(nll)).sum())
        failed = f"{bad} of {len(nll)} targets have no finite likelihood" if bad else None
        return replace(sample, nll=nll, failed=failed)


@functools.lru_cache(maxsize=16)
def _markers(tokenizer: Tokenizer, count: int) -> list[Tokens]:
    """Markers of the most common number of tokens; Refused where these are too few."""
    found = [tokenizer.encode(STORY_MARKER.format(letter=letter)).ids for letter in string.ascii_uppercase]
    usual, known = Counter(map(len, found)).most_common(1)[0]
    if known < count:
        raise Refused(f"riffle has {known} markers of equally many tokens, needs {count}: lower streams")
    return [each for each in found if len(each) == usual][:count]


def _mean_floors(texts: EncodedCorpus, spans: Sequence[tuple[int, int, int]]) -> dict[str, float]:
    """Mean floors of all targets, by name, for floors that every document has; spans have equal length."""
    each = []
    for document, first, end in spans:
        ids = texts[document].ids
        each.append(texts.floors.of(document, ids[first:end], ids[first - 1 : end - 1]))
    return {name: sum(one[name] for one in each) / len(each) for name in each[0] if all(name in one for one in each)}
