"""Needle in a haystack: find values by their keys in a long text."""

import itertools
import math
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from lexbench import (
    Answer,
    AnyQuestion,
    Choose,
    ConfigError,
    Corpus,
    Generate,
    GenerateAnswer,
    Metric,
    Outline,
    Sample,
    Task,
    Tokenizer,
    Tokens,
)
from lexbench.taskkit import absence, haystack, key_scores, sampling, shortcuts
from lexbench.taskkit.prompt import (
    FixedParts,
    bos_note,
    check_at_least,
    check_count,
    check_haystack,
    check_length,
    fixed_fields,
    outline_of,
    texts_for_sizes,
)
from lexbench.taskkit.scoring import item_scores, score_choice

PROMPT_HEADER = "Remember the special magic {kind}s in this text.\n"
NEEDLE_TEMPLATE = " One of the special magic {kind}s for {key} is: {value}."
ASK_ONE = "\nWhat is the special magic {kind} for {keys}?"
ASK_SEVERAL = "\nWhat are the special magic {kind}s for {keys}?"
ASK_WHETHER = "\nTrue or False: this text has a special magic {kind} for {keys}."
PREFIX_ONE = "The special magic {kind} for {keys} is:"
PREFIX_SEVERAL = "The special magic {kind}s for {keys} are:"
PREFIX_WHETHER = "The answer is"
ANSWER_MARGIN_TOKENS = 4
"""Tokens to write beyond those of the answer, per value."""


@dataclass(frozen=True)
class StringKind:
    """A set of strings from which keys or values are drawn."""

    count: int
    spell: Callable[[int], str]
    item: str
    """Regular expression of one string, in lower case."""


def _compound_word(adjective: int, noun: int) -> str:
    return f"{sampling.ENGLISH_ADJECTIVES[adjective]}-{sampling.ENGLISH_NOUNS[noun]}"


