"""Passkey retrieval: find a number that is hidden in noise."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from lexbench import (
    Answer,
    AnyQuestion,
    Choose,
    ConfigError,
    Generate,
    GenerateAnswer,
    Metric,
    Outline,
    Sample,
    Task,
    Tokenizer,
    Tokens,
)
from lexbench.taskkit import absence, haystack, key_scores, matching, sampling, shortcuts
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

PROMPT_HEADER = "A pass key is hidden in this text. Remember it.\n"
NEEDLE_TEMPLATE = " The pass key is {key}. Remember it. {key} is the pass key."
QUESTION_TEXT = "\nWhat is the pass key? The pass key is"
HEADER_SEVERAL = "Pass keys are hidden in this text. Remember them.\n"
NEEDLE_SEVERAL = " The pass key of {name} is {key}. Remember it. {key} is the pass key of {name}."
ASK_SEVERAL = "\nWhat is the pass key of {name}? The pass key of {name} is"
ASK_WHETHER = "\nTrue or False: this text has a pass key. The answer is"
ASK_WHETHER_SEVERAL = "\nTrue or False: this text has a pass key of {name}. The answer is"
ANSWER_MARGIN_TOKENS = 4
"""Tokens to write beyond those of the key."""


@dataclass(frozen=True)
class Passkey(Task):
    """Find one random number in repeated noise (Mohtashami and Jaggi, arXiv 2305.16300; the wording is ours).

        A pass key is hidden in this text. Remember it.          <- header
        The grass is green. ... The pass key is 40213. Remember it. 40213 is the pass key. ... back again.
        What is the pass key? The pass key is                    <- the model writes " 40213"

    Several questions behind one text, which is read once: the text holds a key of each of so many people, and each
    question asks for the key of one of them. The text is one cluster. Everything but the last words is the same for its
    questions; where names or keys differ in tokens, some more noise fills the length.

        ... The pass key of Clara is 40213. Remember it. 40213 is the pass key of Clara. ...
        What is the pass key of Clara? The pass key of Clara is

    Constant over lengths: the number of digits, the wording, one needle. Only the noise grows. Each sample draws its
    key and depth from its own seed; keys are uniform. The noise repeats the same five sentences, and the needle is
    inserted between two of them: at the end nearest to the depth, which near the least length may lie in another
    stratum. Chance: one key in 9 * 10^(digits - 1), for a guess of any key. The key is the only number in the text, so
    a model that copies any number from there is right; `niah_multikey_1` has other numbers, and so has a text with
    several questions: there the chance is that of any key of the text, 1 / questions_per_text.

    Scores: `accuracy` (copied whole): the answer begins with the key, quoted or not, and lists no other number.
    `contains`: the key occurs anywhere in the answer. `in_place`, `reached`, `chosen` and `forced`, with options of as
    many digits: `lexbench.taskkit.key_scores`. Only new tokens are scored, so echoing the prompt earns nothing.

    Args:
        digits: of the key; the first digit is never 0.
        strata: stratify depths into this many equal parts; sample i lies in part i modulo strata.
        room: tokens to write; None: the key's tokens and four more.
        needle: False is the control: the same prompt without the needles, so that no model can know a key.
        questions_per_text: keys in a text, each asked behind it; n counts questions.
        absent: write or choose: half of the questions have no key in the text (`lexbench.taskkit.absence`), only noise
            in its place; so any number tells that there is one. None: all have one.
    """

    form: ClassVar[tuple[str, ...]] = ("needle", "room")
    version: ClassVar[int] = 3
    questions_version: ClassVar[int] = 2
    metrics: ClassVar[tuple[Metric, ...]] = key_scores.KEY_METRICS_ALL_ASKED
    digits: int = 5
    strata: int = 8
    room: int | None = None
    needle: bool = True
    questions_per_text: int = field(default=1, metadata={"new": True})
    absent: str | None = field(default=None, metadata={"new": True})

    def __post_init__(self) -> None:
        absence.check_absent(self)
        check_at_least("passkey", self, digits=1, strata=1, room=1, questions_per_text=1)
        if self.digits > 18:
            raise ConfigError(f"passkey's digits must be at most 18, got {self.digits}: a key is a 64-bit integer")
        if self.questions_per_text > (most := min(len(FIRST_NAMES), 9 * 10 ** (self.digits - 1))):
            raise ConfigError(
                f"passkey has {most} people with a key of their own, got questions_per_text={self.questions_per_text}: "
                "lower it"
            )

    @property
    def edition(self) -> int:
        """The version; questions that may have no answer have that of their form (`absence.edition`)."""
        return absence.edition(self, self.questions_version) if self.absent else self.version

    @property
    def first_scored_edition(self) -> int:
        """That of the questions, whose later versions only added scores; with `absent` another answer became right."""
        return self.edition if self.absent else self.questions_version

    def protocol(self, tokenizer: Tokenizer) -> str:
        """Protocol in words: the hidden number, scoring of the answer."""
        control = "" if self.needle else ", control without the needle"
        start = context_beginning(tokenizer)
        several = f", {self.questions_per_text} keys in a text, each asked" if self.questions_per_text > 1 else ""
        return (
            f"passkey of {self.digits} digits in noise{several}{absence.describe_form(self)}{control}, "
            f"strict: the key comes first, greedy{'' if self.absent else key_scores.PROTOCOL_WORDS}, {start}"
        )

    def outline(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Outline:
        """Sizes of n questions, estimated from those of the first texts."""
        texts = [
            self._fixed_parts(tokenizer, length, seed, text)[:2] for text in texts_for_sizes(n, self.questions_per_text)
        ]
        for text in texts:
            check_length("passkey", max(_sizes(*text)), length)
        return outline_of([asked for asked, _ in texts], length, n, writes=self.absent != "choose")

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        """One prompt of exactly length - room tokens per sample."""
        texts = range(-(-n // self.questions_per_text))
        return [question for text in texts for question in self._questions_of(tokenizer, length, seed, text)][:n]

    def _questions_of(self, tokenizer: Tokenizer, length: int, seed: int, text: int) -> list[Generate | Choose]:
        """All questions behind one text."""
        asked, needles, depths, keys = self._fixed_parts(tokenizer, length, seed, text)
        sizes, count = _sizes(asked, needles), self.questions_per_text
        check_length("passkey", max(sizes), length)
        # The needles stand in the noise that all questions have room for; more of it fills the length of shorter ones.
        noise, more = haystack.cut_haystack(
            haystack.noise_haystack(tokenizer, length - min(sizes), str(text)), length - max(sizes)
        )
        body, realised = haystack.insert_needles(noise, needles, depths, self.strata)
        chance = max(1 / (9 * 10 ** (self.digits - 1)), 1 / count if self.needle and count > 1 else 0)
        found = list[Generate | Choose]()
        for each, size, depth, key, needle in zip(asked, sizes, realised, keys, needles, strict=True):
            whole = [body, more[: max(sizes) - size]]
            if self.absent:
                facts = {"expected": [key], "depth": depth}
                found.append(absence.ask(self, tokenizer, each, whole, noise.name, len(needle) > 0, facts))
            else:
                question = each.write(whole, noise.name, chance, {"expected": key, "depth": depth})
                # The needle tells its key twice: who reads the second one needs no more.
                told = tokenizer.encode(f" {key}").ids
                needed = [shortcuts.tokens_from(question.prompt, needle, told)] if self.needle else []
                question = shortcuts.once_read(question, needed, 1 / (9 * 10 ** (self.digits - 1)))
                others = [[other] for other in keys if other != key] if self.needle else []
                rng = self.rng("options", length, seed, each.index)
                found.append(key_scores.with_options(question, tokenizer, others, self._draw_answer, rng))
        return found

    def _draw_answer(self, rng: np.random.Generator) -> list[str]:
        """A key that no text need hold. The first digit is never 0, so every key has as many digits."""
        low = 10 ** (self.digits - 1)
        return [str(rng.integers(low, 10 * low))]

    def _fixed_parts(
        self, tokenizer: Tokenizer, length: int, seed: int, text: int
    ) -> tuple[list[FixedParts], list[Tokens], list[float], list[str]]:
        """The questions behind one text without its noise; the needles of their keys, their depths, and the keys."""
        rng, count = self.rng(length, seed, text), self.questions_per_text
        drawn = sampling.without_repetitions(
            (self._draw_answer(rng)[0] for _ in itertools.count()),
            "passkey finds no further key",
            "raise digits",
        )
        keys, depths = list[str](), list[float]()
        for number in range(count):
            keys.append(next(drawn))
            depths.append(haystack.stratified_depth_in_text(text, number, count, self.strata, rng))
        names = [FIRST_NAMES[each] for each in rng.permutation(len(FIRST_NAMES))[:count]]
        header, needle, ask = (
            (PROMPT_HEADER, NEEDLE_TEMPLATE, QUESTION_TEXT)
            if count == 1
            else (HEADER_SEVERAL, NEEDLE_SEVERAL, ASK_SEVERAL)
        )
        if self.absent == "choose":
            ask = ASK_WHETHER if count == 1 else ASK_WHETHER_SEVERAL
        asked, needles = list[FixedParts](), list[Tokens]()
        for index, (name, key) in enumerate(zip(names, keys, strict=True), start=text * count):
            before, after = tokens_around_haystack(
                tokenizer, False, [header, *absence.headers(self)], ask.format(name=name), ""
            )
            answers, present = [f" {key}"], self.needle
            if self.absent:
                present = absence.has_answer(self, seed, index)
                answers = absence.answers(self, answers[0], present)
            written = max(len(tokenizer.encode(answer).ids) for answer in answers)
            room = resolve_max_new_tokens(
                "passkey", written, self.room, 0 if self.absent == "choose" else ANSWER_MARGIN_TOKENS
            )
            asked.append(FixedParts(index=index, before=before, after=after, room=room, answer=answers[0]))
            hidden = tokenizer.encode(needle.format(name=name, key=key)).ids
            needles.append(hidden if present else np.empty(0, np.int64))
        return asked, needles, depths, keys

    def score(self, question: AnyQuestion, answer: Answer) -> Sample:
        """The key copied whole, and the other scores of keys."""
        if self.absent:
            return absence.score_absent(question, answer, r"\d+")
        assert isinstance(question, Generate) and isinstance(answer, GenerateAnswer)
        key = question.facts["expected"]
        return key_scores.score_keys(
            question,
            answer,
            {"accuracy": matching.strict_list_score(answer.text, [key], r"\d+"), "contains": float(key in answer.text)},
        )


def _sizes(asked: Sequence[FixedParts], needles: Sequence[Tokens]) -> list[int]:
    """Tokens of each question behind a text, without noise."""
    return [each.tokens + sum(map(len, needles)) for each in asked]
