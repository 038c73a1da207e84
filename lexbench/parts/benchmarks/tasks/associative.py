"""Associative needles: the question names a city, the needle a sight of it; only knowledge joins them."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from lexbench import (
    Answer,
    AnyQuestion,
    Choose,
    ConfigError,
    Corpus,
    Generate,
    Outline,
    Refused,
    Sample,
    Task,
    Tokenizer,
    Tokens,
)
from lexbench.taskkit import absence, haystack, matching, sampling, shortcuts
from lexbench.taskkit.people import FIRST_NAMES
from lexbench.taskkit.prompt import (
    FixedParts,
    check_at_least,
    check_haystack,
    check_length,
    context_beginning,
    fixed_fields,
    outline_of,
    texts_for_sizes,
)
from lexbench.taskkit.scoring import score_choice, score_items

PROMPT_HEADER = "Remember where these people live.\n"
NEEDLE_TEMPLATES = {"association": " {name} lives next to {sight}.", "direct": " {name} lives in {city}, {country}."}
QUESTION_TEMPLATE = "\nWhich of these people has been to {place}?"
ANSWER_BEGINNING = " The one of these people who has been to {place} is"
ASK_WHETHER = "\nTrue or False: one of these people has been to {place}."
BEGIN_WHETHER = " The answer is"
ANSWER_MARGIN_TOKENS = 4
"""Tokens to write beyond those of the answer."""
with Path(__file__).with_name("associative_sights.csv").open(encoding="utf-8", newline="") as _rows:
    SIGHTS = tuple(map(tuple, csv.reader(_rows)))
"""Sight, city, country; no two share a city or a country, and no sight shares a word with its city or country."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FixedPeople(FixedParts):
    """The parts of a sample that are the same at every length."""

    place: str
    name: str
    """Name of the person asked for."""
    needle: Tokens
    """Empty in the control, with another sight where there is no answer."""
    present: bool
    """Whether the text holds the answer."""
    others: list[tuple[str, Tokens]]
    """Names of the people in the text that no question asks for, with their needles."""
    unused: list[str]
    """Names that are not in the text."""

    @property
    def bare(self) -> int:
        """Prompt and room without a haystack and the needles that questions ask for, in tokens."""
        return self.tokens + sum(len(needle) for _, needle in self.others)


