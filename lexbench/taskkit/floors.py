"""Floors of a likelihood: NLL of n-gram counts on the same targets, in nats per token.

    uniform   ln V, V the tokenizer's vocabulary
    unigram   p(b) = (c(b) + 1) / (N + V), add-one smoothing (Laplace), N counted tokens
    bigram    p(b | a) = (c(a b) + T(a) p(b)) / (c(a) + T(a)), T(a) the number of tokens seen behind a:
              Witten and Bell 1991 (doi:10.1109/18.87000, method C), interpolated with the unigram as in Chen and
              Goodman 1998 (TR-10-98); the unigram where a was never seen

Counts come from the other documents of the corpus, never from the target's own: its first documents, up to the one that
reaches MAX_COUNTED_TOKENS tokens. Without another document only the uniform floor is known. The token before the first
target is the window's own; BOS was never seen.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from lexbench.core.task import Encoded, Tokens

MAX_COUNTED_TOKENS = 1 << 17
"""Tokens after which no further document is counted: encoding a large corpus takes longer than a run."""


BITS_PER_TOKEN = 21
"""Bits of a token in the number of an n-gram: three tokens fill 63."""


class Documents(Protocol):
    """The encoded documents of a corpus."""

    def __len__(self) -> int: ...

    def __getitem__(self, document: int) -> Encoded: ...


class _Counts:
    """Counts of equal numbers."""

    def __init__(self, numbers: Tokens) -> None:
        self.numbers, self.counts = np.unique(numbers, return_counts=True)

    def at(self, numbers: Tokens) -> Tokens:
        """The count of each number; 0 where it is unseen."""
        if not len(self.numbers):
            return np.zeros_like(numbers)
        # A number beyond the last would be found behind the end; the comparison then says that it is not there.
        places = np.minimum(np.searchsorted(self.numbers, numbers), len(self.numbers) - 1)
        return np.where(self.numbers[places] == numbers, self.counts[places], 0)


class _Grams:
    """Counts over texts: of tokens, of pairs of neighbours, and of pairs by their first token."""

    def __init__(self, texts: Sequence[Tokens]) -> None:
        self.total = sum(map(len, texts))
        self.tokens = _Counts(_concatenate(texts))
        self.pairs = _Counts(_concatenate([_grams(ids, 2) for ids in texts]))
        self.first = _Counts(_concatenate([ids[:-1] for ids in texts]))


def _concatenate(arrays: Sequence[Tokens]) -> Tokens:
    return np.concatenate([*arrays, np.empty(0, np.int64)])


class Floors:
    """N-gram floors over the documents of one corpus.

    Args:
        documents: of the corpus, encoded.
        vocabulary: number of token ids, at most 2^21.
    """

    def __init__(self, documents: Documents, vocabulary: int) -> None:
        self._documents, self._vocabulary = documents, vocabulary
        texts: list[Tokens] = []
        while sum(map(len, texts)) < MAX_COUNTED_TOKENS and len(texts) < len(documents):
            texts.append(documents[len(texts)].ids)
        self._counted, self._all = len(texts), _Grams(texts)
        self._kinds = _Counts(self._all.pairs.numbers >> BITS_PER_TOKEN)
        self._own = functools.lru_cache(maxsize=4)(self._own_grams)

    def of(self, document: int, targets: Tokens, before: Tokens) -> Mapping[str, float]:
        """Mean nats per target of each floor, by name.

        Args:
            document: of the targets; its own counts are left out.
            targets: [targets] token ids.
            before: [targets] the token before each.
        """
        uniform = {"uniform": math.log(self._vocabulary)}
        own, gone = self._own(document)
        total = self._all.total - own.total
        if not total:
            return uniform
        # The target's own document leaves the counts, so no floor has seen its targets. The 1 is Laplace's.
        seen = self._all.tokens.at(targets) - own.tokens.at(targets)
        unigram = (seen + 1) / (total + self._vocabulary)
        codes = before << BITS_PER_TOKEN | targets
        pairs = self._all.pairs.at(codes) - own.pairs.at(codes)
        first = self._all.first.at(before) - own.first.at(before)
        # T(a) without this document: pairs that occur in it alone are no kinds any more.
        kinds = self._kinds.at(before) - gone.at(before)
        bigram = np.where(kinds > 0, (pairs + kinds * unigram) / np.maximum(first + kinds, 1), unigram)
        return {**uniform, "unigram": -float(np.log(unigram).mean()), "bigram": -float(np.log(bigram).mean())}

    def _own_grams(self, document: int) -> tuple[_Grams, _Counts]:
        """Counts that a document adds: all of its own, and of the pairs that no other document has, by first token."""
        own = _Grams([self._documents[document].ids] if document < self._counted else [])
        # As often in this document as in all: in no other.
        alone = self._all.pairs.at(own.pairs.numbers) == own.pairs.counts
        return own, _Counts(own.pairs.numbers[alone] >> BITS_PER_TOKEN)


class WittenBell:
    """N-gram models of a training's own text, up to the trigram: what a model of that text must beat.

        trigram   p(c | a b) = (c(a b c) + T(a b) p(c | b)) / (c(a b) + T(a b)), as the bigram is made of the unigram

    Args:
        texts: [tokens] each, as the model was trained on them; no n-gram crosses their borders.
        vocabulary: number of token ids, at most 2^21.
    """

    def __init__(self, texts: Sequence[Tokens], vocabulary: int) -> None:
        self._vocabulary, self._total = vocabulary, sum(map(len, texts))
        grams = [_concatenate([_grams(np.asarray(ids, np.int64), n) for ids in texts]) for n in (1, 2, 3)]
        self._counts = [_Counts(each) for each in grams]
        # Of each context of n tokens: how often a token follows it, and how many different ones.
        self._followed = [_Counts(each >> BITS_PER_TOKEN) for each in grams[1:]]
        self._kinds = [_Counts(each.numbers >> BITS_PER_TOKEN) for each in self._counts[1:]]

    def nll(self, rows: Tokens, targets: int) -> dict[str, Tokens]:
        """[R, targets] nats of the last tokens of [R, T] rows, by name: uniform, unigram, bigram, trigram.

        A context shorter than an n-gram's leaves the shorter n-gram.
        """
        rows = np.asarray(rows, np.int64)
        wanted = slice(rows.shape[1] - targets, None)
        p = (self._counts[0].at(rows[:, wanted]) + 1) / (self._total + self._vocabulary)
        found = {"uniform": np.full(p.shape, math.log(self._vocabulary)), "unigram": -np.log(p)}
        for n, name in ((2, "bigram"), (3, "trigram")):
            # The first n - 1 tokens of a row have no n-gram: -1 is the number of none, and its kinds are 0.
            codes = np.pad(_grams(rows, n), ((0, 0), (n - 1, 0)), constant_values=-1)[:, wanted]
            pairs, followed = self._counts[n - 1].at(codes), self._followed[n - 2].at(codes >> BITS_PER_TOKEN)
            kinds = self._kinds[n - 2].at(codes >> BITS_PER_TOKEN)
            p = np.where(kinds > 0, (pairs + kinds * p) / np.maximum(followed + kinds, 1), p)
            found[name] = -np.log(p)
        return found


def _grams(ids: Tokens, n: int) -> Tokens:
    """[..., T - n + 1] n-grams along the last axis as numbers, the last token lowest."""
    stop = ids.shape[-1] - n + 1
    parts = [ids[..., place : max(place, stop + place)] << BITS_PER_TOKEN * (n - 1 - place) for place in range(n)]
    numbers: Tokens = np.bitwise_or.reduce(parts)
    return numbers
