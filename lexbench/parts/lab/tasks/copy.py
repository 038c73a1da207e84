"""Copy: repeat a random string."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lexbench import Answer, AnyQuestion, ClassifyTokens, ConfigError, Outline, Sample, Task, Tokenizer
from lexbench.taskkit.blind import striking_out_accuracy
from lexbench.taskkit.prompt import check_at_least, check_length, context_beginning
from lexbench.taskkit.sampling import single_tokens
from lexbench.taskkit.scoring import score_marks

COPIED_SYMBOLS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Copy(Task):
    """Repeat a random string of symbols after a separator: pure induction (Olsson et al., arXiv 2209.11895).

        7 q 0 a a 3 | 7 q 0 a a 3        | is a new line; every symbol is one token; there are no blanks
                      ^ ^ ^ ^ ^ ^        marked: which symbol is it?

    By default the string is half of the text, so its size and the copying distance (always size + 1 tokens) grow with
    the length. So does the number of preceding symbols that identify a place in the string: about log(size) /
    log(symbols). With `size` set, the same string is repeated until the text is full: string and distance stay the
    same, and only the positions (and the number of earlier copies) grow. That is the control for the default. Blank
    lines at the start make the length exact.

    Symbols are independent and uniform, so a guess without the string scores 1 / symbols. Naming the string's
    commonest symbol at every place scores that symbol's share (`commonest` in the sample's facts). Chance is that of a
    guess that knows the string's symbols and not their order: it strikes out what has come, and names the commonest of
    what is left. All approach 1 / symbols for long strings.

    Scores: `accuracy`, the share of places where the right symbol is the likeliest, given the right tokens before it;
    `exact`, 1 if every place is right.

    Args:
        symbols: how many of the digits and lower-case letters to use, 2 to 36.
        size: symbols of the string; None: half of the text.
    """

    symbols: int = len(COPIED_SYMBOLS)
    size: int | None = None

    def __post_init__(self) -> None:
        if not 2 <= self.symbols <= len(COPIED_SYMBOLS):
            raise ConfigError(
                f"copy's symbols must be 2 to {len(COPIED_SYMBOLS)}, got {self.symbols}: digits and letters"
            )
        check_at_least("copy", self, size=1)

    def protocol(self, tokenizer: Tokenizer) -> str:
        """Protocol in words: the repeated string, repetitions, scoring of the answer."""
        what = "once, half of the text" if self.size is None else f"of {self.size}, again and again"
        return (
            f"copy of a random string {what}, the likeliest of {self.symbols} symbols at every repeated place, "
            f"{context_beginning(tokenizer)}"
        )

    def outline(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Outline:
        """Sizes of n texts that fill the length."""
        single_tokens(tokenizer, COPIED_SYMBOLS[: self.symbols], "copy")
        self._size(tokenizer, length)
        return Outline(n, length)

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        """One string per sample."""
        symbols = single_tokens(tokenizer, COPIED_SYMBOLS[: self.symbols], "copy")
        return [self._question(tokenizer, symbols, length, seed, index) for index in range(n)]

    def score(self, question: AnyQuestion, answer: Answer) -> Sample:
        """Accuracy over the repeated places."""
        return score_marks(question, answer)

    def _size(self, tokenizer: Tokenizer, length: int) -> int:
        """Symbols of the string; Refused where it does not fit twice."""
        prefix = len(tokenizer.prefix)
        size = self.size or max(1, (length - prefix - 1) // 2)
        remedy = "raise length" if self.size is None else "raise length or lower size"
        check_length("copy", prefix + 2 * size + 1, length, remedy)
        return size

    def _question(
        self, tokenizer: Tokenizer, symbols: NDArray[np.int64], length: int, seed: int, index: int
    ) -> ClassifyTokens:
        prefix = np.asarray(tokenizer.prefix, np.int64)
        space, size = length - len(prefix), self._size(tokenizer, length)
        drawn = self.rng(length, seed, index).integers(self.symbols, size=size)
        line = tokenizer.encode("\n").ids[-1:]
        whole = 2 * size + 1 if self.size is None else space
        # np.resize repeats string and separator until the text is full.
        text = np.resize(np.concatenate([symbols[drawn], line]), whole)
        begin = np.concatenate([prefix, np.repeat(line, space - whole)])
        # From the second copy on; separators themselves are not asked for.
        repeated = np.arange(size + 1, whole)
        guess = striking_out_accuracy(np.bincount(drawn).tolist())
        return ClassifyTokens(
            index=index,
            cluster=str(index),
            tokens=np.concatenate([begin, text]),
            places=len(begin) + repeated[repeated % (size + 1) != size],
            options=symbols,
            guess=guess,
            facts={"size": size, "commonest": float(np.bincount(drawn).max() / size)},
            shortcut=((0, guess), (size + 1, 1.0)),
        )
