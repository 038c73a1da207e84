"""Ordering: in which order things happened over the whole text."""

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from lexbench import ConfigError, Generate, GenerateAnswer, Sample
from lexbench.parts.benchmarks.spread import Puzzle, Spread, Words
from lexbench.taskkit import matching, shortcuts
from lexbench.taskkit.people import FIRST_NAMES
from lexbench.taskkit.prompt import check_at_least
from lexbench.taskkit.scoring import score_written

PROMPT_HEADER = "Remember the order in which people come in.\n"
LINE_TEMPLATE = " {name} comes in."
QUESTION_TEMPLATE = "\nIn which order do {names} come in?"
ANSWER_BEGINNING = " They come in in this order:"


@dataclass(frozen=True)
class Ordering(Spread):
    """Bring people into the order in which they come in.

        Remember the order in which people come in.
        ... Leo comes in. ... Clara comes in. ... Tom comes in. ... Anna comes in. ... back again.
        In which order do Anna, Clara, Leo come in? They come in in this order:        <- " Leo, Clara, Anna"

    Constant over lengths: everything but the filler. Difficulty: `asked` and `others`. The order is uniform, the
    question names the people in the order of the alphabet, so without one line a person may stand anywhere.

    Scores: `accuracy`: exactly this order. `pairs`: the share of pairs in the right order, 0 where the names are not
    exactly the asked ones. Chance: 1 / asked!; of pairs 1/2 for a random order.

    Args:
        asked: people to order.
        others: further people who come in; with several questions behind a text those of the other questions count.
    """

    item: ClassVar[str] = matching.one_of_pattern(FIRST_NAMES)
    several: ClassVar[bool] = True
    asked: int = 3
    others: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("ordering", self, asked=2, others=0)
        if self._people > len(FIRST_NAMES):
            raise ConfigError(
                f"ordering has {len(FIRST_NAMES)} names, needs {self._people}: lower others, or questions_per_text"
            )
        if self.choose:
            raise ConfigError("ordering names an order, which is no choice: set task.choose=false")

    @property
    def _people(self) -> int:
        """People in a text: each question asks for others."""
        return self.asked + max(self.others, self.asked * (self.questions_per_text - 1))

    @property
    def what(self) -> str:
        """Words for the protocol: number of people to order, and number of people in the text."""
        return f"the order of {self.asked} people among {self._people}"

    def puzzle(self, rng: np.random.Generator, words: Words) -> Puzzle:
        """People in random order, some of whom are asked for."""
        names = words(FIRST_NAMES, self._people)
        drawn = rng.permutation(len(names)).tolist()
        groups = [
            drawn[first : first + self.asked] for first in range(0, self.asked * self.questions_per_text, self.asked)
        ]
        asked = [self._of_group(names, sorted(group)) for group in groups]
        return replace(asked[0], further=asked[1:])

    def _of_group(self, names: list[str], places: list[int]) -> Puzzle:
        right = [names[place] for place in places]
        return Puzzle(
            header=PROMPT_HEADER,
            lines=[LINE_TEMPLATE.format(name=name) for name in names],
            needed=frozenset(places),
            ask=QUESTION_TEMPLATE.format(names=", ".join(sorted(right))),
            begin=ANSWER_BEGINNING,
            expected=right,
            chance=1 / math.factorial(self.asked),
            blind=1 / math.factorial(self.asked),
        )

    def reader_steps(self, puzzle: Puzzle, places: Sequence[int]) -> shortcuts.Steps:
        """Who reads the last k people guesses the order of the others."""
        seen = sorted(places[line] for line in puzzle.needed)
        return tuple((tokens, 1 / math.factorial(self.asked - k)) for k, tokens in enumerate([0, *seen]))

    def plain(self, text: str) -> str:
        """The answer with commas for "then" and arrows, without numbers."""
        return re.sub(r"\bthen\b|->|=>|→|>", ",", super().plain(text), flags=re.IGNORECASE)

    def judge(self, question: Generate, answer: GenerateAnswer) -> Sample:
        """Exact order, and pairs in order."""
        right = [name.lower() for name in question.facts["expected"]]
        written = matching.leading_items(self.plain(answer.text), self.item)
        pairs = list(itertools.combinations(right, 2))
        # Names that are not exactly the asked ones have no order to compare.
        ordered = sum(written.index(a) < written.index(b) for a, b in pairs) if sorted(written) == sorted(right) else 0
        return score_written(question, answer, {"accuracy": float(written == right), "pairs": ordered / len(pairs)})
