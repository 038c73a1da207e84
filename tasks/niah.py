"""Needles in a haystack: values hidden in a text under their keys, and asked for at its end."""

import itertools
import math
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lexbench import (
    Answer,
    AnyQuestion,
    Choose,
    Chosen,
    Corpus,
    Refused,
    Sample,
    Task,
    Tokenizer,
    Tokens,
    Write,
    Written,
)
from lexbench.taskkit import haystack, matching, sampling
from lexbench.taskkit.perplexity import encoded_corpus
from lexbench.taskkit.scoring import score_choice, score_written

HEADER = "Remember the special magic {kind}s in this text.\n"
NEEDLE = " One of the special magic {kind}s for {key} is: {value}."
ASK_ONE = "\nWhat is the special magic {kind} for {keys}?"
ASK_SEVERAL = "\nWhat are the special magic {kind}s for {keys}?"
PREFIX_ONE = "The special magic {kind} for {keys} is:"
PREFIX_SEVERAL = "The special magic {kind}s for {keys} are:"
MARGIN = 4
"""Tokens to write for each value beyond those of the answer."""


@dataclass(frozen=True)
class Kind:
    """What keys and values are made of: strings by number."""

    count: int
    spell: Callable[[int], str]
    item: str
    """Regular expression of one, in lower case."""


