"""A question, the documents that answer it, and distractors: what made and official data have in common."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Passage:
    """A text. A made one also has its answer to the question's kind (`taskkit.people`)."""

    text: str
    value: str = ""
    alike: tuple[str, ...] = ()
    """All values in the text of the same sort as the answer: both towns, or the date, or the object."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """Question with its documents and right answers."""

    question: str
    references: tuple[str, ...]
    """Right answers, the usual one first."""
    gold: tuple[Passage, ...]
    """All needed documents; the last one holds the answer."""
    others: Iterator[Passage]
    """Distractors, drawn when they are needed."""
    cluster: str
    chance: float
    """Accuracy of guessing without the documents."""
