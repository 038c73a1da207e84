"""Algorithms on a string: reverse it, sort it, or add its halves."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lexbench import Answer, AnyQuestion, ClassifyTokens, ConfigError, Outline, Sample, Task, Tokenizer
from lexbench.taskkit.blind import striking_out_accuracy
from lexbench.taskkit.prompt import check_length, context_beginning
from lexbench.taskkit.sampling import single_tokens
from lexbench.taskkit.scoring import score_marks

DIGIT_SYMBOLS = "0123456789"
ALGORITHM_DESCRIPTIONS = {
    "reverse": "a random string of digits backwards",
    "sort": "its digits in order",
    "add": "a sum, units first",
}
SEPARATOR_SIGNS = {"reverse": "<", "sort": ">"}
"""The separator: it tells what is asked."""


@dataclass(frozen=True)
class Algorithm(Task):
    """Reverse, sort or add digits: what a length asks is the same procedure on more symbols.

        7 0 1 4 1 < 1 4 1 0 7            reverse (Kazemnejad et al. 2023, arXiv 2305.19466)
        7 0 1 4 1 > 0 1 1 4 7            sort    (both: Kazemnejad et al.; Ruoss et al. 2023, arXiv 2305.16843)
        7 2 1 + 5 8 1 = 2 1 3            add: units first, as in Abacus (McLeish et al. 2024, arXiv 2405.17399)

    Every symbol is one token; there are no blanks between them. All symbols behind the separator are marked: which
    digit is it? Blank lines at the start make the length exact. A sum has as many digits as its numbers: the last
    carry is dropped. Constant over lengths: everything but the number of digits. Digits are independent and uniform.

    Chance is that of the best guess without the algorithm. Of a sum 1/10. Of a reversed string that of naming the
    commonest digit that is left, which needs the digits and not their order; naming the commonest at every place has
    less (`commonest` in the sample's facts). Of a sorted string that of naming 0, and then the digit before (`again`),
    which is nearly always right: there read `exact`.

    Scores: `accuracy`, the share of places where the right digit is the likeliest, given the right tokens before it;
    `exact`, 1 if every place is right.

    Args:
        kind: reverse, sort or add.
    """

    kind: str = "reverse"

    def __post_init__(self) -> None:
        if self.kind not in ALGORITHM_DESCRIPTIONS:
            raise ConfigError(f"algorithm's kind must be reverse, sort or add, got {self.kind!r}: choose one")

    def protocol(self, tokenizer: Tokenizer) -> str:
        """Describe the question and its score."""
        return (
            f"{self.kind}: {ALGORITHM_DESCRIPTIONS[self.kind]}, the likeliest of 10 digits at every place, "
            f"{context_beginning(tokenizer)}"
        )

    def outline(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Outline:
        """Sizes of n texts that fill the length."""
        single_tokens(tokenizer, DIGIT_SYMBOLS + "+=" + SEPARATOR_SIGNS.get(self.kind, ""), "algorithm")
        self._size(tokenizer, length)
        return Outline(n, length)

    def _size(self, tokenizer: Tokenizer, length: int) -> int:
        """Digits of a string or number; Refused where none fits."""
        # A sum has two numbers and a result around two signs, the others a string and a result around one.
        parts, marks = (3, 2) if self.kind == "add" else (2, 1)
        prefix = len(tokenizer.prefix)
        check_length(self.kind, prefix + parts + marks, length)
        return (length - prefix - marks) // parts

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        """One string, or one pair of numbers, per sample."""
        symbols = single_tokens(tokenizer, DIGIT_SYMBOLS + "+=" + SEPARATOR_SIGNS.get(self.kind, ""), "algorithm")
        return [self._question(tokenizer, symbols, length, seed, index) for index in range(n)]

    def score(self, question: AnyQuestion, answer: Answer) -> Sample:
        """Accuracy over the digits of the result."""
        return score_marks(question, answer)

    def _question(
        self, tokenizer: Tokenizer, symbols: NDArray[np.int64], length: int, seed: int, index: int
    ) -> ClassifyTokens:
        prefix, line = np.asarray(tokenizer.prefix, np.int64), tokenizer.encode("\n").ids[-1:]
        size, rng = self._size(tokenizer, length), self.rng(length, seed, index)
        if self.kind == "add":
            numbers = rng.integers(10, size=(2, size))
            result = _sum(*numbers)
            plus, equals = symbols[10:11], symbols[11:12]
            asked = np.concatenate([symbols[numbers[0]], plus, symbols[numbers[1]], equals])
        else:
            string = rng.integers(10, size=size)
            result = np.sort(string) if self.kind == "sort" else string[::-1]
            # Behind the digits, + and = comes the sign of reverse or sort.
            asked = np.concatenate([symbols[string], symbols[12:]])
        again = float((result[1:] == result[:-1]).sum() / size)
        guess = striking_out_accuracy(np.bincount(result).tolist()) if self.kind == "reverse" else 1 / 10
        if self.kind == "sort":
            guess = max(guess, again + float(result[0] == 0) / size)
        blank = np.repeat(line, length - len(prefix) - len(asked) - size)
        return ClassifyTokens(
            index=index,
            cluster=str(index),
            tokens=np.concatenate([prefix, blank, asked, symbols[result]]),
            places=np.arange(length - size, length),
            options=symbols[:10],
            guess=guess,
            facts={"size": size, "commonest": float(np.bincount(result).max() / size), "again": again},
        )


def _sum(first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.int64]:
    """[n] digits of the sum of two numbers of [n] digits, units first; the last carry is dropped."""
    found, carry = np.empty_like(first), 0
    # Units first: the carry goes to the next place.
    for place, digits in enumerate(first + second):
        carry, found[place] = divmod(int(digits) + carry, 10)
    return found