KINDS = {
    "number": Kind(9 * 10**6, lambda number: str(10**6 + number), r"\d+"),
    "uuid": Kind(2**128, lambda number: str(uuid.UUID(int=number)), r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
    "word": Kind(
        len(sampling.ADJECTIVES) * len(sampling.NOUNS),
        lambda number: (
            f"{sampling.ADJECTIVES[number // len(sampling.NOUNS)]}-{sampling.NOUNS[number % len(sampling.NOUNS)]}"
        ),
        r"[a-z]+-[a-z]+",
    ),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Hidden:
    """What one sample hides and asks, at whatever length."""

    index: int
    keys: list[str]
    values: list[str]
    """Those asked for, in the order of their keys."""
    needles: list[Tokens]
    """Theirs, in the same order; without tokens in the control."""
    others: list[tuple[str, Tokens]]
    """Values that are not asked for, with their needles."""
    more: Iterator[tuple[str, Tokens]]
    """Still others, without end."""
    lead: Tokens
    """What stands before the haystack."""
    ask: Tokens
    """What stands behind it."""
    answer: str
    room: int

    @property
    def least(self) -> int:
        """Tokens without any haystack."""
        needles = [*self.needles, *(needle for _, needle in self.others)]
        return len(self.lead) + sum(map(len, needles)) + len(self.ask) + self.room


@dataclass(frozen=True)
class Niah(Task):
    """Find values by their keys in a long text (the retrieval family of RULER, Hsieh et al., arXiv 2404.06654).

        Remember the special magic numbers in this text.
        The grass is green. ... One of the special magic numbers for brave-otter is: 4021377. ... back again.
        What is the special magic number for brave-otter? The special magic number for brave-otter is:

    and the model writes " 4021377". The form of the needle is RULER's, all other words are our own.

    Held constant over lengths: of sample i everything but the haystack. Its keys, values, needles, question and room,
    the share of the text before each needle, and the place where running text begins are the same ones at every length
    (they follow from seed and index), and the haystack grows at its end. With haystack=needles, RULER's form of
    multikey_2 and 3, the other needles are the haystack, so that their number grows with the length; for a fixed number
    take noise or text with `distractors`. Keys and values are random, and all of a sample's are distinct. The least
    length is the most that any of the n samples needs, so near it n decides whether a length is refused.

    Depth: the share of the text, the needle itself not counted, that stands before the first needle asked for.
    Sample i's is drawn from part i modulo `strata`, so that all parts have equally many; the needle stands at the
    nearest end of a sentence, of that part if there is one, and the depth as realised is recorded. All other needles
    stand anywhere, each place as likely. So a heatmap by depth reads: score given that a needle asked for stands here
    and others anywhere. By the mean of several depths it would not, as one at each end is no needle in the middle.

    Scores: `accuracy`, strict: the answer begins with a list of exactly the values asked for, in any order; `contains`,
    RULER's string_match_all: the share of them that occur anywhere in what was written. Chance is the likelier of two
    guesses: any values at all; or, where other keys stand in the text, all values of any `queries` of its keys.

    Args:
        corpus: of the running text; used with haystack=text only.
        haystack: noise (the usual five sentences), text (of the corpus), or needles (of other keys, as many as fit, the
            rest noise).
        key_kind: word (an adjective and a noun), number (7 digits) or uuid.
        value_kind: likewise.
        values: of each key; all of them are asked for.
        queries: keys asked for.
        distractors: other keys, with as many values each, that stand in noise or text and are not asked for.
        strata: depths are stratified into this many equal parts.
        room: tokens to write; None: those of the answer, and four more for each value.
        chat: ask in the model's chat template; the beginning of the answer stands behind it.
        options: choose the answer by likelihood among so many values, first those in the text, then any others; all
            have equally many tokens. In the control none is in the text. None: the model writes.
        needle: False is the control: the same without the needles asked for, where nobody can know.
    """

    form: ClassVar[tuple[str, ...]] = ("needle", "room", "chat")
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

    def __post_init__(self) -> None:
        for name, choices in (
            ("haystack", ("noise", "text", "needles")),
            ("key_kind", tuple(KINDS)),
            ("value_kind", tuple(KINDS)),
        ):
            if getattr(self, name) not in choices:
                raise ValueError(f"niah's {name} must be one of {', '.join(choices)}, got {getattr(self, name)}")
        for name, least in (
            ("values", 1),
            ("queries", 1),
            ("distractors", 0),
            ("strata", 1),
            ("room", 1),
            ("options", 2),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"niah's {name} must be at least {least}, got {value}")
        if self.options and self.values * self.queries > 1:
            asked = f"values={self.values} and queries={self.queries}"
            raise ValueError(f"niah's options are for one value asked for, got {asked}: leave options out")
        if self.options and self.room:
            raise ValueError(f"niah writes nothing with options, got room={self.room}: leave it out")
        if self.haystack == "needles" and self.distractors:
            fill = f"haystack=needles takes as many as fit, got distractors={self.distractors}"
            raise ValueError(f"niah with {fill}: set haystack=noise or text")
        if self.haystack != "text":
            object.__setattr__(self, "corpus", None)
        elif self.corpus is None:
            raise ValueError("niah with haystack=text needs a corpus, got none: give one or set haystack=noise")

    def protocol(self, tokenizer: Tokenizer) -> str:
        """One line: what is hidden where, what is asked, how it is scored."""
        asked = f"keys asked {self.queries} ({self.key_kind}), values a key {self.values} ({self.value_kind})"
        where = {"text": "running text", "needles": "other needles"}.get(self.haystack, self.haystack)
        others = "as many as fit, more at greater length" if self.haystack == "needles" else self.distractors
        control = "" if self.needle else ", control without the needles"
        room = f"{self.room}" if self.room else f"of the answer and {MARGIN} tokens a value"
        written = f"strict: the answer begins with exactly the values, in any order, greedy, room {room}"
        scored = f"the likeliest of {self.options} values of equally many tokens" if self.options else written
        chat = "chat template, " if self.chat else ""
        start = "BOS" if tokenizer.prefix else "no BOS"
        return f"needles in {where}: {asked}, other keys {others}{control}; {scored}; {chat}{start}"

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        """Prompts of exactly length - room tokens, one a sample."""
        samples = [self._hidden(tokenizer, seed, index) for index in range(n)]
        least = max(sample.least for sample in samples)
        if length < least:
            raise Refused(f"niah needs at least {least} tokens, asked for {length}: raise length")
        return [self._question(tokenizer, length, seed, sample) for sample in samples]

    def _hidden(self, tokenizer: Tokenizer, seed: int, index: int) -> Hidden:
        rng = self.rng("needles", seed, index)
        strings = {kind: _distinct(kind, rng) for kind in (self.key_kind, self.value_kind)}
        values = strings[self.value_kind]
        if self.options:
            values = sampling.alike(tokenizer, values, f"niah finds no further {self.value_kind}", "lower options")
        keys = list(itertools.islice(strings[self.key_kind], self.queries))
        pairs = [(key, next(values)) for key in keys for _ in range(self.values)]
        more = self._more(tokenizer, strings[self.key_kind], values)
        needles = [self._needle(tokenizer, *pair) if self.needle else np.empty(0, np.int64) for pair in pairs]
        answer = " " + ", ".join(value for _, value in pairs)
        written = len(tokenizer.encode(answer).ids)
        room = self.room or written + (0 if self.options else MARGIN * len(pairs))
        if room < written:
            raise Refused(f"niah's answer has {written} tokens, its room {room}: raise room")
        lead, ask = self._around(tokenizer, keys)
        return Hidden(
            index=index,
            keys=keys,
            values=[value for _, value in pairs],
            needles=needles,
            others=list(itertools.islice(more, 1 if self.haystack == "needles" else self.distractors * self.values)),
            more=more,
            lead=lead,
            ask=ask,
            answer=answer,
            room=room,
        )

    def _more(self, tokenizer: Tokenizer, keys: Iterator[str], values: Iterator[str]) -> Iterator[tuple[str, Tokens]]:
        """Values of keys that are not asked for, with their needles; one a key where they are the haystack."""
        for key in keys:
            for value in itertools.islice(values, self._each):
                yield value, self._needle(tokenizer, key, value)

    @property
    def _each(self) -> int:
        """Values of each key that is not asked for."""
        return 1 if self.haystack == "needles" else self.values

    def _needle(self, tokenizer: Tokenizer, key: str, value: str) -> Tokens:
        return tokenizer.encode(NEEDLE.format(kind=self.value_kind, key=key, value=value)).ids

    def _around(self, tokenizer: Tokenizer, keys: list[str]) -> tuple[Tokens, Tokens]:
        """Tokens before the haystack and behind it."""
        frame = tokenizer.frame(self.chat)
        one = len(keys) * self.values == 1
        words = {"kind": self.value_kind, "keys": " and ".join(filter(None, [", ".join(keys[:-1]), keys[-1]]))}
        ask = (ASK_ONE if one else ASK_SEVERAL).format(**words)
        prefix = (PREFIX_ONE if one else PREFIX_SEVERAL).format(**words)
        behind = [ask, prefix] if self.chat else [ask, f" {prefix}"]
        question, beginning = (tokenizer.encode(text).ids for text in behind)
        header = tokenizer.encode(HEADER.format(**words)).ids
        return np.concatenate([frame.before, header]), np.concatenate([question, frame.after, beginning])

    def _question(self, tokenizer: Tokenizer, length: int, seed: int, hidden: Hidden) -> Write | Choose:
        fixed = [hidden.lead, hidden.ask, *hidden.needles]
        body, depths, others, name = self._body(tokenizer, length - hidden.room - sum(map(len, fixed)), seed, hidden)
        prompt = np.concatenate([hidden.lead, body, hidden.ask])
        facts = {"expected": hidden.values, "keys": hidden.keys, "depth": depths[0], "depths": depths}
        if self.options:
            options, place = self._choices(tokenizer, seed, hidden, others)
            return Choose(index=hidden.index, cluster=name, prompt=prompt, options=options, expected=place, facts=facts)
        return Write(
            index=hidden.index,
            cluster=name,
            prompt=prompt,
            room=hidden.room,
            answer=hidden.answer,
            chance=self._chance(len(others) // self._each),
            facts=facts,
        )

    def _body(
        self, tokenizer: Tokenizer, space: int, seed: int, hidden: Hidden
    ) -> tuple[Tokens, list[float], list[str], str]:
        """The haystack with all needles, the depths of those asked for, the other values in it, and its name.

        `space` is for all but the needles asked for.
        """
        rng = self.rng("places", seed, hidden.index)
        depth = haystack.stratified(hidden.index, self.strata, rng)
        others = list(hidden.others)
        left = space - sum(len(needle) for _, needle in others)
        if self.haystack == "needles":
            while len((other := next(hidden.more))[1]) <= left:
                others.append(other)
                left -= len(other[1])
        lines = [needle for _, needle in others]
        if self.corpus is not None:
            body = haystack.text(encoded_corpus(self.corpus, tokenizer), left, rng)
        else:
            body = haystack.noise(tokenizer, left, str(hidden.index))
        if self.haystack == "needles":
            body, lines = haystack.joined(lines, body), []
        places: list[int] = []
        for needle in [*lines, *hidden.needles[1:]]:
            body, place = haystack.put(body, needle, rng.random())
            places = [each + len(needle) * (each >= place) for each in places] + [place]
        first = hidden.needles[0]
        body, place = haystack.put(body, first, depth, self.strata)
        places = [place, *(each + len(first) * (each >= place) for each in places[len(lines) :])]
        rest = [max(1, len(body.tokens) - len(needle)) for needle in hidden.needles]
        depths = [place / tokens for place, tokens in zip(places, rest, strict=True)]
        return body.tokens, depths, [value for value, _ in others], body.name

    def _choices(
        self, tokenizer: Tokenizer, seed: int, hidden: Hidden, others: list[str]
    ) -> tuple[tuple[Tokens, ...], int]:
        """Tokens of the options, first those of other values in the text, in any order; and the right one's place.

        In the control the right one is not in the text, so no other is: having been read tells nothing.
        """
        rng, wrong = self.rng("options", seed, hidden.index), (self.options or 0) - 1
        place = int(rng.integers(wrong + 1))
        drawn = [others[place] for place in rng.permutation(len(others))[: wrong if self.needle else 0]]
        drawn += [value for value, _ in itertools.islice(hidden.more, wrong - len(drawn))]
        values = [*drawn[:place], *hidden.values, *drawn[place:]]
        return tuple(tokenizer.encode(f" {value}").ids for value in values), place

    def _chance(self, others: int) -> float:
        """Of guessing all values asked for: any at all, or those of any keys in the text if it has other keys."""
        anything = 1 / math.comb(KINDS[self.value_kind].count, self.values * self.queries)
        keys = 1 / math.comb(self.queries + others, self.queries)
        return max(anything, keys) if others and self.needle else anything

    def score(self, question: AnyQuestion, answer: Answer) -> Sample:
        """Strict and official accuracy of what was written, or accuracy of the choice."""
        expected, depth = question.facts["expected"], question.facts["depth"]
        if isinstance(question, Choose):
            assert isinstance(answer, Chosen)
            return score_choice(question, answer, depth=depth)
        assert isinstance(question, Write) and isinstance(answer, Written)
        return score_written(
            question,
            answer,
            {
                "accuracy": matching.strict(answer.text, expected, KINDS[self.value_kind].item),
                "contains": matching.contains_all(answer.text, expected),
            },
        )


def _distinct(kind: str, rng: np.random.Generator) -> Iterator[str]:
    """All strings of a kind in random order; Refused after the last."""
    count = KINDS[kind].count
    lack = f"niah has {count} different {kind}s, the text needs more: take another kind or lower length"
    return map(KINDS[kind].spell, sampling.distinct(rng, count, lack, wide=True))
