"""Arithmetic of constant difficulty: add and subtract small numbers; longer texts have more of them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lexbench import (
    Answer,
    AnyQuestion,
    Choose,
    ClassifyTokens,
    ConfigError,
    Frame,
    Generate,
    GenerateAnswer,
    Outline,
    Refused,
    Sample,
    Task,
    Tokenizer,
)
from lexbench.taskkit import matching
from lexbench.taskkit.prompt import check_at_least, check_length, context_beginning, resolve_max_new_tokens
from lexbench.taskkit.scoring import score_choice, score_marks, score_written

Whole = NDArray[np.int64]
CIRCLE_RULE = "Numbers go round from 0 to {last}: {last} +1 =0 and 0 -1 ={last}.\n"
LINE_RULE = "Add and subtract from left to right.\n"
SCORING_NOTES = {
    "write": "strict: the result comes first, greedy",
    "choose": "the likeliest of the {numbers} results",
    "mark": "the likeliest of the {numbers} results at every place asked, given all right tokens before it",
}
"""Words for the protocol: scoring of the answer, by `ask`."""


@dataclass(frozen=True, eq=False)
class Pieces:
    """The parts of a line, each tokenized as it is behind a new line."""

    digits: Whole
    """[numbers, tokens]"""
    steps: Whole
    """[terms, tokens] in ascending order."""
    equals: Whole
    end: Whole
    """The new line."""


@dataclass(frozen=True)
class Arithmetic(Task):
    """Add and subtract small numbers; only the number of terms grows (the survey arXiv 2312.17044, appendix A.3).

        Add and subtract from left to right.                     <- the rule; explained=false leaves it out
        7 -2 +4 -6 +1 =4                                         <- examples with a fixed number of terms
        3 +0 -2 +5 -4 =2
        8 -5 +3 +1 ... -4 =                                      <- the model writes "2"

    Constant over lengths: the rule, the examples, the range of numbers, and the distribution of the running result,
    which is uniform at every depth. Only the number of terms grows, to as many as fit. Blank lines at the start, fewer
    than the tokens of one term, make the length exact.

    On the line (wrap=false, the survey's form: every result lies between 0 and m - 1, m = `numbers`) the results are
    independent and uniform, and each term is the step to the next result. A prefix says nothing, but a suffix does: if
    the running sums of the last terms span m - 1, only one result is possible. For ten numbers, the last terms alone
    give

        terms     1      2      4      8      16     32     64
        bits      0.709  1.172  1.771  2.422  2.970  3.260  3.320     of log2(10) = 3.322
        accuracy  0.190  0.271  0.410  0.613  0.833  0.969  0.999     of the best guess from them

    so no text needs a memory of much more than 32 terms. `needed` in a sample's facts is how many numbers from the end
    determine its result: all numbers on the circle; two (the last result and a term) if results are shown.

    On the circle (wrap=true: results modulo m) the first number is uniform in 0..m-1 and every term is
    uniform among m steps that differ modulo m (-4..+5 for ten numbers), all independent. Hence

    - the triple of running result, term and next result has the same distribution at every depth;
    - changing any one term changes the result, by the same amount at every place;
    - all numbers but one say nothing about the result: it stays uniform. So no part of the input reveals the answer.

    The count of each term does reveal it: addition has no order, so the task does not test order.

    With shown=true every result follows its term: `5 +3 =8 -6 =2`. That is the same arithmetic without the long memory:
    the last result and the term suffice at any distance from the start. With ask=mark, `right` and `nll` show at which
    `place` a model loses the result. (The config running_arithmetic does this in the wording of the lesson
    `running_sums` of the embedded model.)

    Scores: `accuracy`: the answer begins with the result and its line goes on with neither a list nor a calculation
    ("6, 3", "6 +1 =7"; with shown results the sum may go on), or the likeliest option is the result. For write also
    `first`: the first number anywhere in the answer is the result. For mark, accuracy is the mean over the places, and
    `exact` is 1 if all are right. Chance on the circle: 1 / m. On the line: (2 m - 1) / m^2, 0.19 of ten numbers, the
    best guess from the last term alone, as a term d leaves m - |d| results. Sample i has the same examples and numbers
    for every `ask`; a larger room only removes the last terms.

    Args:
        ask: write, choose (the likeliest result) or mark (teacher-forced, at every shown result of the question; with
            shown=false at the last one); marks need results of one token each.
        shown: show every result of the question; otherwise only those of the examples.
        wrap: whether numbers wrap around, so that no part of the text tells anything of the result (the default up to
            version 1), or stay between their ends, as in the survey.
        numbers: results are 0 to numbers - 1; at most 10.
        explained: begin with the rule.
        shots: number of examples, the same for every length.
        shot_terms: terms per example.
        room: tokens to write; None: those of a result and four more.
        chat: use the model's chat template; not for marks.
    """

    form: ClassVar[tuple[str, ...]] = ("ask", "room", "chat")
    version: ClassVar[int] = 2
    ask: str = "write"
    shown: bool = False
    wrap: bool = False
    numbers: int = 10
    explained: bool = True
    shots: int = 2
    shot_terms: int = 4
    room: int | None = None
    chat: bool = False

    def __post_init__(self) -> None:
        if self.ask not in SCORING_NOTES:
            raise ConfigError(f"arithmetic's ask must be one of {', '.join(SCORING_NOTES)}, got {self.ask}")
        if not 2 <= self.numbers <= 10:
            raise ConfigError(f"arithmetic's numbers must be 2 to 10, got {self.numbers}: results are single digits")
        check_at_least("arithmetic", self, shots=0, shot_terms=1, room=1)
        if self.room is not None and self.ask != "write":
            raise ConfigError(f"arithmetic's room is for ask=write, got room={self.room} with ask={self.ask}: drop it")
        if self.chat and self.ask == "mark":
            raise ConfigError("arithmetic's ask=mark needs running text, got chat=true: set ask to write or choose")

    def protocol(self, tokenizer: Tokenizer) -> str:
        """Protocol in words: numbers, results that the text shows, and scoring of the answer."""
        results = f"results modulo {self.numbers}" if self.wrap else f"results between 0 and {self.numbers - 1}"
        seen = "each one shown" if self.shown else "none shown"
        rule = "the rule and " if self.explained else ""
        return (
            f"arithmetic, {results}, {seen}, behind {rule}{self.shots} examples of {self.shot_terms} terms; "
            f"{self.ask}, {SCORING_NOTES[self.ask].format(numbers=self.numbers)}, "
            f"{context_beginning(tokenizer, self.chat)}"
        )

    def outline(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Outline:
        """Sizes of n sums that fill the length, and tokens to write for a result."""
        room, _ = self._space(self._pieces(tokenizer), tokenizer.frame(self.chat), self._header(tokenizer), length)
        return Outline(n, length, max_new_tokens=room if self.ask == "write" else 0)

    def _header(self, tokenizer: Tokenizer) -> Whole:
        """The rule, in tokens."""
        rule = (CIRCLE_RULE if self.wrap else LINE_RULE).format(last=self.numbers - 1) if self.explained else ""
        return tokenizer.encode(rule).ids

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        """One sum per sample, of as many terms as fit."""
        pieces, frame, header = self._pieces(tokenizer), tokenizer.frame(self.chat), self._header(tokenizer)
        return [self._question(pieces, frame, header, length, seed, index) for index in range(n)]

    def score(self, question: AnyQuestion, answer: Answer) -> Sample:
        """Accuracy of the written answer, of the choice, or of the marks."""
        if isinstance(question, Choose):
            return score_choice(question, answer)
        if isinstance(question, ClassifyTokens):
            return score_marks(question, answer)
        assert isinstance(question, Generate) and isinstance(answer, GenerateAnswer)
        result = question.facts["expected"]
        first = re.search(r"-?\d+", answer.text)
        return score_written(
            question,
            answer,
            {
                "accuracy": matching.strict_list_score(self._bare(answer.text), [result], r"\d+"),
                "first": float(first is not None and first[0] == result),
            },
        )

    def _bare(self, text: str) -> str:
        """The answer with further terms as a list, so that they count as wrong; after a shown result without them."""
        text = text.lstrip("= \t\n")
        if self.shown:
            # After shown results the model may go on with the sum, as the text does: that is no second answer.
            text = re.sub(r"^(\d+)[ \t]*[+-].*", r"\1", text)
        return re.sub(r"[+-](?=[ \t]*\d)", ",", text)

    def _question(
        self, pieces: Pieces, frame: Frame, header: Whole, length: int, seed: int, index: int
    ) -> Generate | Choose | ClassifyTokens:
        room, space = self._space(pieces, frame, header, length)
        digit, (_, each) = pieces.digits.shape[1], self._tokens(pieces)
        rng = self.rng(length, seed, index)
        shots = [header]
        for _ in range(self.shots):
            shots += [self._line(pieces, *self._walk(rng, self.shot_terms)), pieces.end]
        results, steps = self._walk(rng, space // each)
        question = self._line(pieces, results, steps)[:-digit]
        # Less than a term is left over: blank lines at the start, far from the question.
        blank = np.repeat(pieces.end, space % each)
        prompt = np.concatenate([frame.before, blank, *shots, question, frame.after])
        asked = self._ask(pieces, prompt, room, results, index)
        places = len(asked.places) if isinstance(asked, ClassifyTokens) else 1
        return replace(asked, shortcut=self._shortcut(pieces, results, len(frame.after), places))

    def _space(self, pieces: Pieces, frame: Frame, header: Whole, length: int) -> tuple[int, int]:
        """The room, and the tokens of all terms of the question; Refused where these hold none."""
        digit = pieces.digits.shape[1]
        room = resolve_max_new_tokens("arithmetic", digit, self.room, 4) if self.ask == "write" else digit
        bare, each = self._tokens(pieces)
        shown = self.shots * (bare + self.shot_terms * each + len(pieces.end))
        # The room holds the result of the question itself, so its line counts without it.
        space = length - sum(map(len, [frame.before, header, frame.after])) - shown - (bare - digit) - room
        check_length("arithmetic", length - space + each, length)
        return room, space

    def _ask(
        self, pieces: Pieces, prompt: Whole, room: int, results: Whole, index: int
    ) -> Generate | Choose | ClassifyTokens:
        """The question for the result that follows the prompt."""
        result, terms = int(results[-1]), len(results) - 1
        facts = {"expected": str(result), "terms": terms, "needed": self._needed_numbers(results)}
        known: dict[str, Any] = {"index": index, "cluster": str(index), "facts": facts}
        if self.ask == "choose":
            return Choose(**known, prompt=prompt, options=tuple(pieces.digits), expected=result, guess=self._chance)
        if self.ask == "mark":
            tokens, numbers = np.append(prompt, pieces.digits[result]), pieces.digits[:, 0]
            shown = terms if self.shown else 1
            # Results stand one term apart, the last one behind the prompt.
            places = len(prompt) - self._tokens(pieces)[1] * np.arange(shown)[::-1]
            return ClassifyTokens(**known, tokens=tokens, places=places, options=numbers, guess=self._chance)
        return Generate(**known, prompt=prompt, max_new_tokens=room, answer=str(result), chance=self._chance)

    def _walk(self, rng: np.random.Generator, terms: int) -> tuple[Whole, Whole]:
        """Running results [terms + 1], from the first number on, and the terms between them."""
        drawn = rng.integers(self.numbers, size=terms + 1)
        if not self.wrap:
            # On the line each term is the step to an independent result.
            return drawn, np.diff(drawn)
        # On the circle terms are independent, and results follow modulo m.
        steps = drawn[1:] + self._least
        return (drawn[0] + np.concatenate([[0], steps.cumsum()])) % self.numbers, steps

    @property
    def _least(self) -> int:
        """The lowest term. On the line terms go up to its negative; on the circle there are `numbers` of them."""
        return -((self.numbers - 1) // 2) if self.wrap else 1 - self.numbers

    @property
    def _chance(self) -> float:
        """Accuracy of the best guess from the last term: a term d, of m - |d| in m^2, leaves m - |d| results."""
        return 1 / self.numbers if self.wrap else (2 * self.numbers - 1) / self.numbers**2

    def _needed_numbers(self, results: Whole) -> int:
        """Count of numbers at the end of the text that determine the result."""
        if self.shown:
            return 2
        if self.wrap:
            return len(results)
        # From the end: once the running sums span 0 to m - 1, only one result is possible.
        back = results[::-1]
        spans = np.maximum.accumulate(back) - np.minimum.accumulate(back)
        determined = np.flatnonzero(spans == self.numbers - 1)
        return int(determined[0]) if len(determined) else len(results)

    def _shortcut(self, pieces: Pieces, results: Whole, after: int, places: int) -> tuple[tuple[int, float], ...]:
        """Steps of a reader of the last terms, of whom all results that they leave are as likely.

        Args:
            pieces: of the lines.
            results: the first number and all results.
            after: tokens of the prompt behind the question.
            places: results asked for, where all are shown.
        """
        digit, (_, each) = pieces.digits.shape[1], self._tokens(pieces)
        last = after + len(pieces.equals)
        known, guess = last + digit + each * (len(results) - 1), 1 / self.numbers
        if self.shown:
            sizes = np.zeros(places) if self.wrap else np.abs(np.diff(results)[-places:])
            term = (last + pieces.steps.shape[1], float(np.mean(1 / (self.numbers - sizes))))
            return (0, guess), term, (after + each, 1.0)
        if self.wrap:
            return (0, guess), (known, 1.0)
        back = results[::-1]
        spans = np.maximum.accumulate(back) - np.minimum.accumulate(back)
        widened = np.flatnonzero(np.diff(spans)) + 1
        terms = [(last + int(terms) * each, float(1 / (self.numbers - spans[terms]))) for terms in widened]
        return (0, guess), *terms, (known, 1.0)

    def _line(self, pieces: Pieces, results: Whole, steps: Whole) -> Whole:
        """Tokens of a sum, up to its result."""
        digits, terms = pieces.digits[results], pieces.steps[steps - self._least]
        if not self.shown:
            return np.concatenate([digits[0], terms.reshape(-1), pieces.equals, digits[-1]])
        equals = np.tile(pieces.equals, (len(steps), 1))
        return np.concatenate([digits[0], np.hstack([terms, equals, digits[1:]]).reshape(-1)])

    def _tokens(self, pieces: Pieces) -> tuple[int, int]:
        """Tokens of a line without terms, and tokens per term."""
        digit, step, answer = pieces.digits.shape[1], pieces.steps.shape[1], len(pieces.equals) + pieces.digits.shape[1]
        return (digit, step + answer) if self.shown else (digit + answer, step)

    def _pieces(self, tokenizer: Tokenizer) -> Pieces:
        """The parts of lines as tokens; Refused if their number of tokens reveals which number or term they are."""
        # Each piece is tokenized behind a new line: at the start of a text many tokenizers add a blank.
        behind = len(tokenizer.encode("\n").ids)
        least, count = self._least, self.numbers if self.wrap else 2 * self.numbers - 1
        terms = [f" {term:+d}" for term in range(least, least + count)]
        written = [*map(str, range(self.numbers)), *terms, " ="]
        found = [tokenizer.encode(f"\n{piece}").ids[behind:] for piece in written]
        digits, steps = found[: self.numbers], found[self.numbers : -1]
        for what, rows in (("numbers", digits), ("terms", steps)):
            sizes = sorted({len(row) for row in rows})
            if len(sizes) > 1:
                need = f"arithmetic needs {what} of equally many tokens, got {sizes[0]} to {sizes[-1]}"
                raise Refused(f"{need}: take another tokenizer")
            if len({tuple(row) for row in rows}) < len(rows):
                raise Refused(f"arithmetic needs {what} with different tokens, got equal ones: take another tokenizer")
        if self.ask == "mark" and len(digits[0]) > 1:
            raise Refused(f"arithmetic's ask=mark needs numbers of 1 token, got {len(digits[0])}: set ask=choose")
        return Pieces(np.stack(digits), np.stack(steps), found[-1], tokenizer.encode("\n").ids[-1:])