STRING_KINDS = {
    "number": StringKind(9 * 10**6, lambda number: str(10**6 + number), r"\d+"),
    "uuid": StringKind(
        2**128, lambda number: str(uuid.UUID(int=number)), r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    ),
    "word": StringKind(
        len(sampling.ENGLISH_ADJECTIVES) * len(sampling.ENGLISH_NOUNS),
        lambda number: _compound_word(*divmod(number, len(sampling.ENGLISH_NOUNS))),
        r"[a-z]+-[a-z]+",
    ),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class FixedNeedles(FixedParts):
    """The parts of a sample that are the same at every length."""

    keys: list[str]
    values: list[str]
    """The right values, in the order of their keys."""
    needles: list[Tokens]
    """Needles of these values, in the same order; empty in the control, of another key where there is no answer."""
    present: bool
    """Whether the text holds the answer."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FixedText:
    """The parts of a text, and of the questions behind it, that are the same at every length."""

    number: int
    """Number of the text, from 0."""
    asked: list[FixedNeedles]
    others: list[tuple[str, Tokens]]
    """Values of keys that no question asks for, with their needles."""
    strata: int
    """Tokens that the haystack needs at least, one for each stratum; 0 where other needles are the haystack."""
    more: Iterator[tuple[str, Tokens]]
    """Further values of other keys, without end."""

    @property
    def least(self) -> int:
        """Prompt and room with the least haystack, in tokens."""
        return self.bare + self.strata

    @property
    def bare(self) -> int:
        """Prompt and room of the longest question without a haystack, in tokens."""
        needles = [needle for each in self.asked for needle in each.needles]
        return max(each.tokens for each in self.asked) + sum(map(len, [*needles, *(line for _, line in self.others)]))


@dataclass(frozen=True)
class Niah(Task):
    """Find values by their keys in a long text (the niah tasks of RULER, Hsieh et al., arXiv 2404.06654).

        Remember the special magic numbers in this text.
        The grass is green. ... One of the special magic numbers for brave-otter is: 4021377. ... back again.
        What is the special magic number for brave-otter? The special magic number for brave-otter is:

    and the model writes " 4021377". The needle has RULER's form; the other wording is ours.

    Constant over lengths, for each sample: keys, values, needles, question, room, the share of the text before each
    needle, and where running text starts; all follow from seed and index. Only the haystack grows, at its end. With
    haystack=needles (RULER's multikey_2 and multikey_3) the haystack consists of other needles, so their number grows
    with the length; for a fixed number use noise or text with `distractors`. Keys and values are random and distinct
    within a sample. The least length is the largest need among the n samples, with a token of haystack for each
    stratum; so near it n decides whether a length is refused.

    Depth: the share of the text before the first queried needle, without that needle. It is drawn from stratum i modulo
    `strata` for sample i, so all strata get equally many samples. The needle is inserted at the nearest end of a
    sentence in the stratum, or inside a sentence if none ends there: on short texts. It leaves the stratum only where
    another needle fills it, as on short texts of haystack=needles. The realised depth is recorded. All other needles
    have uniform places. So a heatmap by depth shows the score when one queried needle is at that depth and the others
    are anywhere. (A mean depth of several needles would mislead: one at each end would count as the middle.)

    Several questions behind one text, which is read once: each asks for keys of its own, and the needles of all of them
    are in the text. To each question the keys of the others are distractors, and count as such, so with
    questions_per_text of at most 1 + `distractors` (of one key each) no text is harder. The questions of a text are one
    cluster, and their first needles stand in strata spread evenly over it. Where a question is shorter in tokens than
    the longest one of its text, some more haystack fills its length, behind all needles.

    Scores: `accuracy` (copied whole): the answer begins with a list of exactly the right values, in any order.
    `contains`: the share of them that occur anywhere in the answer (RULER's string_match_all). `in_place`, `reached`,
    `chosen` and `forced` of written answers: `lexbench.taskkit.key_scores`. Chance of `accuracy` is the better of two
    guesses: any values of the kind (with `options`, any option), or, if other keys are in the text, all values of any
    `queries` of its keys. Without other keys the queried values are the only ones of the form in the text: a model that
    copies any value from there is right without reading the key, and so is one that prefers the option that it has
    seen. Chance does not cover this; `distractors=3` does, as then the key decides.

    Args:
        corpus: of the running text, for haystack=text.
        haystack: noise (the usual five sentences), text (of the corpus), or needles (as many needles of other keys as
            fit, then noise).
        key_kind: word (an adjective and a noun), number (7 digits) or uuid.
        value_kind: the same choices.
        values: per key; the question asks for all of them.
        queries: keys in the question.
        distractors: other keys in noise or text, each with `values` values.
        strata: stratify depths into this many equal parts.
        room: tokens to write; None: those of the answer and four more per value.
        chat: use the model's chat template; the first words of the answer come after it.
        options: choose by likelihood among this many values with equally many tokens, taken from the text first; in the
            control none of them is in the text. None: the model writes.
        needle: False is the control: the same prompt without the queried needles, so that no model can know.
        questions_per_text: questions behind each text; n counts questions.
        absent: write or choose: half of the questions ask for a key that the text has not (`lexbench.taskkit.absence`);
            the needle of another key stands in its place. Of one key and value. None: all have an answer.
    """

    form: ClassVar[tuple[str, ...]] = ("needle", "room", "chat")
    version: ClassVar[int] = 3
    questions_version: ClassVar[int] = 2
    metrics: ClassVar[tuple[Metric, ...]] = key_scores.KEY_METRICS
    corpus: Corpus | None = None
    haystack: str = "noise"
    key_kind: str = "word"
    value_kind: str = "number"
    values: int = 1
    queries: int = 1
    distractors: int = 0
    strata: int = 8
    room: int | None = None
    chat: bool = False
    options: int | None = None
    needle: bool = True
    questions_per_text: int = field(default=1, metadata={"new": True})
    absent: str | None = field(default=None, metadata={"new": True})

    def __post_init__(self) -> None:
        check_haystack("niah", self, ("noise", "text", "needles"))
        absence.check_absent(self)
        for name in ("key_kind", "value_kind"):
            if getattr(self, name) not in STRING_KINDS:
                raise ConfigError(f"niah's {name} must be one of {', '.join(STRING_KINDS)}, got {getattr(self, name)}")
        at_least = {"values": 1, "queries": 1, "distractors": 0, "strata": 1, "room": 1, "options": 2}
        check_at_least("niah", self, **at_least, questions_per_text=1)
        alone, verb = ("options", "need") if self.options else ("absent" if self.absent else None, "needs")
        if alone and self.values * self.queries > 1:
            several = f"values={self.values} and queries={self.queries}"
            raise ConfigError(f"niah's {alone} {verb} values=1 and queries=1, got {several}: leave {alone} out")
        if self.options and self.room:
            raise ConfigError(f"niah writes nothing with options, got room={self.room}: leave it out")
        if self.haystack == "needles" and self.distractors:
            raise ConfigError(
                f"niah with haystack=needles takes as many needles as fit, got distractors={self.distractors}: "
                "set haystack=noise or text"
            )
        if self.haystack == "needles" and self.values > 1:
            raise ConfigError(
                f"niah with haystack=needles gives every other key one value, got values={self.values}: the key with "
                "several would need no question; set values=1, or haystack=noise or text"
            )

    @property
    def edition(self) -> int:
        """The version; choices, and questions that may have no answer, have that of their form (`absence.edition`)."""
        return absence.edition(self, self.questions_version) if self.absent or self.options else self.version

    @property
    def _others(self) -> int:
        """Other keys in noise or text, for each question: those of the other questions of the text count."""
        return max(self.distractors, self.queries * (self.questions_per_text - 1))

    @property
    def _unasked_keys(self) -> int:
        """Keys in noise or text that no question of the text asks for."""
        return self._others - self.queries * (self.questions_per_text - 1)

    @property
    def first_scored_edition(self) -> int:
        """That of the questions, whose later versions only added scores; with `absent` another answer became right."""
        return self.edition if self.absent else self.questions_version

    def protocol(self, tokenizer: Tokenizer) -> str:
        """Protocol in words: needles, haystack, scoring of the answer."""
        keys = f"keys asked {self.queries} ({self.key_kind}), values a key {self.values} ({self.value_kind})"
        where = {"text": "running text", "needles": "other needles"}.get(self.haystack, self.haystack)
        others = "as many as fit, more at greater length" if self.haystack == "needles" else self._others
        control = "" if self.needle else ", control without the needles"
        room = f"{self.room}" if self.room else f"of the answer and {ANSWER_MARGIN_TOKENS} tokens a value"
        written = f"strict: the answer begins with exactly the values, in any order, greedy, room {room}"
        written += "" if self.absent else key_scores.PROTOCOL_WORDS
        scored = f"the likeliest of {self.options} values of equally many tokens" if self.options else written
        chat = "chat template, " if self.chat else ""
        start = bos_note(tokenizer, self.chat)
        several = f", {self.questions_per_text} questions behind each text" if self.questions_per_text > 1 else ""
        lacking = absence.describe_form(self)
        return f"needles in {where}: {keys}, other keys {others}{several}{lacking}{control}; {scored}; {chat}{start}"

    def outline(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Outline:
        """Sizes of n questions, estimated from those of the first texts."""
        self._check_counts(length)
        texts = [self._fixed_parts(tokenizer, seed, text) for text in texts_for_sizes(n, self.questions_per_text)]
        check_length("niah", max(text.least for text in texts), length)
        return outline_of([text.asked for text in texts], length, n, writes=self._writes)

    @property
    def _writes(self) -> bool:
        """Whether the model writes its answers; else it chooses."""
        return not self.options and self.absent != "choose"

    def _check_counts(self, length: int) -> None:
        """Refused where a text of the length cannot hold so many needles."""
        asked = self.queries * self.questions_per_text
        check_count("niah", self.values * (asked + self._unasked_keys), "needles", length)
        check_count("niah", self.options or 0, "options", length)

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        """One prompt of exactly length - room tokens per sample."""
        self._check_counts(length)
        texts = [self._fixed_parts(tokenizer, seed, text) for text in range(-(-n // self.questions_per_text))]
        check_length("niah", max(text.least for text in texts), length)
        return [question for text in texts for question in self._questions_of(tokenizer, length, seed, text)][:n]

    def _fixed_parts(self, tokenizer: Tokenizer, seed: int, number: int) -> FixedText:
        rng = self.rng("needles", seed, number)
        strings = {kind: _shuffled_strings(kind, rng) for kind in (self.key_kind, self.value_kind)}
        values = strings[self.value_kind]
        if self.options:
            values = sampling.keep_usual_size(
                tokenizer, values, f"niah finds no further {self.value_kind}", "lower options"
            )
        count = self.questions_per_text
        keys = list(itertools.islice(strings[self.key_kind], self.queries * count))
        pairs = [(key, next(values)) for key in keys for _ in range(self.values)]
        more = self._more(tokenizer, strings[self.key_kind], values)
        size = len(pairs) // count
        groups = [pairs[first : first + size] for first in range(0, len(pairs), size)]
        return FixedText(
            number=number,
            asked=[
                self._fix_question(tokenizer, seed, number * count + each, group, more)
                for each, group in enumerate(groups)
            ],
            others=list(itertools.islice(more, 1 if self.haystack == "needles" else self._unasked_keys * self.values)),
            strata=0 if self.haystack == "needles" else self.strata,
            more=more,
        )

    def _fix_question(
        self,
        tokenizer: Tokenizer,
        seed: int,
        index: int,
        pairs: list[tuple[str, str]],
        more: Iterator[tuple[str, Tokens]],
    ) -> FixedNeedles:
        """The question for these keys, each with its values; where the text lacks the answer, `more` has a needle."""
        keys, values = list(dict(pairs)), [value for _, value in pairs]
        needles = [self._needle(tokenizer, *pair) if self.needle else np.empty(0, np.int64) for pair in pairs]
        answers, present = [f" {', '.join(values)}"], True
        if self.absent:
            present = absence.has_answer(self, seed, index)
            answers = absence.answers(self, answers[0], present)
            needles = needles if present else [next(more)[1]]
        spare = ANSWER_MARGIN_TOKENS * len(pairs) if self._writes else 0
        return FixedNeedles(
            **fixed_fields(self, tokenizer, index, *self._word_question(keys), answers, spare),
            keys=keys,
            values=values,
            needles=needles,
            present=present,
        )

    def _more(self, tokenizer: Tokenizer, keys: Iterator[str], values: Iterator[str]) -> Iterator[tuple[str, Tokens]]:
        """Values of other keys, with their needles."""
        for key in keys:
            for value in itertools.islice(values, self.values):
                yield value, self._needle(tokenizer, key, value)

    def _needle(self, tokenizer: Tokenizer, key: str, value: str) -> Tokens:
        return tokenizer.encode(NEEDLE_TEMPLATE.format(kind=self.value_kind, key=key, value=value)).ids

    def _word_question(self, keys: list[str]) -> tuple[list[str], str, str]:
        """Headers, question, and first words of the answer."""
        one = len(keys) * self.values == 1
        words = {"kind": self.value_kind, "keys": " and ".join(filter(None, [", ".join(keys[:-1]), keys[-1]]))}
        ask = (ASK_ONE if one else ASK_SEVERAL).format(**words)
        prefix = (PREFIX_ONE if one else PREFIX_SEVERAL).format(**words)
        if self.absent == "choose":
            ask, prefix = ASK_WHETHER.format(**words), PREFIX_WHETHER
        return [PROMPT_HEADER.format(**words), *absence.headers(self)], ask, f" {prefix}"

    def _questions_of(
        self, tokenizer: Tokenizer, length: int, seed: int, text: FixedText
    ) -> Iterator[Generate | Choose]:
        """All questions behind one text."""
        body, more, depths, others, name = self._body(tokenizer, length - text.bare, seed, text)
        longest = max(each.tokens for each in text.asked)
        known = [value for each in text.asked for value in each.values] if self.needle else []
        for fixed, own in zip(text.asked, depths, strict=True):
            whole = [body, more[: longest - fixed.tokens]]
            facts = {"expected": fixed.values, "keys": fixed.keys, "depth": own[0], "depths": own}
            rest = [value for value in known if value not in fixed.values] + others
            if self.absent:
                yield absence.ask(self, tokenizer, fixed, whole, name, fixed.present, facts)
            elif self.options:
                choice = fixed.choose(whole, name, *self._choices(tokenizer, seed, fixed, rest, text.more), facts)
                [needed] = self._needed_tokens(tokenizer, choice, fixed, others=bool(rest)) or [None]
                yield shortcuts.once_read_or_struck_out(choice, needed)
            else:
                question = fixed.write(whole, name, self._chance(len(rest) // self.values), facts)
                places = self._needed_tokens(tokenizer, question, fixed, others=bool(rest))
                question = shortcuts.once_read(question, places, self._chance(0))
                size = len(fixed.values)
                # In the control the right value is not in the text, so the wrong ones must not be either.
                last = len(rest) - size if self.needle else -1
                wrong = [rest[first : first + size] for first in range(0, last + 1, size)]
                rng = self.rng("options", seed, fixed.index)
                yield key_scores.with_options(question, tokenizer, wrong, self._draw_answer, rng)

    def _needed_tokens(
        self, tokenizer: Tokenizer, question: Generate | Choose, fixed: FixedNeedles, others: bool
    ) -> list[int | None]:
        """Last tokens of the prompt from which on each value is read, with its key where `others` are in the text."""
        if not self.needle:
            return []
        told = np.repeat(fixed.keys, self.values) if others else fixed.values
        return [
            shortcuts.tokens_from(question.prompt, needle, tokenizer.encode(f" {each}").ids)
            for needle, each in zip(fixed.needles, told, strict=True)
        ]

    def _draw_answer(self, rng: np.random.Generator) -> list[str]:
        """Values of the kind, as many as an answer has."""
        kind = STRING_KINDS[self.value_kind]
        return [kind.spell(int.from_bytes(rng.bytes(32)) % kind.count) for _ in range(self.values * self.queries)]

    def _body(
        self, tokenizer: Tokenizer, left: int, seed: int, text: FixedText
    ) -> tuple[Tokens, Tokens, list[list[float]], list[str], str]:
        """The haystack with all needles, more of it for shorter questions, depths, other values in it, and its name.

        Args:
            tokenizer: of the model.
            left: tokens beyond the fixed parts of the longest question.
            seed: of the cell.
            text: its fixed parts.
        """
        rng, count = self.rng("places", seed, text.number), len(text.asked)
        begins = [
            haystack.stratified_depth_in_text(text.number, each, count, self.strata, rng) for each in range(count)
        ]
        others = list(text.others)
        if self.haystack == "needles":
            # In order, until one does not fit; noise fills what is left.
            while len((other := next(text.more))[1]) <= left:
                others.append(other)
                left -= len(other[1])
        lines = [needle for _, needle in others]
        sizes = [each.tokens for each in text.asked]
        filled = haystack.fill_haystack(self.corpus, tokenizer, left + max(sizes) - min(sizes), str(text.number), rng)
        body, more = haystack.cut_haystack(filled, left)
        if self.haystack == "needles":
            body, lines = haystack.join_pieces(lines, body), []
        # The first needle of each question comes last: it stands in its stratum.
        following = [(each, needle) for each, fixed in enumerate(text.asked) for needle in fixed.needles[1:]]
        firsts = [(each, fixed.needles[0]) for each, fixed in enumerate(text.asked)]
        put: list[tuple[int, int, int]] = []
        for each, needle in [*((-1, line) for line in lines), *following, *firsts]:
            first = len(put) >= len(lines) + len(following)
            depth, strata = (begins[each], self.strata) if first else (rng.random(), None)
            body, place = haystack.insert_needle(body, needle, depth, strata)
            # A needle that is inserted before others moves them.
            put = [(one, at + len(needle) * (at >= place), size) for one, at, size in put] + [
                (each, place, len(needle))
            ]
        put = [*put[len(put) - count :], *put[: len(put) - count]]
        # A depth is a share of the text without the needle itself.
        depths = [
            [place / max(1, len(body.tokens) - size) for one, place, size in put if one == each]
            for each in range(count)
        ]
        return body.tokens, more, depths, [value for value, _ in others], body.name

    def _choices(
        self,
        tokenizer: Tokenizer,
        seed: int,
        fixed: FixedNeedles,
        others: list[str],
        more: Iterator[tuple[str, Tokens]],
    ) -> tuple[tuple[Tokens, ...], int]:
        """Tokens of the options in random order, wrong ones from the text if possible; and the right one's place.

        In the control the right value is not in the text, so the wrong ones must not be either.
        """
        rng, wrong = self.rng("options", seed, fixed.index), (self.options or 0) - 1
        # The right option's place is drawn first, so that it does not depend on how many values the text has.
        place = int(rng.integers(wrong + 1))
        drawn = [others[place] for place in rng.permutation(len(others))[: wrong if self.needle else 0]]
        drawn += [value for value, _ in itertools.islice(more, wrong - len(drawn))]
        values = [*drawn[:place], *fixed.values, *drawn[place:]]
        return tuple(tokenizer.encode(f" {value}").ids for value in values), place

    def _chance(self, others: int) -> float:
        """Chance of guessing all right values: any values of the kind, or those of any keys if the text has others."""
        anything = 1 / math.comb(STRING_KINDS[self.value_kind].count, self.values * self.queries)
        keys = 1 / math.comb(self.queries + others, self.queries)
        return max(anything, keys) if others and self.needle else anything

    def score(self, question: AnyQuestion, answer: Answer) -> Sample:
        """Strict and official accuracy of a written answer, or accuracy of the choice."""
        if self.absent:
            return absence.score_absent(question, answer, STRING_KINDS[self.value_kind].item)
        if isinstance(question, Choose):
            return score_choice(question, answer)
        assert isinstance(question, Generate) and isinstance(answer, GenerateAnswer)
        return key_scores.score_keys(
            question, answer, item_scores(question, answer, STRING_KINDS[self.value_kind].item)
        )


def _shuffled_strings(kind: str, rng: np.random.Generator) -> Iterator[str]:
    """All strings of a kind in random order; Refused after the last."""
    count = STRING_KINDS[kind].count
    lack = f"niah has {count} different {kind}s, the text needs more: take another kind or lower length"
    return map(STRING_KINDS[kind].spell, sampling.shuffled_numbers(rng, count, lack, wide=True))
