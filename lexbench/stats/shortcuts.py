"""Shortcuts of cells: what a perfect reader of the last tokens alone scores on their questions, and a blind guesser.

    windows  64, 256, T/4 and T tokens, T the trained length; at a length those of at most half of it
    reader   the mean over samples of the step of its window (`Question.shortcut`, kept as a fact of the sample)
    blind    the answer that is the most frequent one of half of the questions, scored on the other half

More tokens never score less, so a cell's shortcut is that of its widest window; told is the narrowest one that scores
as much, to two digits.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lexbench.core.record import Sample
from lexbench.core.task import AnyQuestion, Choose, ClassifyTokens, Generate, Task, Tokenizer
from lexbench.store.format import FinishedCell

SHORTCUT_FACT = "shortcut"
"""Fact of a sample: the steps of its question."""
READER_TOKENS = (64, 256)
SIMULATED_QUESTIONS = 256
Steps = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Shortcut:
    """Score of a perfect reader of the last tokens."""

    window: int
    """Tokens."""
    accuracy: float


@dataclass(frozen=True)
class SimulatedShortcuts:
    """Scores of readers and guessers on a task's questions at a length."""

    readers: Mapping[int, float]
    """Accuracy of a perfect reader by tokens of its window; empty where the task does not state it."""
    blind: float
    """Accuracy of always giving the most frequent answer."""
    chance: float

    @property
    def share(self) -> float:
        """The larger share of the scale: of a blind guess from 0 to 1, of a reader from chance to 1."""
        best = max(self.readers.values(), default=0.0)
        return max(self.blind, (best - self.chance) / (1 - self.chance))


def windows_within(length: int, trained_length: int) -> list[int]:
    """Windows of readers, in tokens, that are at most half of a length."""
    every = {*READER_TOKENS, trained_length // 4, trained_length}
    return sorted(window for window in every if 0 < window <= length // 2)


def reader_accuracy(steps: Steps, window: int) -> float:
    """Accuracy of a reader of so many last tokens: that of the last step that it reaches."""
    return float([accuracy for tokens, accuracy in steps if tokens <= window][-1])


def shortcut_of_cell(finished: FinishedCell) -> Shortcut | None:
    """The shortcut of a cell; None where its task states none, or no window is at most half of its length."""
    return shortcut_of_samples(finished.samples, windows_within(finished.cell.length, finished.cell.trained_length))


def shortcut_of_samples(samples: Sequence[Sample], windows: Sequence[int]) -> Shortcut | None:
    """The shortcut of samples, of ascending windows; None where a sample does not state its steps."""
    steps = [sample.facts.get(SHORTCUT_FACT) for sample in samples]
    told = [each for each in steps if each]
    if not told or len(told) < len(steps) or not windows:
        return None
    means = [float(np.mean([reader_accuracy(each, window) for each in told])) for window in windows]
    return next(Shortcut(window, mean) for window, mean in zip(windows, means, strict=True) if mean > means[-1] - 0.005)


def simulate_shortcuts(
    task: Task, tokenizer: Tokenizer, length: int, trained_length: int, n: int = SIMULATED_QUESTIONS
) -> SimulatedShortcuts | None:
    """Shortcuts of a task, of n of its questions; None for a task that is no score. Raises Refused as `questions`."""
    questions = task.questions(tokenizer, length, n, 0)
    asked = [each for each in questions if isinstance(each, Generate | Choose | ClassifyTokens)]
    if not asked:
        return None
    steps = [each.shortcut for each in asked if each.shortcut]
    windows = windows_within(length, trained_length) if steps else []
    half = len(asked) // 2
    return SimulatedShortcuts(
        readers={window: float(np.mean([reader_accuracy(each, window) for each in steps])) for window in windows},
        blind=_blind_accuracy(asked[:half], asked[half:]),
        chance=float(np.mean([each.chance for each in asked])),
    )


def _blind_accuracy(seen: Sequence[AnyQuestion], scored: Sequence[AnyQuestion]) -> float:
    """Share of right answers of always giving the commonest right answer of the questions seen."""
    counts = Counter(answer for question in seen for answer in _right_answers(question))
    best = max(counts, key=counts.__getitem__)
    return float(np.mean([np.mean([answer == best for answer in _right_answers(each)]) for each in scored]))


def _right_answers(question: AnyQuestion) -> list[Hashable]:
    """The right answers of a question: one, or one for each place."""
    if isinstance(question, Generate):
        return [question.answer]
    if isinstance(question, Choose):
        return [tuple(question.options[question.expected].tolist())]
    assert isinstance(question, ClassifyTokens)
    return list(question.tokens[question.places].tolist())
