"""N-gram models of the text that a model was trained on."""

import math
from collections.abc import Sequence

import numpy as np

from lexbench.core.task import Tokens
from lexbench.taskkit.floors import BITS_PER_TOKEN, TokenCounts, concatenate_tokens, ngram_numbers


class WittenBell:
    """N-gram models of a training's own text, up to the trigram: what a model of that text must beat.

        trigram   p(c | a b) = (c(a b c) + T(a b) p(c | b)) / (c(a b) + T(a b)), as the bigram is made of the unigram

    Args:
        texts: [tokens] each, as the model was trained on them; no n-gram crosses their borders.
        vocabulary: number of token ids, at most 2^21.
    """

    def __init__(self, texts: Sequence[Tokens], vocabulary: int) -> None:
        self._vocabulary, self._total = vocabulary, sum(map(len, texts))
        grams = [concatenate_tokens([ngram_numbers(np.asarray(ids, np.int64), n) for ids in texts]) for n in (1, 2, 3)]
        self._counts = [TokenCounts(each) for each in grams]
        # Of each context of n tokens: how often a token follows it, and how many different ones.
        self._followed = [TokenCounts(each >> BITS_PER_TOKEN) for each in grams[1:]]
        self._kinds = [TokenCounts(each.numbers >> BITS_PER_TOKEN) for each in self._counts[1:]]

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
            codes = np.pad(ngram_numbers(rows, n), ((0, 0), (n - 1, 0)), constant_values=-1)[:, wanted]
            pairs, followed = self._counts[n - 1].at(codes), self._followed[n - 2].at(codes >> BITS_PER_TOKEN)
            kinds = self._kinds[n - 2].at(codes >> BITS_PER_TOKEN)
            p = np.where(kinds > 0, (pairs + kinds * p) / np.maximum(followed + kinds, 1), p)
            found[name] = -np.log(p)
        return found
