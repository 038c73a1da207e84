"""Parity: is the number of ones even or odd?"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lexbench import Answer, AnyQuestion, Choose, ClassifyTokens, Outline, Sample, Task, Tokenizer
from lexbench.taskkit.prompt import check_length, context_beginning
from lexbench.taskkit.sampling import single_tokens
from lexbench.taskkit.scoring import score_choice, score_marks


@dataclass(frozen=True)
class Parity(Task):
    """Say whether a bit string has an odd number of ones (1) or an even one (0) (Hahn, 1906.06755; 2207.04901).

        1 0 1 1 0 1 =              not shown: does 0 or 1 follow? Every character is one token; there are no blanks
        1 = 1 0 = 1 1 = 0 1 = 1    shown: the parity so far follows every bit and is marked there

    Constant over lengths: everything but the number of bits. Bits are independent and uniform, and so is the parity at
    every depth: flipping any one bit flips it, and all bits but one say nothing about it. So no part of the input
    reveals the answer, and chance is exactly 1/2. Not shown, all bits must be counted: the hardest setting of modular
    arithmetic (`arithmetic` with numbers=2). Shown, the last parity and the bit suffice, at any distance from the
    start. Blank lines at the start make the length exact.

    Scores: `accuracy`, 1 if the right one of 0 and 1 is likelier; shown, the mean over the places, and `exact`, 1 if
    every place is right.

    Args:
        shown: show the parity after every bit and mark each; otherwise ask for the last one only.
    """

    shown: bool = False

    def protocol(self, tokenizer: Tokenizer) -> str:
        """Protocol in words: the counted bits, and the places at which the parity is scored."""
        where = "shown and asked behind every bit" if self.shown else "asked behind the last bit"
        return f"parity of a string of bits, {where}, the likelier of 0 and 1, {context_beginning(tokenizer)}"

    def outline(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Outline:
        """Sizes of n texts that fill the length."""
        single_tokens(tokenizer, "01=", "parity")
        self._sizes(tokenizer, length)
        return Outline(n, length)

    def _sizes(self, tokenizer: Tokenizer, length: int) -> tuple[int, int]:
        """Tokens of each bit, and of the answer; Refused where not one bit fits."""
        # Shown: bit, equals, parity. Not shown: a bit each, then equals and the answer.
        each, fixed = (3, 0) if self.shown else (1, 2)
        check_length("parity", len(tokenizer.prefix) + each + fixed, length)
        return each, fixed

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        """One string per sample."""
        symbols = single_tokens(tokenizer, "01=", "parity")
        return [self._question(tokenizer, symbols, length, seed, index) for index in range(n)]

    def score(self, question: AnyQuestion, answer: Answer) -> Sample:
        """Accuracy of the choice, or over the places."""
        if isinstance(question, Choose):
            return score_choice(question, answer)
        return score_marks(question, answer)

    def _question(
        self, tokenizer: Tokenizer, symbols: NDArray[np.int64], length: int, seed: int, index: int
    ) -> Choose | ClassifyTokens:
        prefix = np.asarray(tokenizer.prefix, np.int64)
        space, (each, fixed) = length - len(prefix), self._sizes(tokenizer, length)
        bits = self.rng(length, seed, index).integers(2, size=(space - fixed) // each)
        parities, cluster = bits.cumsum() % 2, str(index)
        facts = {"expected": int(parities[-1]), "bits": len(bits)}
        options, equals = symbols[:2], symbols[2:]
        if not self.shown:
            prompt = np.concatenate([prefix, symbols[bits], equals])
            choices = (options[:1], options[1:])
            return Choose(
                index=index,
                cluster=cluster,
                facts=facts,
                prompt=prompt,
                options=choices,
                expected=int(parities[-1]),
                shortcut=((0, 1 / 2), (space - 1, 1.0)),  # without one bit either parity is as likely
            )
        blank = np.repeat(tokenizer.encode("\n").ids[-1:], space % each)
        lines = np.stack([symbols[bits], np.repeat(equals, len(bits)), symbols[parities]], axis=1)
        tokens = np.concatenate([prefix, blank, lines.reshape(-1)])
        places = np.arange(length - each * len(bits) + 2, length, each)
        return ClassifyTokens(
            index=index,
            cluster=cluster,
            facts=facts,
            tokens=tokens,
            places=places,
            options=options,
            shortcut=((0, 1 / 2), (each, 1.0)),  # the parity before, the bit and the sign
        )
