"""Counting: how often something happened in the whole text."""

import functools
import itertools
import math
import re
from collections import Counter
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

PROMPT_HEADER = "Count how often each person rings the bell.\n"
LINE_TEMPLATE = " {name} rings the bell."
QUESTION_TEMPLATE = "\nHow often does {name} ring the bell?"
ANSWER_BEGINNING = " The number of times that {name} rings the bell is"
COUNT_WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
DIGIT_OF_WORD = {word: str(count) for count, word in enumerate(COUNT_WORDS, 1)} | {"once": "1", "twice": "2"}


@dataclass(frozen=True)
class Counting(Spread):
    """Count the lines about one person over the whole text, among equal lines about others.

        Count how often each person rings the bell.
        ... Clara rings the bell. ... Leo rings the bell. ... Clara rings the bell. ... back again.
        How often does Clara ring the bell? The number of times that Clara rings the bell is       <- " 2"

    Constant over lengths: everything but the filler. Difficulty: `most` and `pairs`. People come in pairs: one rings c
    times, the other most + 1 - c times, c is uniform from 1 to `most`. So the number of all lines is the same in every
    sample, and without any single line of the person the count is another one. The control leaves out both of the
    asked pair: with one of them, the number of lines would tell the other.

    A written count may be a digit or a word: " two" and " twice" are 2.

    Chance: the best guess that does not know who is asked for: the commonest of all people's counts, 0.44 for most=5
    and two pairs (the largest or the least count has 0.36, any number 0.2). In the control, whose lines say nothing of
    the asked pair, 1 / most.

    Args:
        most: largest count, at most 9.
        pairs: of people; at least as many as questions behind a text, each of which asks for one of another pair.
    """

    item: ClassVar[str] = r"\d+"
    several: ClassVar[bool] = True
    most: int = 5
    pairs: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("counting", self, most=2, pairs=1)
        if self.most > 9:
            raise ConfigError(f"counting's most must be at most 9, a digit, got {self.most}")
        if 2 * self._pairs > len(FIRST_NAMES):
            raise ConfigError(
                f"counting has {len(FIRST_NAMES)} names, {self._pairs} pairs need {2 * self._pairs}: lower pairs, or "
                "questions_per_text"
            )

    @property
    def _pairs(self) -> int:
        """Pairs of people in a text."""
        return max(self.pairs, self.questions_per_text)

    @property
    def what(self) -> str:
        """Words for the protocol: the largest count, and the number of people."""
        return f"a count from 1 to {self.most}, {2 * self._pairs} people"

    def puzzle(self, rng: np.random.Generator, words: Words) -> Puzzle:
        """Pairs of people with complementary counts, their lines in random order."""
        names = words(FIRST_NAMES, 2 * self._pairs)
        firsts = rng.integers(1, self.most + 1, self._pairs)
        # People 2k and 2k + 1 are a pair: together they ring most + 1 times.
        counts = np.ravel(np.column_stack([firsts, self.most + 1 - firsts]))
        rung = rng.permutation(np.repeat(np.arange(len(names)), counts))
        asked = [
            Puzzle(
                header=PROMPT_HEADER,
                lines=[LINE_TEMPLATE.format(name=names[each]) for each in rung],
                needed=frozenset(np.flatnonzero(rung // 2 == pair).tolist()),
                telling=frozenset(np.flatnonzero(rung == 2 * pair).tolist()),
                ask=QUESTION_TEMPLATE.format(name=names[2 * pair]),
                begin=ANSWER_BEGINNING.format(name=names[2 * pair]),
                expected=[str(counts[2 * pair])],
                chance=_commonest_count_share(self.most, self.pairs),
                blind=1 / self.most,
                options=[str(count) for count in range(1, self.most + 1)],
            )
            for pair in range(self.questions_per_text)
        ]
        return replace(asked[0], further=asked[1:])

    def reader_steps(self, puzzle: Puzzle, places: Sequence[int]) -> shortcuts.Steps:
        """Who has read a lines of a person and b of its partner names the likeliest count c of the person.

        Its weight is C(c, a) C(most + 1 - c, b), as the lines stand in random order.
        """
        steps, counts = [(0, 1 / self.most)], range(1, self.most + 1)
        own = partner = 0
        for line in sorted(puzzle.needed, reverse=True):
            told = line in (puzzle.telling or ())
            own, partner = own + told, partner + (not told)
            weights = [math.comb(count, own) * math.comb(self.most + 1 - count, partner) for count in counts]
            steps.append((places[line], max(weights) / sum(weights)))
        return tuple(steps)

    def plain(self, text: str) -> str:
        """The answer with digits for words."""
        return re.sub("[a-z]+", lambda word: DIGIT_OF_WORD.get(word[0].lower(), word[0]), text, flags=re.IGNORECASE)

    def judge(self, question: Generate, answer: GenerateAnswer) -> Sample:
        """Strict accuracy, and whether the count stands anywhere."""
        text, expected = self.plain(answer.text), question.facts["expected"]
        scores = {"accuracy": matching.strict_list_score(text, expected, self.item)}
        return score_written(question, answer, scores | {"contains": matching.contains_all(text, expected)})


@functools.lru_cache(maxsize=1 << 10)
def _commonest_count_share(most: int, pairs: int) -> float:
    """Expected share of people whose count is the commonest one.

    A pair holds the counts t and most + 1 - t, which are one where most is odd and t in the middle: then it counts
    twice, and is half as likely.
    """
    middle = (most + 1) / 2
    kinds = range(1, math.floor(middle) + 1)
    found = 0.0
    for held in itertools.combinations_with_replacement(kinds, pairs):
        counts = Counter(held)
        ways = math.factorial(pairs) / math.prod(map(math.factorial, counts.values()))
        likely = math.prod(((1 if kind == middle else 2) / most) ** count for kind, count in counts.items())
        found += ways * likely * max(count * (2 if kind == middle else 1) for kind, count in counts.items())
    return found / (2 * pairs)
