"""Associative recall: keys with values, and each key is asked for later."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lexbench import Answer, AnyQuestion, ClassifyTokens, ConfigError, Outline, Refused, Sample, Task, Tokenizer
from lexbench.taskkit.blind import striking_out_accuracy
from lexbench.taskkit.prompt import check_length, context_beginning
from lexbench.taskkit.sampling import single_tokens
from lexbench.taskkit.scoring import score_marks

KEY_SYMBOLS = "abcdefghijklmnopqrstuvwxyz"
VALUE_SYMBOLS = "0123456789"
NOISE_SYMBOLS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
MAX_KEY_SYMBOLS = 13
"""Symbols of a key: 26^13 keys still fit in 63 bits."""
N_SIMULATED_TEXTS, N_SIMULATED_PLACES = 1000, 2048
"""Texts of which guesses by the order of the list are simulated, and places in each; in more places they score less."""
MAX_POWER = 16
"""Power: j^15 fits in a 64-bit float at every length."""


@dataclass(frozen=True)
class Recall(Task):
    """Recall the values of several keys: multi-query associative recall, MQAR (Arora et al., arXiv 2312.04927).

        c 7 x 0 h 2 Q T x 0 A M M B c 7 W P D h 2 F      no blanks: every symbol is one token
                          ^           ^         ^        marked: which of the values is it?

    The text starts with the pairs: distinct keys of lower-case letters, each with a digit. Then every key is queried
    once, in random order, at places among random capital letters. With power=1 the places are uniform; below 1 they
    crowd near the pairs: place j of the rest of the text has weight j^(power - 1). (The paper uses power 0.01, noise
    from the whole vocabulary, and does not show the value behind a query.)

    Constant over lengths by default: the number of pairs, queries and symbols. The distance from a query to its pair
    grows; its mean is half of the length, and a mark's `place` equals it up to the few tokens of the pairs. With
    pairs=null the number of pairs grows instead (a quarter of the text), and with it the load on memory.

    Chance: that of the best guess that reads no key. Values occur equally often (each of `pairs` digits once, or all
    ten digits for more pairs), and the options are the values in the text. Every key is queried once, so always naming
    one value, or naming values at random, scores exactly 1 / options. Crossing out the values seen so far scores more:
    (1 + 1/2 + ... + 1/pairs) / pairs for up to ten pairs, e.g. 0.34 for 8 pairs. With power below 1 the first pairs of
    the list tend to be queried first, and above 1 last: naming the first or the last pair that is left has 0.37 of 8
    pairs with power=0.01 in short texts. Chance is the best of these.

    Scores: `accuracy`, the share of queries where the right value is the likeliest, given the right tokens before it;
    `exact`, 1 if every query is right.

    Args:
        pairs: up to 10, or a multiple of 10; None: as many tens as fit in a quarter of the text.
        key: symbols per key, which gives 26^key keys; at most 13.
        power: of the place weights, above 0 and at most 16.
    """

    pairs: int | None = 8
    key: int = 1
    power: float = 1.0

    def __post_init__(self) -> None:
        if self.pairs is not None and (
            self.pairs < 2 or (self.pairs > len(VALUE_SYMBOLS) and self.pairs % len(VALUE_SYMBOLS))
        ):
            raise ConfigError(f"recall's pairs must be 2 to 10 or a multiple of 10, got {self.pairs}: or null to grow")
        if not 1 <= self.key <= MAX_KEY_SYMBOLS:
            raise ConfigError(f"recall's key must be from 1 to {MAX_KEY_SYMBOLS}, got {self.key}: symbols of a key")
        if (self.pairs or 0) > len(KEY_SYMBOLS) ** self.key:
            raise ConfigError(f"recall has {len(KEY_SYMBOLS) ** self.key} keys, got pairs={self.pairs}: raise key")
        if not 0 < self.power <= MAX_POWER:
            raise ConfigError(f"recall's power must be above 0 and at most {MAX_POWER}, got {self.power}: 1 is uniform")

    def protocol(self, tokenizer: Tokenizer) -> str:
        """Protocol in words: number of pairs, places of the queries, scoring of the answer."""
        pairs = "a quarter of the text in pairs" if self.pairs is None else f"{self.pairs} pairs"
        places = "uniform places" if self.power == 1 else f"places of weight j^{self.power - 1:g}"
        return (
            f"recall of {pairs}, keys of {self.key}, each asked once at {places}, "
            f"the likeliest of the values that occur, {context_beginning(tokenizer)}"
        )

    def outline(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Outline:
        """Sizes of n texts that fill the length."""
        single_tokens(tokenizer, KEY_SYMBOLS + VALUE_SYMBOLS + NOISE_SYMBOLS, "recall")
        self._pairs(length - len(tokenizer.prefix), len(tokenizer.prefix))
        return Outline(n, length)

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        """One text per sample."""
        symbols = single_tokens(tokenizer, KEY_SYMBOLS + VALUE_SYMBOLS + NOISE_SYMBOLS, "recall")
        return [self._question(tokenizer, symbols, length, seed, index) for index in range(n)]

    def score(self, question: AnyQuestion, answer: Answer) -> Sample:
        """Accuracy over the queries."""
        return score_marks(question, answer)

    def _question(
        self, tokenizer: Tokenizer, symbols: NDArray[np.int64], length: int, seed: int, index: int
    ) -> ClassifyTokens:
        keys, values, noise = np.split(symbols, [len(KEY_SYMBOLS), len(KEY_SYMBOLS) + len(VALUE_SYMBOLS)])
        prefix, wide = np.asarray(tokenizer.prefix, np.int64), self.key + 1
        pairs = self._pairs(length - len(prefix), len(prefix))
        rng = self.rng(length, seed, index)
        options = values[np.sort(rng.permutation(len(values))[:pairs])]
        # Keys as numbers to the base 26: distinct ones without trying.
        drawn = rng.choice(len(keys) ** self.key, pairs, replace=False)
        spelled = np.stack(np.unravel_index(drawn, (len(keys),) * self.key), axis=1)
        known = np.column_stack([keys[spelled], rng.permutation(np.resize(options, pairs))])
        rest = noise[rng.integers(len(noise), size=length - len(prefix) - known.size)]
        slots = len(rest) // wide
        weights = np.arange(1, slots + 1) ** (self.power - 1.0)
        queries = rng.choice(slots, pairs, replace=False, p=weights / weights.sum())
        # A view: what is written here stands in `rest`.
        rest[: slots * wide].reshape(slots, wide)[queries] = known
        guess = max(
            striking_out_accuracy(np.unique(known[:, -1], return_counts=True)[1].tolist()),
            *_in_order(pairs, min(slots, N_SIMULATED_PLACES), self.power),
        )
        # Query and pair have the same size, so from the value to its place it is as far as from key to key.
        needed = np.sort(known.size + wide * (queries - np.arange(pairs)) + self.key)
        read = [
            (tokens, share + (1 - share) * guess)
            for tokens, share in zip(needed.tolist(), (np.arange(pairs) + 1) / pairs, strict=True)
        ]
        return ClassifyTokens(
            index=index,
            cluster=str(index),
            tokens=np.concatenate([prefix, known.reshape(-1), rest]),
            places=len(prefix) + known.size + wide * np.sort(queries) + self.key,
            options=options,
            guess=guess,
            facts={"pairs": pairs},
            shortcut=((0, guess), *read),
        )

    def _pairs(self, space: int, before: int) -> int:
        """Number of pairs in `space` tokens; Refused if they do not fit or there are too few keys."""
        wide = self.key + 1
        pairs = space // (4 * wide) // len(VALUE_SYMBOLS) * len(VALUE_SYMBOLS) if self.pairs is None else self.pairs
        least = before + (4 * wide * len(VALUE_SYMBOLS) if self.pairs is None else 2 * wide * self.pairs)
        check_length("recall", least, before + space)
        if pairs > len(KEY_SYMBOLS) ** self.key:
            raise Refused(
                f"recall has {len(KEY_SYMBOLS) ** self.key} keys, {before + space} tokens need {pairs}: raise key"
            )
        return pairs


@functools.lru_cache(maxsize=1 << 10)
def _in_order(pairs: int, slots: int, power: float) -> tuple[float, float]:
    """Accuracy of naming the first pair of the list that is left, and the last one, simulated with a fixed seed.

    0 where the order of the list says nothing (uniform places), or values stand in several pairs.
    """
    if power == 1 or pairs > len(VALUE_SYMBOLS):
        return 0.0, 0.0
    rng, weights = np.random.default_rng(0), np.arange(1, slots + 1) ** (power - 1.0)
    share = weights / weights.sum()
    drawn = np.stack([rng.choice(slots, pairs, replace=False, p=share) for _ in range(N_SIMULATED_TEXTS)])
    later = np.argsort(drawn, axis=1)[:, ::-1]  # the pairs by the places of their queries, from the end
    first, last = np.minimum.accumulate(later, axis=1), np.maximum.accumulate(later, axis=1)
    return float((later == first).mean()), float((later == last).mean())
