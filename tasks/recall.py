"""Associative recall: many keys with a value each, asked for later on."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lexbench import Answer, AnyQuestion, Mark, Marked, Refused, Sample, Task, Tokenizer
from lexbench.taskkit.sampling import single_tokens
from lexbench.taskkit.scoring import score_marks

KEYS = "abcdefghijklmnopqrstuvwxyz"
VALUES = "0123456789"
NOISE = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
LONGEST = 13
"""Symbols of a key: 26^13 keys are the most that 63 bits can number."""
STEEPEST = 16
"""Power: weights to the 15th, which 64-bit floats hold at every length."""


@dataclass(frozen=True)
class Recall(Task):
    """Recall the values of several keys: multi-query associative recall, MQAR (Arora et al., arXiv 2312.04927).

        c 7 x 0 h 2 Q T x 0 A M M B c 7 W P D h 2 F      no blanks: every symbol is one token
                          ^           ^         ^        marked: which of the values is it?

    The pairs stand first: keys of small letters, all different, each with a digit. Behind them every key is asked
    once, in random order, at places among random capitals. With `power` 1 places are uniform; below it they crowd to
    the pairs, place j of the text behind them having weight j^(power - 1) (0.01 in the paper, where noise is of the
    whole vocabulary and the value of an asked key is not shown).

    Held constant over lengths by default: the number of pairs, of queries and of symbols; the distance from a query to
    its pair grows, on average by half of the length; it is a mark's `place` but for the few tokens of the pairs. With
    pairs=null their number grows instead, a quarter of the text being pairs, and with it what must be kept in mind.

    Chance: values occur equally often, each of `pairs` digits once, or all ten digits if there are more pairs, and the
    options are the values of the text. Every key is asked once, so that naming one and the same value always gets
    exactly 1 / options, and so does naming any at random. Only one who keeps account of which values have been asked
    and strikes them out gets more without any key: (1 + 1/2 + ... + 1/pairs) / pairs of up to ten, 0.34 of 8 pairs.

    Scores: `accuracy`, the share of queries where the right value is the likeliest, given all right tokens before it;
    `exact`, 1 where every one is right.

    Args:
        pairs: up to 10, or a multiple of 10; None: as many tens as take a quarter of the text.
        key: symbols of a key, so that there are 26^key keys; at most 13.
        power: of the weight of a place, above 0 and at most 16.
    """

    pairs: int | None = 8
    key: int = 1
    power: float = 1.0

    def __post_init__(self) -> None:
        if self.pairs is not None and (self.pairs < 2 or (self.pairs > len(VALUES) and self.pairs % len(VALUES))):
            raise ValueError(f"recall's pairs must be 2 to 10 or a multiple of 10, got {self.pairs}: or null to grow")
        if not 1 <= self.key <= LONGEST:
            raise ValueError(f"recall's key must be from 1 to {LONGEST}, got {self.key}: symbols of a key")
        if (self.pairs or 0) > len(KEYS) ** self.key:
            raise ValueError(f"recall has {len(KEYS) ** self.key} keys, got pairs={self.pairs}: raise key")
        if not 0 < self.power <= STEEPEST:
            raise ValueError(f"recall's power must be above 0 and at most {STEEPEST}, got {self.power}: 1 is uniform")

    def protocol(self, tokenizer: Tokenizer) -> str:
        """One line: how many pairs, where they are asked for, and how."""
        pairs = "a quarter of the text in pairs" if self.pairs is None else f"{self.pairs} pairs"
        places = "uniform places" if self.power == 1 else f"places of weight j^{self.power - 1:g}"
        start = "BOS" if tokenizer.prefix else "no BOS"
        return (
            f"recall of {pairs}, keys of {self.key}, each asked once at {places}, "
            f"the likeliest of the values that occur, {start}"
        )

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        """One text a sample."""
        symbols = single_tokens(tokenizer, KEYS + VALUES + NOISE, "recall")
        return [self._question(tokenizer, symbols, length, seed, index) for index in range(n)]

    def score(self, question: AnyQuestion, answer: Answer) -> Sample:
        """Accuracy over the queries."""
        assert isinstance(question, Mark) and isinstance(answer, Marked)
        return score_marks(question, answer)

    def _question(self, tokenizer: Tokenizer, symbols: NDArray[np.int64], length: int, seed: int, index: int) -> Mark:
        keys, values, noise = np.split(symbols, [len(KEYS), len(KEYS) + len(VALUES)])
        prefix, wide = np.asarray(tokenizer.prefix, np.int64), self.key + 1
        pairs = self._pairs(length - len(prefix), len(prefix))
        rng = self.rng(length, seed, index)
        options = values[np.sort(rng.permutation(len(values))[:pairs])]
        drawn = rng.choice(len(keys) ** self.key, pairs, replace=False)
        spelled = np.stack(np.unravel_index(drawn, (len(keys),) * self.key), axis=1)
        known = np.column_stack([keys[spelled], rng.permutation(np.resize(options, pairs))])
        rest = noise[rng.integers(len(noise), size=length - len(prefix) - known.size)]
        slots = len(rest) // wide
        weights = np.arange(1, slots + 1) ** (self.power - 1.0)
        asked = rng.choice(slots, pairs, replace=False, p=weights / weights.sum())
        rest[: slots * wide].reshape(slots, wide)[asked] = known
        return Mark(
            index=index,
            cluster=str(index),
            tokens=np.concatenate([prefix, known.reshape(-1), rest]),
            places=len(prefix) + known.size + wide * np.sort(asked) + self.key,
            options=options,
            facts={"pairs": pairs},
        )

    def _pairs(self, space: int, before: int) -> int:
        """Pairs in a text of so many tokens; Refused where there is no room for them, or there are too few keys."""
        wide = self.key + 1
        pairs = space // (4 * wide) // len(VALUES) * len(VALUES) if self.pairs is None else self.pairs
        least = before + (4 * wide * len(VALUES) if self.pairs is None else 2 * wide * self.pairs)
        if before + space < least:
            raise Refused(f"recall needs at least {least} tokens, asked for {before + space}: raise length")
        if pairs > len(KEYS) ** self.key:
            raise Refused(
                f"recall has {len(KEYS) ** self.key} keys, {before + space} tokens ask for {pairs}: raise key"
            )
        return pairs
