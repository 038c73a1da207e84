"""Learning in context with many labels: which group does a thing of a known kind belong to?"""

import string
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lexbench import ConfigError
from lexbench.parts.benchmarks.spread import PLAIN_NOUNS, Puzzle, Spread, Words
from lexbench.taskkit.people import OBJECT_WORD_LISTS
from lexbench.taskkit.prompt import check_at_least

PROMPT_HEADER = "The group of a thing depends on what it is, not on its colour.\n"
LINE_TEMPLATE = " The {colour} {thing} belongs to group {label}."
QUESTION_TEMPLATE = "\nTo which group does the {colour} {thing} belong?"
ANSWER_BEGINNING = " The {colour} {thing} belongs to group"
COLOUR_WORDS = tuple(OBJECT_WORD_LISTS[1])


@dataclass(frozen=True)
class ManyLabels(Spread):
    """Learn labels from examples in the text, and label a new example (the ICL sets of HELMET and LongICLBench; ours).

        The group of a thing depends on what it is, not on its colour.
        ... The blue drum belongs to group K. ... The red lamp belongs to group B. ... back again.
        To which group does the green drum belong? The green drum belongs to group       <- " K"

    Constant over lengths: everything but the filler. Difficulty: `labels`, `things` of each label, `shots` of each
    thing. Labels are drawn anew for each sample, so knowledge of things or letters is of no use; all labels have
    equally many examples, colours say nothing, and the asked colour is new. Without the examples of the asked thing,
    every label is as likely.

    Chance: 1 / labels. In the control, a choice is also among labels that no example has: the left out one would be the
    only one that does not occur. (Up to version 1 it was.) A written guess there is among all letters that do not.

    Args:
        labels: letters.
        things: of each label.
        shots: examples of each thing.
    """

    versions: ClassVar[tuple[int, int]] = (2, 3)
    item: ClassVar[str] = "[a-z]"
    labels: int = 6
    things: int = 1
    shots: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("many_labels", self, labels=2, things=1, shots=1)
        if self.labels > 26 or self.labels * self.things > len(PLAIN_NOUNS) or self.shots >= len(COLOUR_WORDS):
            raise ConfigError(
                f"many_labels has 26 labels, {len(PLAIN_NOUNS)} things and {len(COLOUR_WORDS)} colours, got "
                f"labels={self.labels}, "
                f"things={self.things} and shots={self.shots}: lower them"
            )

    @property
    def what(self) -> str:
        """Words for the protocol: number of labels, of things, and of examples of each thing."""
        return f"{self.labels} labels in context, {self.things} x {self.shots} examples each"

    def puzzle(self, rng: np.random.Generator, words: Words) -> Puzzle:
        """Examples of all things in random order, and a new one."""
        # In the control the asked label would be the only one without an example: labels without any join it.
        unused = 0 if self.needle else min(self.labels - 1, len(string.ascii_uppercase) - self.labels)
        options = words(string.ascii_uppercase, self.labels + unused)
        labels = options[: self.labels]
        things = words(PLAIN_NOUNS, self.labels * self.things)
        groups = dict(zip(things, np.repeat(labels, self.things).tolist(), strict=True))
        colours = {thing: words(COLOUR_WORDS, self.shots + 1) for thing in things}
        shown = [(thing, colour) for thing in things for colour in colours[thing][:-1]]
        order = [shown[each] for each in rng.permutation(len(shown))]
        asked = {"colour": colours[things[0]][-1], "thing": things[0]}
        own = [place for place, (thing, _) in enumerate(order) if thing == things[0]]
        return Puzzle(
            header=PROMPT_HEADER,
            lines=[LINE_TEMPLATE.format(colour=colour, thing=thing, label=groups[thing]) for thing, colour in order],
            needed=frozenset(own),
            telling=frozenset(own[-1:]),
            ask=QUESTION_TEMPLATE.format(**asked),
            begin=ANSWER_BEGINNING.format(**asked),
            expected=[labels[0]],
            chance=1 / self.labels,
            options=sorted(options),
            blind=1 / (1 + unused if self.choose else len(string.ascii_uppercase) - self.labels + 1),
        )
