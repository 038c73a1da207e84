"""Copying: a random string, and the same string again."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lexbench import Answer, AnyQuestion, Mark, Marked, Refused, Sample, Task, Tokenizer
from lexbench.taskkit.sampling import single_tokens
from lexbench.taskkit.scoring import score_marks

SYMBOLS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Copy(Task):
    """Repeat a random string of symbols after a separator: induction in its purest form (Olsson et al., 2209.11895).

        7 q 0 a a 3 | 7 q 0 a a 3        | is a new line; every symbol is one token, there are no blanks between them
                      ^ ^ ^ ^ ^ ^        marked: which of the symbols is it?

    By default the string is half of the text: string and distance, always size + 1 tokens back, grow with the length,
    and with them the number of symbols that one has to look at to know one's place in the string, about log(size) /
    log(symbols). With `size` given, the same string comes again and again until the text is full: string and distance
    stay the same and only the positions grow (and the number of copies that one may look back at), so that it is the
    control of what the other does. A blank line in front makes the length exact.

    Symbols are independent and uniform: a guess gets 1 / symbols, whatever it knows but the string. One that knows the
    string's symbols, not their order, names the commonest and gets its share, `commonest` in a sample's facts, which
    nears 1 / symbols as the string grows.

    Scores: `accuracy`, the share of places where the right symbol is the likeliest one, given all right tokens before
    it; `exact`, 1 where every place is right.

    Args:
        symbols: so many of the digits and small letters, 2 to 36.
        size: symbols of the string; None: half of the text.
    """

    symbols: int = len(SYMBOLS)
    size: int | None = None

    def __post_init__(self) -> None:
        if not 2 <= self.symbols <= len(SYMBOLS):
            raise ValueError(f"copy's symbols must be 2 to {len(SYMBOLS)}, got {self.symbols}: digits and letters")
        if self.size is not None and self.size < 1:
            raise ValueError(f"copy's size must be at least 1, got {self.size}: symbols of the string")

    def protocol(self, tokenizer: Tokenizer) -> str:
        """One line: what is repeated, how often, and what is asked."""
        what = "once, half of the text" if self.size is None else f"of {self.size}, again and again"
        start = "BOS" if tokenizer.prefix else "no BOS"
        return (
            f"copy of a random string {what}, the likeliest of {self.symbols} symbols at every repeated place, {start}"
        )

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        """One string a sample."""
        symbols = single_tokens(tokenizer, SYMBOLS[: self.symbols], "copy")
        return [self._question(tokenizer, symbols, length, seed, index) for index in range(n)]

    def score(self, question: AnyQuestion, answer: Answer) -> Sample:
        """Accuracy over the repeated places."""
        assert isinstance(question, Mark) and isinstance(answer, Marked)
        return score_marks(question, answer)

    def _question(self, tokenizer: Tokenizer, symbols: NDArray[np.int64], length: int, seed: int, index: int) -> Mark:
        prefix = np.asarray(tokenizer.prefix, np.int64)
        space = length - len(prefix)
        size = self.size or max(1, (space - 1) // 2)
        if space < 2 * size + 1:
            need = f"copy needs at least {len(prefix) + 2 * size + 1} tokens, asked for {length}"
            raise Refused(f"{need}: raise length{'' if self.size is None else ' or lower size'}")
        drawn = self.rng(length, seed, index).integers(self.symbols, size=size)
        line = tokenizer.encode("\n").ids[-1:]
        whole = 2 * size + 1 if self.size is None else space
        text = np.resize(np.concatenate([symbols[drawn], line]), whole)
        begin = np.concatenate([prefix, np.repeat(line, space - whole)])
        repeated = np.arange(size + 1, whole)
        return Mark(
            index=index,
            cluster=str(index),
            tokens=np.concatenate([begin, text]),
            places=len(begin) + repeated[repeated % (size + 1) != size],
            options=symbols,
            facts={"size": size, "commonest": float(np.bincount(drawn).max() / size)},
        )
