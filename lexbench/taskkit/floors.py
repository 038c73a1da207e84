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


class TokenCounts:
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
        self.tokens = TokenCounts(concatenate_tokens(texts))
        self.pairs = TokenCounts(concatenate_tokens([ngram_numbers(ids, 2) for ids in texts]))
        self.first = TokenCounts(concatenate_tokens([ids[:-1] for ids in texts]))


def concatenate_tokens(arrays: Sequence[Tokens]) -> Tokens:
    """All arrays, one behind another; empty without any."""
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
        self._kinds = TokenCounts(self._all.pairs.numbers >> BITS_PER_TOKEN)
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

    def _own_grams(self, document: int) -> tuple[_Grams, TokenCounts]:
        """Counts that a document adds: all of its own, and of the pairs that no other document has, by first token."""
        own = _Grams([self._documents[document].ids] if document < self._counted else [])
        # As often in this document as in all: in no other.
        alone = self._all.pairs.at(own.pairs.numbers) == own.pairs.counts
        return own, TokenCounts(own.pairs.numbers[alone] >> BITS_PER_TOKEN)


def ngram_numbers(ids: Tokens, n: int) -> Tokens:
    """[..., T - n + 1] n-grams along the last axis as numbers, the last token lowest."""
    stop = ids.shape[-1] - n + 1
    parts = [ids[..., place : max(place, stop + place)] << BITS_PER_TOKEN * (n - 1 - place) for place in range(n)]
    numbers: Tokens = np.bitwise_or.reduce(parts)
    return numbers
