"""The n-th of several alike: who says several words, one after another; which one counts is stated."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lexbench.taskkit.prompt import check_at_least
from lexbench.taskkit.spread import NAMES, WORDS, Puzzle, Spread, Words

HEADERS = {
    "nth": "Remember who says which word, and in which order.\n",
    "first": "Remember who says which word. Only the first word of each person counts.\n",
    "last": "Remember who says which word. A later word of a person replaces an earlier one.\n",
}
LINE = " {name} says the word {word}."
ASKS = {
    "nth": "\nWhich word does {name} say the {nth} time?",
    "first": "\nWhich word of {name} counts?",
    "last": "\nWhich word of {name} counts?",
}
BEGINS = {
    "nth": " The word that {name} says the {nth} time is",
    "first": " The word of {name} that counts is",
    "last": " The word of {name} that counts is",
}
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")


@dataclass(frozen=True)
class NthNeedle(Spread):
    """Find the n-th of several alike needles (the idea of MRCR: Vodrahalli et al., arXiv 2409.12640; wording ours).

        Remember who says which word, and in which order.
        ... Clara says the word drum. ... Leo says the word lamp. ... Clara says the word ring. ... back again.
        Which word does Clara say the second time? The word that Clara says the second time is

    and the model writes " ring". With `which=last` a later word replaces an earlier one, with `which=first` only the
    first counts: conflicting needles, where the text states which one counts.

    Constant over lengths: everything but the filler. Difficulty: `alike` needles of each person, `people`. People speak
    in random order, and a person's words, the asked person and n are uniform, so no single line reveals the answer:
    which word is the n-th depends on all lines of the person before it.

    Chance: a model that finds the person and ignores the order has 1 / alike; one that takes the last word of the text
    with `which=last`, or the first with `which=first`, has 1 / people. The larger of the two is the chance level. A
    choice is among the words of all people: of one person's words, the last of the text would be the right one. (Up to
    version 1 it was among these.) In its control, guessing a word that does not occur has 1 / alike.

    Args:
        which: nth, first or last.
        alike: words of each person.
        people: who speaks.
    """

    version: ClassVar[int] = 2
    which: str = "nth"
    alike: int = 4
    people: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.which not in HEADERS:
            raise ValueError(f"nth_needle's which must be one of {', '.join(HEADERS)}, got {self.which}")
        check_at_least("nth_needle", self, alike=2, people=1)
        if self.alike > len(ORDINALS) or self.alike * self.people > len(WORDS):
            raise ValueError(
                f"nth_needle has {len(WORDS)} words and {len(ORDINALS)} ordinals, got alike={self.alike} and "
                f"people={self.people}: lower them"
            )

    @property
    def what(self) -> str:
        """Which of how many alike needles."""
        which = {"nth": "the n-th"}.get(self.which, f"the {self.which}")
        return f"{which} of {self.alike} alike needles, {self.people} people"

    def puzzle(self, rng: np.random.Generator, words: Words) -> Puzzle:
        """People who speak in random order, and a question on one of them."""
        names = words(NAMES, self.people)
        said_words = iter(words(WORDS, self.alike * self.people))
        said = [
            (names[turn], next(said_words)) for turn in rng.permutation(np.repeat(np.arange(self.people), self.alike))
        ]
        # Which word is the n-th depends on every earlier line of the person, so all of them are needed.
        own = [place for place, (name, _) in enumerate(said) if name == names[0]]
        n = {"nth": int(rng.integers(self.alike)), "first": 0, "last": self.alike - 1}[self.which]
        filled = {"name": names[0], "nth": ORDINALS[n]}
        return Puzzle(
            header=HEADERS[self.which],
            lines=[LINE.format(name=name, word=word) for name, word in said],
            needed=frozenset(own),
            ask=ASKS[self.which].format(**filled),
            begin=BEGINS[self.which].format(**filled),
            expected=[said[own[n]][1]],
            chance=1 / self.alike if self.which == "nth" else 1 / min(self.alike, self.people),
            options=sorted(word for _, word in said),
            blind=1 / self.alike,
            facts={"n": n + 1},
        )
