"""Reuse of answers: take from earlier answers what they hold already.

Four cases, each exact up to rounding of the last bits; tests compare them with `reuse=false`:

    twins        cells that differ in the method's name alone: at this length both are the same Attention
    fewer        a cell that asked fewer of the same questions before: a greater n asks the rest
    lengths      a text's first tokens, scored at a greater length before: nothing that follows changes them
    prefixes     prompts that begin alike, asked one behind the other: the backend keeps what it has read

The last two hold only where no later token changes how earlier ones are read: under no Attention whose frequencies
follow the text's length, or whose heads are ranked by the prompt's last query, and in no encoding with positions of its
own. The backend says so.
"""

import functools
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lexbench.backends.caches import common_prefix_length
from lexbench.core.record import Cell
from lexbench.core.task import (
    Answer,
    AnyQuestion,
    Choose,
    ClassifyTokens,
    Generate,
    Loglikelihood,
    LoglikelihoodAnswer,
    Tokens,
)
from lexbench.runner.cells import OpenCell

MIN_REUSED_TOKEN_SHARE = 0.4
"""Smallest share of tokens that need no second reading, for which prompts are sorted by their beginnings. Two questions
behind each text share a little less than half."""


def samples_hash(cell: Cell) -> str | None:
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
        if key := samples_hash(cell):
            self._known.setdefault((folder.resolve(), key), cell.id)

    def of(self, folder: Path, cell: Cell) -> str | None:
        """Id of a finished cell with the same samples; None where none is known."""
        key = samples_hash(cell)
        return self._known.get((folder.resolve(), key)) if key else None


def cells_with_fewer_questions(folder: Path, cell: Cell) -> Iterator[Cell]:
    """Cells that differ from a cell in their number of questions alone, the greatest first.

    The numbers are those of a run folder's jobs; whether the folder holds the cells is not asked.
    """
    counts = {_question_count(file) for file in (folder / "jobs").glob("*.json")}
    for n in sorted((count for count in counts if 0 < count < cell.n), reverse=True):
        yield replace(cell, n=n, identity={**cell.identity, "n": n})


@functools.lru_cache(maxsize=1 << 16)  # a sweep asks for each cell; a job's file is named by its contents
def _question_count(file: Path) -> int:
    """Questions of each cell of a job; 0 where its file does not tell."""
    try:
        n = json.loads(file.read_bytes())["config"]["n"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return 0
    return n if isinstance(n, int) else 0


@dataclass(frozen=True, eq=False)
class ScoredText:
    """A text that has been scored."""

    tokens: Tokens
    start: int
    nll: NDArray[np.float32]

    def covers_question(self, question: Loglikelihood) -> bool:
        """Whether all targets of a question are among those of this text."""
        size = len(question.tokens)
        return self.start <= question.first_target and np.array_equal(self.tokens[:size], question.tokens)

    def answer(self, question: Loglikelihood) -> LoglikelihoodAnswer:
        """The answer of a question that `holds` accepts."""
        return LoglikelihoodAnswer(nll=self.nll[question.first_target - self.start : len(question.tokens) - self.start])


class PrefixAnswers:
    """Scores of a task's longest texts, for as long as shorter ones of it are asked."""

    def __init__(self) -> None:
        self._about: object = None
        self._known: dict[tuple[str, int], ScoredText] = {}

    def answers(
        self, cell: OpenCell, questions: Sequence[AnyQuestion], ask: Callable[[Sequence[AnyQuestion]], Iterator[Answer]]
    ) -> Iterator[Answer]:
        """The answer of each question: taken from a longer text's scores, or from `ask`."""
        if self._about != (about := (cell.task, cell.seed)):
            self._about, self._known = about, {}
        # Of a cell with groups of questions, the group's own.
        own = cell.step.attention.as_data() if cell.step.attention else None
        attention = json.dumps([cell.identity["attention"], own], sort_keys=True)
        held = [self._answer_from_longer(attention, question) for question in questions]
        given = ask([question for question, known in zip(questions, held, strict=True) if known is None])
        for question, known in zip(questions, held, strict=True):
            answer = next(given) if known is None else known
            kept = known is None and question.layout is None and isinstance(question, Loglikelihood)
            if kept and isinstance(question, Loglikelihood) and isinstance(answer, LoglikelihoodAnswer):
                self._known[attention, question.index] = ScoredText(question.tokens, question.first_target, answer.nll)
            yield answer

    def _answer_from_longer(self, attention: str, question: AnyQuestion) -> LoglikelihoodAnswer | None:
        """The answer, cut out of the answer to a longer text that begins with the same tokens; None: there is none."""
        known = self._known.get((attention, question.index))
        return (
            known.answer(question)
            if isinstance(question, Loglikelihood)
            and question.layout is None
            and known
            and known.covers_question(question)
            else None
        )


def cheapest_order(asked: Sequence[AnyQuestion], reuse: bool) -> list[AnyQuestion]:
    """Questions of one kind in the order that takes least work.

    Prompts stand by their beginnings where these are shared: each begins as the one before it for as long as any order
    allows. That is worth it where `reuse` holds and `MIN_REUSED_TOKEN_SHARE` of all tokens need no second reading.
    Other prompts and texts stand the longest first: those answered together are about as long, and what is too long for
    the memory shows at once. Other questions stay as they are.
    """
    if all(isinstance(question, Loglikelihood | ClassifyTokens) for question in asked):
        return sorted(asked, key=lambda question: -question.length)
    if not all(isinstance(question, Generate | Choose) for question in asked):
        return list(asked)
    prompts = [question.prompt for question in asked if isinstance(question, Generate | Choose)]
    # Bytes of big-endian numbers sort as the numbers do, token by token.
    sorted_ = sorted(range(len(asked)), key=lambda place: prompts[place].astype(">u4").tobytes())
    shared = sum(common_prefix_length(prompts[one], prompts[other]) for one, other in itertools.pairwise(sorted_))
    if not (reuse and shared >= MIN_REUSED_TOKEN_SHARE * sum(map(len, prompts))):
        sorted_ = sorted(range(len(asked)), key=lambda place: -asked[place].length)
    return [asked[place] for place in sorted_]
