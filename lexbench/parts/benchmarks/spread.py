"""Tasks whose parts are spread over a text: lines and question are the same at every length, only filler grows.

A task states a `Puzzle`; `Spread` puts its lines into the filler at places that follow from seed and index, asks, and
scores. So the length's effect is that of the distance alone: each sample is the same puzzle at every length.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from lexbench.core.errors import ConfigError
from lexbench.core.record import Refused, Sample
from lexbench.core.task import Answer, AnyQuestion, Choose, Generate, GenerateAnswer, Outline, Task, Tokenizer, Tokens
from lexbench.corpora import Corpus
from lexbench.taskkit import haystack, matching, sampling, shortcuts
from lexbench.taskkit.people import OBJECT_WORD_LISTS
from lexbench.taskkit.prompt import (
    FixedParts,
    check_at_least,
    check_haystack,
    check_length,
    context_beginning,
    fixed_fields,
    outline_of,
    task_name_of,
    texts_for_sizes,
)
from lexbench.taskkit.scoring import score_choice, score_items

PLAIN_NOUNS = tuple(OBJECT_WORD_LISTS[-1])
"""Plain nouns."""
ANSWER_MARGIN_TOKENS = 4
"""Tokens to write beyond those of the answer."""
Words = Callable[[Sequence[str], int], list[str]]
"""Function that draws so many different values of a list."""


@dataclass(frozen=True)
class Puzzle:
    """A question without filler: its lines, its words and its answer."""

    header: str
    lines: Sequence[str]
    """Lines in the order of the text; each begins with a blank."""
    needed: frozenset[int]
    """Lines without which the answer is open; the control leaves them out."""
    ask: str
    begin: str
    """First words of the answer."""
    expected: Sequence[str]
    """Items of the right answer."""
    chance: float
    options: Sequence[str] = ()
    """All possible answers of one item, for a choice; a guess among them by place or frequency has `chance`."""
    blind: float = 0.0
    """Expected accuracy of guessing in the control."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    further: Sequence["Puzzle"] = ()
    """Further questions behind the same text: of equal header and lines."""
    telling: frozenset[int] | None = None
    """Lines that tell the answer to whoever reads from the end and knows how puzzles are made; None: the needed."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FixedPuzzle(FixedParts):
    """A puzzle in the tokens of a model."""

    puzzle: Puzzle
    lines: list[Tokens]
    """Empty where the control leaves one out."""

    @property
    def bare(self) -> int:
        """Prompt and room without filler, in tokens."""
        return self.tokens + sum(map(len, self.lines))


@dataclass(frozen=True)
class Spread(Task):
    """Base of the tasks with spread lines; a task states `puzzle`, `what` and `item`, and its own parameters.

    Args:
        corpus: of the running text, for haystack=text.
        haystack: noise (the usual five sentences) or text (of the corpus).
        room: tokens to write; None: those of the answer and four more.
        chat: use the model's chat template; the first words of the answer come after it.
        choose: choose by likelihood among all possible answers, where a task has such; False: the model writes.
        needle: False is the control without the needed lines, those of all questions of a text.
        questions_per_text: questions behind each text, which is read once and one cluster: each asks for another chain,
            person, ... of the puzzle, which has more of them where there are too few. n counts questions.
    """

    form: ClassVar[tuple[str, ...]] = ("needle", "room", "chat")
    versions: ClassVar[tuple[int, int]] = (1, 2)
    """Versions of a choice, and of a written answer, whose list any further word made longer one version before."""
    item: ClassVar[str] = matching.one_of_pattern(PLAIN_NOUNS)
    """Regular expression of one item of an answer."""
    several: ClassVar[bool] = False
    """Whether the task makes puzzles with `further` questions."""
    _name = property(task_name_of)
    corpus: Corpus | None = None
    haystack: str = "noise"
    room: int | None = None
    chat: bool = False
    choose: bool = False
    needle: bool = True
    questions_per_text: int = field(default=1, metadata={"new": True})

    @property
    def edition(self) -> int:
        """The version of a choice, or of a written answer."""
        return self.versions[not self.choose]

    def __post_init__(self) -> None:
        name = self._name
        check_haystack(name, self)
        check_at_least(name, self, room=1, questions_per_text=1)
        if self.questions_per_text > 1 and not self.several:
            raise ConfigError(
                f"{name} asks one question behind each text, got questions_per_text={self.questions_per_text}: "
                "leave it out"
            )
        if self.choose and self.room:
            raise ConfigError(f"{name} writes nothing with choose, got room={self.room}: leave it out")

    def puzzle(self, rng: np.random.Generator, words: Words) -> Puzzle:
        """The puzzle of a sample: nothing of it depends on the length.

        Args:
            rng: of the sample.
            words: draws different values of a list in random order; for a choice, of equally many tokens.
        """
        raise NotImplementedError

    @property
    def what(self) -> str:
        """Words for the protocol: the question and its difficulty."""
        raise NotImplementedError

    def protocol(self, tokenizer: Tokenizer) -> str:
        """Protocol in words: the question, the filler, questions a text, and the scoring of the answer."""
        control = "" if self.needle else ", control without the needed lines"
        room = f"{self.room}" if self.room else f"of the answer and {ANSWER_MARGIN_TOKENS} tokens"
        scored = (
            "the likeliest of all answers" if self.choose else f"strict: the answer comes first, greedy, room {room}"
        )
        several = f", {self.questions_per_text} questions behind each text" if self.questions_per_text > 1 else ""
        return f"{self.what} in {self.haystack}{several}{control}; {scored}; {context_beginning(tokenizer, self.chat)}"

    def outline(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Outline:
        """Sizes of n questions, estimated from those of the first texts."""
        texts = [self._fixed_parts(tokenizer, seed, text) for text in texts_for_sizes(n, self.questions_per_text)]
        check_length(self._name, max(sample.bare for text in texts for sample in text), length)
        return outline_of(texts, length, n, writes=not self.choose)

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        """One prompt of exactly length - room tokens per sample."""
        texts = [self._fixed_parts(tokenizer, seed, text) for text in range(-(-n // self.questions_per_text))]
        check_length(self._name, max(sample.bare for text in texts for sample in text), length)
        asked = [self._ask_puzzles(tokenizer, length, seed, number, text) for number, text in enumerate(texts)]
        return [question for text in asked for question in text][:n]

    def _fixed_parts(self, tokenizer: Tokenizer, seed: int, text: int) -> list[FixedPuzzle]:
        """The questions of a text."""
        rng = self.rng("puzzle", seed, text)
        first = self.puzzle(rng, lambda values, count: self._draw_values(rng, tokenizer, values, count))
        puzzles, spare = [first, *first.further], 0 if self.choose else ANSWER_MARGIN_TOKENS
        assert len(puzzles) == self.questions_per_text, "a puzzle has a question for each of a text"
        # Left out after drawing: the control has the same puzzle, text and question.
        left_out = set[int]() if self.needle else {line for puzzle in puzzles for line in puzzle.needed}
        none = np.empty(0, np.int64)
        lines = [none if i in left_out else tokenizer.encode(line).ids for i, line in enumerate(first.lines)]
        found = []
        for index, each in enumerate(puzzles, start=text * len(puzzles)):
            answer = f" {', '.join(each.expected)}"
            frame = fixed_fields(self, tokenizer, index, [each.header], each.ask, each.begin, [answer], spare)
            found.append(FixedPuzzle(**frame, puzzle=each, lines=lines))
        return found

    def _draw_values(
        self, rng: np.random.Generator, tokenizer: Tokenizer, values: Sequence[str], count: int
    ) -> list[str]:
        """Different values in random order; for a choice those of the most common number of tokens."""
        if self.choose:
            values = sampling.values_of_common_size(tokenizer, values)
        if len(values) < count:
            raise Refused(
                f"{self._name} has {len(values)} words of equally many tokens, needs {count}: set task.choose=false, "
                "or make the puzzle smaller"
            )
        return [values[each] for each in rng.permutation(len(values))[:count]]

    def _ask_puzzles(
        self, tokenizer: Tokenizer, length: int, seed: int, number: int, text: list[FixedPuzzle]
    ) -> list[Generate | Choose]:
        sizes, lines = [fixed.bare for fixed in text], text[0].lines
        filler = self.rng("filler", seed, number)
        filled = haystack.fill_haystack(self.corpus, tokenizer, length - min(sizes), str(number), filler)
        body, more = haystack.cut_haystack(filled, length - max(sizes))
        # Sorted: lines keep their order at every length. Drawn apart from the filler, so that both are the same at all
        # lengths.
        depths = np.sort(self.rng("places", seed, number).random(len(lines)))
        tokens, realised = haystack.insert_needles(body, lines, depths.tolist())
        # Where a question is shorter than others of its text, more filler stands behind all lines.
        return [
            self._question(tokenizer, fixed, [tokens, more[: max(sizes) - fixed.bare]], body.name, realised)
            for fixed in text
        ]

    def _question(
        self, tokenizer: Tokenizer, fixed: FixedPuzzle, body: list[Tokens], cluster: str, realised: list[float]
    ) -> Generate | Choose:
        puzzle = fixed.puzzle
        # A line stands at its share of the filler, behind all earlier lines.
        sizes = np.cumsum([0, *map(len, fixed.lines)])
        filler, behind = len(body[0]) - int(sizes[-1]), sum(map(len, body)) + len(fixed.after)
        places = [behind - round(depth * filler) - int(size) for depth, size in zip(realised, sizes, strict=False)]
        steps = self.reader_steps(puzzle, places) if self.needle else ((0, puzzle.blind),)
        facts = {**puzzle.facts, "expected": list(puzzle.expected)}
        if len(puzzle.needed) == 1:
            facts["depth"] = realised[min(puzzle.needed)]
        chance = puzzle.chance if self.needle else puzzle.blind
        if not self.choose:
            return replace(fixed.write(body, cluster, chance, facts), shortcut=steps)
        options = tuple(tokenizer.encode(f" {option}").ids for option in puzzle.options)
        if not options:
            raise Refused(f"{self._name} has no short list of answers to choose from: set task.choose=false")
        if len({len(option) for option in options}) > 1:
            raise Refused(f"{self._name}'s answers differ in tokens, and fewer are likelier: set task.choose=false")
        right = list(puzzle.options).index(puzzle.expected[0])
        return replace(fixed.choose(body, cluster, options, right, facts, chance), shortcut=steps)

    def reader_steps(self, puzzle: Puzzle, places: Sequence[int]) -> shortcuts.Steps:
        """Steps of a reader of the last tokens (`Question.shortcut`), where the text holds what is needed.

        Args:
            puzzle: of the question.
            places: last tokens of the prompt from which on each line is read, descending.
        """
        guess = 1 / len(puzzle.options) if self.choose and puzzle.options else puzzle.blind
        telling = puzzle.needed if puzzle.telling is None else puzzle.telling
        return (0, guess), (max(places[line] for line in telling), 1.0)

    def score(self, question: AnyQuestion, answer: Answer) -> Sample:
        """Strict accuracy of a written answer, or accuracy of the choice."""
        if isinstance(question, Choose):
            return score_choice(question, answer)
        assert isinstance(question, Generate) and isinstance(answer, GenerateAnswer)
        return self.judge(question, answer)

    def judge(self, question: Generate, answer: GenerateAnswer) -> Sample:
        """The sample of a written answer: exactly the expected items, in any order."""
        return score_items(question, answer, self.item, self.plain)

    def plain(self, text: str) -> str:
        """A written answer as `matching` reads lists: without the numbers of a list in one line."""
        return matching.remove_list_numbers(text)
