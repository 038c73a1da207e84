"""Aggregate: a count, a share or an order that only all of very many labelled lines tell."""

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lexbench import (
    Answer,
    AnyQuestion,
    Choose,
    ConfigError,
    Generate,
    GenerateAnswer,
    Outline,
    Refused,
    Sample,
    Task,
    Tokenizer,
    Tokens,
)
from lexbench.taskkit import haystack, matching, sampling
from lexbench.taskkit.people import FIRST_NAMES
from lexbench.taskkit.prompt import (
    FixedParts,
    check_at_least,
    check_length,
    context_beginning,
    outline_of,
    resolve_max_new_tokens,
    texts_for_sizes,
    tokens_around_haystack,
)
from lexbench.taskkit.scoring import score_choice, score_written

TEXT_HEADER = "Each line has a person, a text and a label."
LINE_TEMPLATE = "\n{name} |{text} | {label}"
LINE_LABELS = (
    "sport",
    "music",
    "travel",
    "health",
    "science",
    "weather",
    "food",
    "law",
    "art",
    "money",
    "history",
    "school",
)
ASK_OF_KIND = {
    "order": ("\nWhich label has more lines, {label} or {other}?", " The label with more lines is"),
    "count": ("\nHow many lines have the label {label}?", " The number of lines with the label {label} is"),
    "share": (
        "\nHow many percent of the lines have the label {label}, to the nearest ten?",
        " The percentage of lines with the label {label} is",
    ),
}
"""Question, and first words of the answer."""
ASKED_PERCENTS = range(10, 100, 10)
"""Percent of the lines with the asked label, for counts and shares."""
ORDERED_PERCENTS = (30, 20)
"""Percent of the lines with the more frequent of two labels, and with the less frequent."""
MIN_LINES = 10
SPARE_ANSWER_TOKENS = 4
"""Tokens to write beyond those of the answer."""
SCORE_WHEN_OFF_BY_ONE = 0.75
"""Score of a number that is wrong by one; by two its square, and so on."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FixedAggregate(FixedParts):
    """The parts of a sample that are the same at every length, and the lines without their labels."""

    lines: list[tuple[str, str]]
    """Person and text."""
    labels: list[str]
    """The asked one first; of an order both asked ones."""
    counts: list[int]
    """Lines of each label."""
    expected: str
    options: list[str]


@dataclass(frozen=True)
class Aggregate(Task):
    """Count labels over all lines of a text (the task of Oolong, Bertsch et al., arXiv 2511.02817, with made lines).

        Each line has a person, a text and a label.
        Clara | The grass is green. | sport
        Leo | Here we go. | music
        Clara | The sun is yellow. | sport
        ...
        Which label has more lines, music or sport? The label with more lines is           <- " sport"

    No line tells the answer, and nearly all lines count: needles are everywhere. In Oolong a model must find the label
    of a text by itself, in its harder part; here the label stands in the line, so that only the counting is measured.
    Its generator is not released; lines and wording are ours.

    The lines fill the length, so their number grows with it, and noise before the first one makes the length exact.
    Constant over lengths, for each sample: question, labels, their shares, and the persons and texts of the first
    lines. `ask` is the question:

        order    which of two labels has more lines: 30 % of the lines have the one, 20 % the other
        count    how many lines have a label: a share of 10 to 90 %, in tens, of the lines that there are
        share    how many percent of the lines have a label, to the nearest ten: 10 to 90

    Chance is the best answer that knows question, number of lines and this rule, and reads no label: 1 / 2 for order,
    1 / 9 for count and share. The control, `needle=false`, has other labels in place of the asked ones.

    Scores: `accuracy` (strict), the answer begins with exactly the expected label or number; `nearly`, of numbers
    0.75^|written - expected|, as Oolong scores them, of labels whether the right one occurs and the other does not.

    Models of 135 million parameters and less stay at the floor of `accuracy` in each form
    (`results/reference/tasks_2026.md`), so no suite has this task.

    Args:
        ask: order, count or share.
        labels: different labels in a text, the asked ones included.
        room: tokens to write; None: those of the answer and four more.
        chat: use the model's chat template; the first words of the answer come after it.
        choose: choose by likelihood among all possible answers of equally many tokens; False: the model writes.
        needle: False is the control without the asked labels.
    """

    form: ClassVar[tuple[str, ...]] = ("needle", "room", "chat")
    ask: str = "order"
    labels: int = 4
    room: int | None = None
    chat: bool = False
    choose: bool = False
    needle: bool = True

    def __post_init__(self) -> None:
        if self.ask not in ASK_OF_KIND:
            raise ConfigError(f"aggregate's ask must be one of {', '.join(ASK_OF_KIND)}, got {self.ask}")
        check_at_least("aggregate", self, labels=3, room=1)
        if self.labels > len(LINE_LABELS):
            raise ConfigError(f"aggregate's labels must be at most {len(LINE_LABELS)}, got {self.labels}")
        if self.choose and self.room:
            raise ConfigError(f"aggregate writes nothing with choose, got room={self.room}: leave it out")

    def protocol(self, tokenizer: Tokenizer) -> str:
        """Protocol: the question, the number of labels, and the score."""
        control = "" if self.needle else ", control without the asked labels"
        scored = "the likeliest of all answers" if self.choose else "strict: the answer comes first, greedy"
        return (
            f"{self.ask} over lines of {self.labels} labels that fill the length{control}; {scored}; "
            f"{context_beginning(tokenizer, self.chat)}"
        )

    def outline(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Outline:
        """Sizes of the first questions."""
        asked = [[self._fixed_parts(tokenizer, length, seed, index)] for index in texts_for_sizes(n)]
        return outline_of(asked, length, n, writes=not self.choose)

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        """One text of exactly length - room tokens per sample."""
        fixed = [self._fixed_parts(tokenizer, length, seed, index) for index in range(n)]
        return [self._question(tokenizer, length, seed, each) for each in fixed]

    def _fixed_parts(self, tokenizer: Tokenizer, length: int, seed: int, index: int) -> FixedAggregate:
        rng = self.rng("labels", seed, index)
        known = sampling.values_of_common_size(tokenizer, LINE_LABELS) if self.choose else LINE_LABELS
        if len(known) < self.labels:
            raise Refused(
                f"aggregate has {len(known)} labels of equally many tokens, needs {self.labels}: lower labels, or set "
                "choose=false"
            )
        labels = [known[each] for each in rng.permutation(len(known))[: self.labels]]
        share, turn = int(rng.choice(ASKED_PERCENTS)), rng.permutation(2)
        named = [labels[each] for each in turn] if self.ask == "order" else labels[:1]
        ask, begin = (text.format(label=named[0], other=named[-1]) for text in ASK_OF_KIND[self.ask])
        before, after = tokens_around_haystack(tokenizer, self.chat, [TEXT_HEADER], ask, begin)
        # No text has more lines than tokens.
        longest = {"order": named, "count": [str(length)], "share": [str(ASKED_PERCENTS[-1])]}[self.ask]
        written = max(len(tokenizer.encode(f" {each}").ids) for each in longest)
        room = resolve_max_new_tokens("aggregate", written, self.room, 0 if self.choose else SPARE_ANSWER_TOKENS)
        lines = self._lines(tokenizer, length, len(before) + len(after) + room, self.rng("lines", seed, index), labels)
        counts = self._counts(len(lines), share, rng)
        expected = {"order": labels[0], "count": str(counts[0]), "share": str(share)}[self.ask]
        return FixedAggregate(
            index=index,
            before=before,
            after=after,
            room=room,
            answer=f" {expected}",
            lines=lines,
            labels=labels,
            counts=counts,
            expected=expected,
            options=[str(_part(each, len(lines))) if self.ask == "count" else str(each) for each in ASKED_PERCENTS]
            if self.ask != "order"
            else named,
        )

    def _lines(
        self, tokenizer: Tokenizer, length: int, fixed: int, rng: np.random.Generator, labels: Sequence[str]
    ) -> list[tuple[str, str]]:
        """Persons and texts of as many lines as fit beside `fixed` tokens, whatever their labels; Refused for few."""
        found, tokens = list[tuple[str, str]](), fixed
        while True:
            name, text = (
                FIRST_NAMES[rng.integers(len(FIRST_NAMES))],
                haystack.NOISE_SENTENCES[rng.integers(len(haystack.NOISE_SENTENCES))],
            )
            tokens += max(len(_encode_line(tokenizer, name, text, label)) for label in labels)
            if len(found) < MIN_LINES <= len(found) + 1:
                check_length("aggregate", tokens, length)
            if tokens > length and len(found) >= MIN_LINES:
                return found
            found.append((name, text))

    def _counts(self, lines: int, share: int, rng: np.random.Generator) -> list[int]:
        """Lines of each label: those asked for by their shares, the others by chance."""
        asked = [_part(each, lines) for each in (ORDERED_PERCENTS if self.ask == "order" else (share,))]
        others = self.labels - len(asked)
        return [*asked, *rng.multinomial(lines - sum(asked), [1 / others] * others).tolist()]

    def _question(self, tokenizer: Tokenizer, length: int, seed: int, fixed: FixedAggregate) -> Generate | Choose:
        rng, asked = self.rng("order", seed, fixed.index), 2 if self.ask == "order" else 1
        labels = rng.permutation(np.repeat(fixed.labels, fixed.counts)).tolist()
        if not self.needle:
            others = fixed.labels[asked:]
            labels = [others[rng.integers(len(others))] if each in fixed.labels[:asked] else each for each in labels]
        lines = [_encode_line(tokenizer, *line, label) for line, label in zip(fixed.lines, labels, strict=True)]
        options = [tokenizer.encode(f" {option}").ids for option in fixed.options]
        if self.choose and len({len(option) for option in options}) > 1:
            raise Refused("aggregate's answers differ in tokens here, and fewer are likelier: set task.choose=false")
        answer = len(options[0]) if self.choose else fixed.room
        space = length - len(fixed.before) - len(fixed.after) - answer - sum(map(len, lines))
        body = [haystack.noise_haystack(tokenizer, space, "").tokens, *lines]
        facts = {
            "expected": [fixed.expected],
            "options": fixed.options,
            "lines": len(lines),
            "counts": dict(zip(fixed.labels, fixed.counts, strict=True)),
        }
        cluster = str(fixed.index)
        if self.choose:
            return fixed.choose(body, cluster, options, fixed.options.index(fixed.expected), facts)
        return fixed.write(body, cluster, 1 / len(options), facts)

    def score(self, question: AnyQuestion, answer: Answer) -> Sample:
        """Strict accuracy and nearness of a written answer, or accuracy of the choice."""
        if isinstance(question, Choose):
            return score_choice(question, answer)
        assert isinstance(question, Generate) and isinstance(answer, GenerateAnswer)
        [expected], item = (
            question.facts["expected"],
            matching.one_of_pattern(LINE_LABELS) if self.ask == "order" else r"\d+",
        )
        others = [option for option in question.facts["options"] if option != expected]
        if self.ask == "order":
            found = {word.lower() for word in re.findall(r"\w+", answer.text)}
            nearly = float(expected in found and not found & set(others))
        else:
            number = re.search(r"\d{1,9}", answer.text)
            nearly = SCORE_WHEN_OFF_BY_ONE ** abs(int(number[0]) - int(expected)) if number else 0.0
        scores = {"accuracy": matching.strict_list_score(answer.text, [expected], item), "nearly": nearly}
        return score_written(question, answer, scores)


def _part(percent: int, lines: int) -> int:
    """Lines that are so many percent of all, to the nearest line."""
    return (percent * lines + 50) // 100


@functools.lru_cache(maxsize=1 << 14)
def _encode_line(tokenizer: Tokenizer, name: str, text: str, label: str) -> Tokens:
    """Tokens of a line. Lines of few names, texts and labels fill long texts."""
    return tokenizer.encode(LINE_TEMPLATE.format(name=name, text=text, label=label)).ids
