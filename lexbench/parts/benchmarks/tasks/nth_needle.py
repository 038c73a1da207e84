"""The n-th of several alike: who says several words, one after another; which one counts is stated."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from lexbench import ConfigError
from lexbench.parts.benchmarks.spread import PLAIN_NOUNS, Puzzle, Spread, Words
from lexbench.taskkit.people import FIRST_NAMES
from lexbench.taskkit.prompt import check_at_least

PROMPT_HEADERS = {
    "nth": "Remember who says which word, and in which order.\n",
    "first": "Remember who says which word. Only the first word of each person counts.\n",
    "last": "Remember who says which word. A later word of a person replaces an earlier one.\n",
}
LINE_TEMPLATE = " {name} says the word {word}."
QUESTION_TEMPLATES = {
    "nth": "\nWhich word does {name} say the {nth} time?",
    "first": "\nWhich word of {name} counts?",
    "last": "\nWhich word of {name} counts?",
}
ANSWER_BEGINNINGS = {
    "nth": " The word that {name} says the {nth} time is",
    "first": " The word of {name} that counts is",
    "last": " The word of {name} that counts is",
}
ORDINAL_WORDS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")


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

    Chance: a model that finds the person and ignores the order has 1 / alike. One that ignores the person and takes the
    word of the likeliest line has, for the n-th of a person's a lines among N,

        max over k of C(k - 1, n - 1) C(N - k, a - n) / C(N, a)        (line k is the n-th: hypergeometric)

    which is 1 / people for the first and the last. The larger of the two is the chance level, averaged over n where n
    is drawn. A choice is among the words of all people: of one person's words, the last of the text would be the right
    one. (Up to version 1 it was among these.) In its control, a guess among its words that do not occur has 1 / alike;
    a written one is among all words that do not.

    Args:
        which: nth, first or last.
        alike: words of each person.
        people: who speaks; at least as many as questions behind a text, each of which asks for another person.
    """

    versions: ClassVar[tuple[int, int]] = (2, 3)
    several: ClassVar[bool] = True
    which: str = "nth"
    alike: int = 4
    people: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.which not in PROMPT_HEADERS:
            raise ConfigError(f"nth_needle's which must be one of {', '.join(PROMPT_HEADERS)}, got {self.which}")
        check_at_least("nth_needle", self, alike=2, people=1)
        if self.alike > len(ORDINAL_WORDS) or self.alike * self._people > len(PLAIN_NOUNS):
            raise ConfigError(
                f"nth_needle has {len(PLAIN_NOUNS)} words and {len(ORDINAL_WORDS)} ordinals, got alike={self.alike} "
                "and "
                f"people={self._people}: lower them"
            )

    @property
    def _people(self) -> int:
        """People in a text."""
        return max(self.people, self.questions_per_text)

    @property
    def what(self) -> str:
        """Words for the protocol: the needle asked for among its alike ones, and the number of people."""
        which = {"nth": "the n-th"}.get(self.which, f"the {self.which}")
        return f"{which} of {self.alike} alike needles, {self._people} people"

    def puzzle(self, rng: np.random.Generator, words: Words) -> Puzzle:
        """People who speak in random order, and a question on one of them."""
        names = words(FIRST_NAMES, self._people)
        said_words = iter(words(PLAIN_NOUNS, self.alike * self._people))
        said = [
            (names[turn], next(said_words)) for turn in rng.permutation(np.repeat(np.arange(self._people), self.alike))
        ]
        asked = [self._of_person(rng, name, said) for name in names[: self.questions_per_text]]
        return replace(asked[0], further=asked[1:])

    def _of_person(self, rng: np.random.Generator, person: str, said: list[tuple[str, str]]) -> Puzzle:
        # Which word is the n-th depends on every earlier line of the person, so all of them are needed.
        own = [place for place, (name, _) in enumerate(said) if name == person]
        # Words that the control lacks: those of all people who are asked for.
        lacking = self.alike * self.questions_per_text
        n = {"nth": int(rng.integers(self.alike)), "first": 0, "last": self.alike - 1}[self.which]
        filled = {"name": person, "nth": ORDINAL_WORDS[n]}
        return Puzzle(
            header=PROMPT_HEADERS[self.which],
            lines=[LINE_TEMPLATE.format(name=name, word=word) for name, word in said],
            needed=frozenset(own),
            telling=frozenset({own[n]}),  # counted from the end, as a person says a known number of words
            ask=QUESTION_TEMPLATES[self.which].format(**filled),
            begin=ANSWER_BEGINNINGS[self.which].format(**filled),
            expected=[said[own[n]][1]],
            chance=max(1 / self.alike, self._by_place()),
            options=sorted(word for _, word in said),
            blind=1 / (lacking if self.choose else len(PLAIN_NOUNS) - len(said) + lacking),
            facts={"n": n + 1},
        )

    def _by_place(self) -> float:
        """Accuracy of the best guess by place alone."""
        own, every = self.alike, self.alike * self._people
        asked = {"nth": range(1, own + 1), "first": (1,), "last": (own,)}[self.which]
        best = [
            max(math.comb(k - 1, n - 1) * math.comb(every - k, own - n) for k in range(1, every + 1)) for n in asked
        ]
        return sum(best) / len(best) / math.comb(every, own)