@dataclass(frozen=True)
class Associative(Task):
    """Find a person by a place that the text does not name (the idea of NoLiMa, Modarressi et al., arXiv 2502.05167).

        Remember where these people live.
        The grass is green. ... Clara lives next to the Colosseum. ... Leo lives next to the Kremlin. ... back again.
        Which of these people has been to Rome? The one of these people who has been to Rome is

    and the model writes " Clara". Sights, names and wording are ours. No word of the place stands in a needle, so
    matching words finds nothing: the model must know that the Colosseum is in Rome. With hops=2 the question names the
    country, Italy. `link=direct` is the other end: the needle names city and country, the rest is the same; its score
    minus this one's is what the association costs. With `needle=false` the needle is left out, and no model can know.

    Constant over lengths, for each sample: people, sights, needles, question, room, the share of the text before each
    needle, and where running text starts; all follow from seed and index. Only the haystack grows. The people are as
    likely as one another to be asked for, so a guess from the text has the score of chance, 1 / (1 + distractors), and
    of the options, 1 / options. In the control a written guess is among the names that the text lacks. A guess that
    prefers names of the text is covered where `options` is at most 1 + distractors, as all of them stand in the text
    then.

    Several questions behind one text, which is read once: each asks for a person of its own, and these count as
    distractors of one another, so with questions_per_text of at most 1 + distractors no text is harder. The text is one
    cluster. Where a question is shorter in tokens than others of its text, some more haystack fills its length.

    Depth: as in `niah`: stratum i modulo `strata` for sample i, the nearest end of a sentence.

    Scores: `accuracy` (strict): the answer begins with exactly the name. `contains`: the name stands anywhere in it.

    Args:
        corpus: of the running text, for haystack=text.
        haystack: noise (the usual five sentences) or text (of the corpus).
        hops: 1: the question names the sight's city; 2: its country.
        distractors: other people, each at a sight of another city and country.
        strata: stratify depths into this many equal parts.
        room: tokens to write; None: those of the answer and four more.
        chat: use the model's chat template; the first words of the answer come after it.
        options: choose by likelihood among this many names with equally many tokens, from the text first; in the
            control none of them is in the text. None: the model writes.
        link: association, or direct for the control that names city and country.
        needle: False is the control without the needles that are asked for.
        questions_per_text: questions behind each text; n counts questions.
        absent: write or choose: half of the questions ask for a place where nobody lives (`lexbench.taskkit.absence`):
            the person lives at the sight of another one. None: all have an answer.
    """

    form: ClassVar[tuple[str, ...]] = ("link", "needle", "room", "chat")
    corpus: Corpus | None = None
    haystack: str = "noise"
    hops: int = 1
    distractors: int = 3
    strata: int = 8
    room: int | None = None
    chat: bool = False
    options: int | None = None
    link: str = "association"
    needle: bool = True
    questions_per_text: int = field(default=1, metadata={"new": True})
    absent: str | None = field(default=None, metadata={"new": True})

    @property
    def edition(self) -> int:
        """The version of its questions; of written answers to questions that may have none, as in `absence.edition`."""
        return absence.edition(self, self.questions_edition)

    @property
    def questions_edition(self) -> int:
        """The version of a choice, 1, or of a written answer, 2: in its version 1 any further word made it a list."""
        return 1 if self.options else 2

    def __post_init__(self) -> None:
        check_haystack("associative", self)
        for name, choices in (("link", tuple(NEEDLE_TEMPLATES)), ("hops", (1, 2))):
            if getattr(self, name) not in choices:
                known = ", ".join(map(str, choices))
                raise ConfigError(f"associative's {name} must be one of {known}, got {getattr(self, name)}")
        check_at_least("associative", self, distractors=1, strata=1, room=1, options=2, questions_per_text=1)
        absence.check_absent(self)
        if self._sights > len(SIGHTS):
            most = len(SIGHTS) - 1 - (self._sights - self._people)
            raise ConfigError(
                f"associative's distractors must be at most {most}, one a sight, got {self._people - 1}: "
                "lower them, or questions_per_text"
            )
        if self.options and self.room:
            raise ConfigError(f"associative writes nothing with options, got room={self.room}: leave it out")

    @property
    def _people(self) -> int:
        """People in a text."""
        return max(1 + self.distractors, self.questions_per_text)

    @property
    def _sights(self) -> int:
        """Sights of a text: one a person, and one more for each question that may have no answer."""
        return self._people + (self.questions_per_text if self.absent else 0)

    @property
    def _writes(self) -> bool:
        """Whether the model writes its answers; else it chooses."""
        return not self.options and self.absent != "choose"

    def protocol(self, tokenizer: Tokenizer) -> str:
        """Protocol in words: needles, haystack, scoring of the answer."""
        where = {"text": "running text"}.get(self.haystack, self.haystack)
        link = {"association": f"without shared words, {self.hops} hop{'s' * (self.hops > 1)}"}.get(
            self.link, self.link
        )
        control = "" if self.needle else ", control without the needle"
        room = f"{self.room}" if self.room else f"of the answer and {ANSWER_MARGIN_TOKENS} tokens"
        written = f"strict: the answer begins with the name, greedy, room {room}"
        scored = f"the likeliest of {self.options} names of equally many tokens" if self.options else written
        start = context_beginning(tokenizer, self.chat)
        several = f", {self.questions_per_text} questions behind each text" if self.questions_per_text > 1 else ""
        others = f"other people {self._people - 1}{several}"
        return (
            f"a person by a place in {where}: {link}, {others}{absence.describe_form(self)}{control}; {scored}; {start}"
        )

    def outline(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Outline:
        """Sizes of n questions, estimated from those of the first texts."""
        texts = [self._fixed_parts(tokenizer, seed, text) for text in texts_for_sizes(n, self.questions_per_text)]
        check_length("associative", max(map(self._least, texts)), length)
        return outline_of(texts, length, n, writes=self._writes)

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        """One prompt of exactly length - room tokens per sample."""
        texts = [self._fixed_parts(tokenizer, seed, text) for text in range(-(-n // self.questions_per_text))]
        check_length("associative", max(map(self._least, texts)), length)
        asked = [self._questions_of(tokenizer, length, seed, number, text) for number, text in enumerate(texts)]
        return [question for text in asked for question in text][:n]

    def _least(self, text: list[FixedPeople]) -> int:
        """Tokens of the longest question of a text with the least haystack: one for each stratum."""
        return max(sample.bare for sample in text) + sum(len(sample.needle) for sample in text) + self.strata

    def _fixed_parts(self, tokenizer: Tokenizer, seed: int, text: int) -> list[FixedPeople]:
        """The questions of a text."""
        rng, count = self.rng("people", seed, text), self.questions_per_text
        # Names and sights are drawn independently: no person belongs to a place.
        known = _names(tokenizer, self._people, self.options)
        names = [known[each] for each in rng.permutation(len(known))]
        sights = [SIGHTS[each] for each in rng.permutation(len(SIGHTS))[: self._sights]]
        places = [sight[self.hops] for sight in sights]
        lack = [self.absent is not None and not absence.has_answer(self, seed, text * count + i) for i in range(count)]
        for number in np.flatnonzero(lack).tolist():  # the person lives at a sight that nobody has
            sights[number] = sights[self._people + number]
        lines = [
            tokenizer.encode(NEEDLE_TEMPLATES[self.link].format(name=name, sight=sight, city=city, country=country)).ids
            for name, (sight, city, country) in zip(names[: self._people], sights, strict=False)
        ]
        spare, found = ANSWER_MARGIN_TOKENS if self._writes else 0, []
        for number, (name, place) in enumerate(zip(names[:count], places, strict=False)):
            ask, begin = (
                (ASK_WHETHER, BEGIN_WHETHER) if self.absent == "choose" else (QUESTION_TEMPLATE, ANSWER_BEGINNING)
            )
            ask, begin, answers = ask.format(place=place), begin.format(place=place), [f" {name}"]
            if self.absent:
                answers = absence.answers(self, answers[0], not lack[number])
            headers = [PROMPT_HEADER, *absence.headers(self)]
            frame = fixed_fields(self, tokenizer, text * count + number, headers, ask, begin, answers, spare)
            found.append(
                FixedPeople(
                    **frame,
                    place=place,
                    name=name,
                    needle=lines[number] if self.needle else np.empty(0, np.int64),
                    present=not lack[number],
                    others=list(zip(names[count:], lines[count:], strict=False)),
                    unused=names[len(lines) :],
                )
            )
        return found

    def _questions_of(
        self, tokenizer: Tokenizer, length: int, seed: int, number: int, text: list[FixedPeople]
    ) -> list[Generate | Choose]:
        """All questions behind one text."""
        rng, count = self.rng("places", seed, number), len(text)
        depths = [haystack.stratified_depth_in_text(number, each, count, self.strata, rng) for each in range(count)]
        sizes, needles = [fixed.bare for fixed in text], sum(len(fixed.needle) for fixed in text)
        filled = haystack.fill_haystack(self.corpus, tokenizer, length - needles - min(sizes), str(number), rng)
        body, more = haystack.cut_haystack(filled, length - needles - max(sizes))
        for _, line in text[0].others:
            body, _ = haystack.insert_needle(body, line, rng.random())
        places: list[int] = []
        for fixed, depth in zip(text, depths, strict=True):
            body, place = haystack.insert_needle(body, fixed.needle, depth, self.strata)
            # A needle that is inserted before others moves them.
            places = [each + len(fixed.needle) * (each >= place) for each in places] + [place]
        found = []
        for fixed, place in zip(text, places, strict=True):
            # A depth is a share of the text without the needle itself.
            facts = {
                "expected": [fixed.name],
                "place": fixed.place,
                "depth": place / max(1, len(body.tokens) - len(fixed.needle)),
            }
            others = [other.name for other in text if other is not fixed] + [name for name, _ in fixed.others]
            whole = [body.tokens, more[: max(sizes) - fixed.bare]]
            found.append(self._question(tokenizer, fixed, whole, body.name, facts, others, rng))
        return found

    def _question(
        self,
        tokenizer: Tokenizer,
        fixed: FixedPeople,
        body: list[Tokens],
        cluster: str,
        facts: dict[str, Any],
        others: list[str],
        rng: np.random.Generator,
    ) -> Generate | Choose:
        """One question behind the text; `others` are the names of all other people in it."""
        if self.absent:
            return absence.ask(self, tokenizer, fixed, body, cluster, fixed.present, facts)
        if not self.options:
            # Any person of the text may be asked for; in the control the right one is none of these.
            chance = 1 / (1 + len(others) if self.needle else self.questions_per_text + len(fixed.unused))
            question = fixed.write(body, cluster, chance, facts)
            needed = [shortcuts.tokens_from(question.prompt, fixed.needle)] if self.needle else []
            return shortcuts.once_read(question, needed, 1 / (1 + len(others) + len(fixed.unused)))
        # Wrong options are people of the text first, else a model could choose the only name that it has seen.
        wrong = [*(others if self.needle else []), *fixed.unused][: self.options - 1]
        right = int(rng.integers(self.options))
        names = [*wrong[:right], fixed.name, *wrong[right:]]
        options = [tokenizer.encode(f" {name}").ids for name in names]
        choice = fixed.choose(body, cluster, options, right, facts)
        return shortcuts.once_read_or_struck_out(choice, shortcuts.tokens_from(choice.prompt, fixed.needle))

    def score(self, question: AnyQuestion, answer: Answer) -> Sample:
        """Strict accuracy of a written answer, or accuracy of the choice."""
        if self.absent:
            return absence.score_absent(question, answer, matching.one_of_pattern(FIRST_NAMES))
        if isinstance(question, Choose):
            return score_choice(question, answer)
        return score_items(question, answer, matching.one_of_pattern(FIRST_NAMES))


def _names(tokenizer: Tokenizer, people: int, options: int | None) -> list[str]:
    """All names; for a choice those of the most common number of tokens, as a summed NLL favours shorter ones.

    Refused where these are fewer than a sample needs: people and, in the control, options beside them.
    """
    if options is None:
        return list(FIRST_NAMES)
    alike = sampling.values_of_common_size(tokenizer, FIRST_NAMES)
    if len(alike) < people + options:
        raise Refused(
            f"associative has {len(alike)} names of equally many tokens, needs {people + options}: "
            "lower options or distractors"
        )
    return alike
