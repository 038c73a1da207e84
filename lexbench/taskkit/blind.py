"""Accuracy of guesses that read everything but what decides the answer: floors of scores."""

import functools
import math
from collections.abc import Iterable

import numpy as np

SIMULATED_SYMBOLS = 1 << 14
"""Symbols of all shuffles together."""


def striking_out_accuracy(counts: Iterable[int]) -> float:
    """Expected accuracy of naming the commonest symbol that is left, where all are asked for once in random order.

    Each symbol is struck out as it is shown, so the guess needs to know which symbols there are, and not their order.
    Of n different ones it is (1 + 1/2 + ... + 1/n) / n. With symbols that occur several times it is the mean of

        1/n sum_j max(left of each symbol, of j in all) / j

    over shuffles with a fixed seed.

    Args:
        counts: how often each symbol occurs.
    """
    return _striking_out_accuracy(tuple(sorted(count for count in counts if count)))


@functools.lru_cache(maxsize=1 << 10)
def _striking_out_accuracy(counts: tuple[int, ...]) -> float:
    size = sum(counts)
    if counts[-1] == 1:
        return math.fsum(1 / left for left in range(1, size + 1)) / size
    symbols = np.tile(np.repeat(np.arange(len(counts)), counts), (max(1, SIMULATED_SYMBOLS // size), 1))
    # Read from its end a shuffle is what is left: one symbol, then two, ...
    shuffled = np.random.default_rng(0).permuted(symbols, axis=1)
    left = np.stack([np.cumsum(shuffled == each, axis=1) for each in range(len(counts))]).max(axis=0)
    return float((left / np.arange(1, size + 1)).mean())
