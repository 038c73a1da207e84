"""Parity: is the number of ones even or odd?"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lexbench import Answer, AnyQuestion, Choose, Chosen, Mark, Marked, Refused, Sample, Task, Tokenizer
from lexbench.taskkit.sampling import single_tokens
from lexbench.taskkit.scoring import score_choice, score_marks


@dataclass(frozen=True)
class Parity(Task):
    """Tell whether a string of bits has an odd number of ones: 1, or an even one: 0 (Hahn, 1906.06755; 2207.04901).

        1 0 1 1 0 1 =              none shown: which of 0 and 1 follows? Every token is as written here, without blanks
        1 = 1 0 = 1 1 = 0 1 = 1    shown: the parity so far behind every bit, marked at each of them

    The bits fill the text: their number grows with the length, and nothing else. Bits are independent and uniform, and
    so is the parity at every depth: changing any one bit changes it, and all bits but any one tell nothing of it, so
    that no prefix, suffix or sample of the text gives more than chance, which is 1/2 exactly. None shown, all bits must
    be counted, the hardest way of asking arithmetic on a circle (arithmetic's numbers=2); shown, the last parity and
    the bit are all it takes, at whatever distance from the start. Blank lines in front make the length exact.

    Scores: `accuracy`, the right one is the likelier; where shown, its mean over places, and `exact`, 1 where all are.

    Args:
        shown: the parity so far behind every bit, asked at each; else only the last one.
    """

    shown: bool = False

    def protocol(self, tokenizer: Tokenizer) -> str:
        """One line: what is counted, and what is asked."""
        asked = "shown and asked behind every bit" if self.shown else "asked behind the last bit"
        return (
            f"parity of a string of bits, {asked}, the likelier of 0 and 1, {'BOS' if tokenizer.prefix else 'no BOS'}"
        )

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        """One string a sample."""
        symbols = single_tokens(tokenizer, "01=", "parity")
        return [self._question(tokenizer, symbols, length, seed, index) for index in range(n)]

    def score(self, question: AnyQuestion, answer: Answer) -> Sample:
        """Accuracy of the choice, or over the places."""
        if isinstance(question, Choose) and isinstance(answer, Chosen):
            return score_choice(question, answer)
        assert isinstance(question, Mark) and isinstance(answer, Marked)
        return score_marks(question, answer)

    def _question(
        self, tokenizer: Tokenizer, symbols: NDArray[np.int64], length: int, seed: int, index: int
    ) -> Choose | Mark:
        prefix = np.asarray(tokenizer.prefix, np.int64)
        space = length - len(prefix)
        each, fixed = (3, 0) if self.shown else (1, 2)
        if space < each + fixed:
            raise Refused(
                f"parity needs at least {len(prefix) + each + fixed} tokens, asked for {length}: raise length"
            )
        bits = self.rng(length, seed, index).integers(2, size=(space - fixed) // each)
        parities, cluster = bits.cumsum() % 2, str(index)
        facts = {"expected": int(parities[-1]), "bits": len(bits)}
        options, equals = symbols[:2], symbols[2:]
        if not self.shown:
            prompt = np.concatenate([prefix, symbols[bits], equals])
            choices = (options[:1], options[1:])
            return Choose(
                index=index, cluster=cluster, facts=facts, prompt=prompt, options=choices, expected=int(parities[-1])
            )
        blank = np.repeat(tokenizer.encode("\n").ids[-1:], space % each)
        lines = np.stack([symbols[bits], np.repeat(equals, len(bits)), symbols[parities]], axis=1)
        tokens = np.concatenate([prefix, blank, lines.reshape(-1)])
        places = np.arange(length - each * len(bits) + 2, length, each)
        return Mark(index=index, cluster=cluster, facts=facts, tokens=tokens, places=places, options=options)
