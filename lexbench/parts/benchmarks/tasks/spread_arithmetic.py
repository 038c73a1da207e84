"""Spread arithmetic: a sum whose terms stand far apart, each stated by the one before."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from lexbench import ConfigError
from lexbench.parts.benchmarks.spread import PLAIN_NOUNS, Puzzle, Spread, Words
from lexbench.taskkit.prompt import check_at_least

PROMPT_HEADER = "Remember the number of each thing. All numbers are digits: after 9 comes 0 again.\n"
START_TEMPLATE = " The {name} has the number {value}."
STEP_TEMPLATE = " The {name} has the number of the {before} plus {value}."
QUESTION_TEMPLATE = "\nWhich number does the {name} have?"
ANSWER_BEGINNING = " The number of the {name} is"
DIGIT_MODULUS = 10


@dataclass(frozen=True)
class SpreadArithmetic(Spread):
    """Add digits along a chain of things whose lines are spread over filler (the idea of GSM-infinity; wording ours).

        Remember the number of each thing. All numbers are digits: after 9 comes 0 again.
        ... The ring has the number of the drum plus 7. ... The drum has the number 5. ... back again.
        Which number does the ring have? The number of the ring is                       <- " 2"

    As in GSM-infinity (Zhou et al., arXiv 2502.05252), the operations are fixed and the length is free.

    Constant over lengths: everything but the filler; also the depth, `steps` additions. Lines stand in random order,
    among `others` chains of the same size. All terms are uniform digits, so without any single line of the chain the
    answer is uniform: each of the ten digits is as likely.

    With steps=0 nothing is added, and each line states a number that no other line states: the model only has to find
    it. (Up to version 1 they could be equal.)

    Chance: 1/10; with steps=0 1 / (1 + others), for any number of the text. In the control of steps=0 a guess is among
    the digits that the text does not show.

    Args:
        steps: additions.
        others: further chains; with several questions behind a text each has a chain, and those of the others count.
    """

    item: ClassVar[str] = r"\d+"
    versions: ClassVar[tuple[int, int]] = (2, 2)  # its items have always been numbers
    several: ClassVar[bool] = True
    steps: int = 2
    others: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("spread_arithmetic", self, steps=0, others=0)
        if not self.steps and self._chains > DIGIT_MODULUS:
            raise ConfigError(
                f"spread_arithmetic has {DIGIT_MODULUS} digits, got {self._chains} chains with steps=0: lower others "
                "or "
                "questions_per_text"
            )
        if self._chains * (1 + self.steps) > len(PLAIN_NOUNS):
            raise ConfigError(
                f"spread_arithmetic has {len(PLAIN_NOUNS)} words, got steps={self.steps} and {self._chains} chains: "
                "lower "
                "steps, others or questions_per_text"
            )

    @property
    def _chains(self) -> int:
        """Chains in a text: one for each question, and `others` beside it."""
        return max(1 + self.others, self.questions_per_text)

    @property
    def what(self) -> str:
        """Words for the protocol: number of terms of a sum, and number of chains of sums."""
        return f"a sum modulo {DIGIT_MODULUS} of {self.steps + 1} spread terms, {self._chains} chains"

    def puzzle(self, rng: np.random.Generator, words: Words) -> Puzzle:
        """Chains of equal size, their lines in random order."""
        size = self.steps + 1
        names = words(PLAIN_NOUNS, self._chains * size)
        # Without additions the numbers differ, so that only one line states the answer.
        terms = (
            rng.integers(DIGIT_MODULUS, size=len(names)) if self.steps else rng.permutation(DIGIT_MODULUS)[: len(names)]
        )
        lines = [
            (STEP_TEMPLATE if place % size else START_TEMPLATE).format(
                name=name, before=names[place - 1], value=terms[place]
            )
            for place, name in enumerate(names)
        ]
        order = rng.permutation(len(lines))
        asked = [
            Puzzle(
                header=PROMPT_HEADER,
                lines=[lines[each] for each in order],
                needed=frozenset(np.flatnonzero(order // size == chain).tolist()),
                ask=QUESTION_TEMPLATE.format(name=names[(chain + 1) * size - 1]),
                begin=ANSWER_BEGINNING.format(name=names[(chain + 1) * size - 1]),
                expected=[str(terms[chain * size : (chain + 1) * size].sum() % DIGIT_MODULUS)],
                chance=1 / DIGIT_MODULUS if self.steps else 1 / len(names),
                options=[str(digit) for digit in range(DIGIT_MODULUS)],
                # The control shows digits of chains that no question asks for, which are not the answer.
                blind=1 / DIGIT_MODULUS if self.steps else 1 / (DIGIT_MODULUS - self._chains + self.questions_per_text),
            )
            for chain in range(self.questions_per_text)
        ]
        return replace(asked[0], further=asked[1:])

    def plain(self, text: str) -> str:
        """The answer as it is: its items are numbers."""
        return text
