"""Reuse of answers: take from earlier answers what they hold already.

Three cases, each exact up to rounding of the last bits; tests compare them with `reuse=false`:

    twins        cells that differ in the method's name alone: at this length both are the same Attention
    lengths      a text's first tokens, scored at a greater length before: nothing that follows changes them
    prefixes     prompts that begin alike, asked one behind the other: the backend keeps what it has read

The latter two hold only where no later token changes how earlier ones are read: under no Attention whose frequencies
follow the text's length, or whose heads are ranked by the prompt's last query, and in no encoding with positions of its
own. The backend says so.
"""

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lexbench.backends.caches import in_common
from lexbench.core.record import Cell
from lexbench.core.task import Answer, AnyQuestion, Choose, Mark, Score, Scored, Tokens, Write
from lexbench.runner.cells import OpenCell

WORTH = 0.4
"""Smallest share of tokens that need no second reading, for which prompts are sorted by their beginnings. Two questions
behind each text share a little less than half."""


def attended(cell: Cell) -> str | None:
    """Hash of everything that a cell's samples depend on: its identity without the method's name. Twins share it.

    None for a cell without an Attention.
    """
    if cell.identity["attention"] is None:
        return None
    rest = {key: value for key, value in cell.identity.items() if key != "method"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


class Twins:
    """Ids of finished cells of run folders, by what they attended to; kept for all jobs of a process."""

    def __init__(self) -> None:
        self._known: dict[tuple[Path, str], str] = {}

    def learn(self, folder: Path, cell: Cell) -> None:
        """Keep a finished cell, unless its samples are known by a twin."""
        if key := attended(cell):
            self._known.setdefault((folder.resolve(), key), cell.id)

    def of(self, folder: Path, cell: Cell) -> str | None:
        """Id of a finished cell with the same samples; None where none is known."""
        key = attended(cell)
        return self._known.get((folder.resolve(), key)) if key else None


@dataclass(frozen=True, eq=False)
class Known:
    """A text that has been scored."""

    tokens: Tokens
    start: int
    nll: NDArray[np.float32]

    def holds(self, question: Score) -> bool:
        """Whether all targets of a question are among those of this text."""
        size = len(question.tokens)
        return self.start <= question.start and np.array_equal(self.tokens[:size], question.tokens)

    def answer(self, question: Score) -> Scored:
        """The answer of a question that `holds` accepts."""
        return Scored(nll=self.nll[question.start - self.start : len(question.tokens) - self.start])


class Prefixes:
    """Scores of a task's longest texts, for as long as shorter ones of it are asked."""

    def __init__(self) -> None:
        self._about: object = None
        self._known: dict[tuple[str, int], Known] = {}

    def answers(
        self, cell: OpenCell, questions: Sequence[AnyQuestion], ask: Callable[[Sequence[AnyQuestion]], Iterator[Answer]]
    ) -> Iterator[Answer]:
        """The answer of each question: taken from a longer text's scores, or from `ask`."""
        if self._about != (about := (cell.task, cell.seed)):
            self._about, self._known = about, {}
        attention = json.dumps(cell.identity["attention"], sort_keys=True)
        held = [self._holding(attention, question) for question in questions]
        given = ask([question for question, known in zip(questions, held, strict=True) if known is None])
        for question, known in zip(questions, held, strict=True):
            answer = next(given) if known is None else known
            if known is None and isinstance(question, Score) and isinstance(answer, Scored):
                self._known[attention, question.index] = Known(question.tokens, question.start, answer.nll)
            yield answer

    def _holding(self, attention: str, question: AnyQuestion) -> Scored | None:
        """The answer, where a longer text's holds it."""
        known = self._known.get((attention, question.index))
        return known.answer(question) if isinstance(question, Score) and known and known.holds(question) else None


def in_order(asked: Sequence[AnyQuestion], reuse: bool) -> list[AnyQuestion]:
    """Questions of one kind in the order that takes least work.

    Prompts stand by their beginnings where these are shared: each begins as the one before it for as long as any order
    allows. That is worth it where `reuse` holds and `WORTH` of all tokens need no second reading. Other prompts and
    texts stand the longest first: those answered together are about as long, and what is too long for the memory shows
    at once. Other questions stay as they are.
    """
    if all(isinstance(question, Score | Mark) for question in asked):
        return sorted(asked, key=lambda question: -question.length)
    if not all(isinstance(question, Write | Choose) for question in asked):
        return list(asked)
    prompts = [question.prompt for question in asked if isinstance(question, Write | Choose)]
    # Bytes of big-endian numbers sort as the numbers do, token by token.
    sorted_ = sorted(range(len(asked)), key=lambda place: prompts[place].astype(">u4").tobytes())
    shared = sum(in_common(prompts[one], prompts[other]) for one, other in itertools.pairwise(sorted_))
    if not (reuse and shared >= WORTH * sum(map(len, prompts))):
        sorted_ = sorted(range(len(asked)), key=lambda place: -asked[place].length)
    return [asked[place] for place in sorted_]
