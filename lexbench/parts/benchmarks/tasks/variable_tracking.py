"""Variable tracking: follow chains of assignments, and name all variables that hold a value."""

import itertools
import math
import string
from collections.abc import Iterator, Sequence
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
    check_at_least,
    check_count,
    check_haystack,
    check_length,
    context_beginning,
    fixed_fields,
    outline_of,
    texts_for_sizes,
)
from lexbench.taskkit.scoring import item_scores

PROMPT_HEADER = "Variables are assigned values in this text. Remember them.\n"
STATEMENT_TEMPLATE = " VAR {name} = {value}."
QUESTION_TEMPLATE = "\nWhich {count} variables have the value {value}, directly or through others?"
ANSWER_BEGINNING = " The variables are"
ASK_WHETHER = "\nTrue or False: a variable has the value {value}, directly or through others."
BEGIN_WHETHER = " The answer is"
VARIABLE_NAME_LETTERS = 5
VALUE_RANGE = (10_000, 100_000)
ANSWER_MARGIN_TOKENS = 8
"""Tokens to write beyond those of the answer."""


@dataclass(frozen=True)
class Chain:
    """A value and the variables that hold it: the first gets the value, each other one copies the variable before."""

    value: str
    names: tuple[str, ...]

    def statements(self) -> list[str]:
        """One assignment per variable, in order."""
        given = [self.value, *(f"VAR {name}" for name in self.names[:-1])]
        return [
            STATEMENT_TEMPLATE.format(name=name, value=value) for name, value in zip(self.names, given, strict=True)
        ]

    def question(self) -> str:
        """The question for the chain's variables."""
        return QUESTION_TEMPLATE.format(count=len(self.names), value=self.value)

    def answer(self) -> str:
        """The right answer."""
        return " " + ", ".join(self.names)


@dataclass(frozen=True, kw_only=True, eq=False)
class FixedChains(FixedParts):
    """The parts of a sample that are the same at every length."""

    chain: Chain
    needles: list[list[Tokens]]
    """Tokens of each chain's statements in the text, those of queried chains first; in the control these are empty, and
    where a question has no answer they are those of another chain."""
    present: bool
    """Whether the text holds the answer."""
    others: list[list[str]]
    """Names of each other chain."""

    @property
    def least(self) -> int:
        """Prompt and room without a haystack, in tokens."""
        return self.tokens + sum(len(needle) for chain in self.needles for needle in chain)


@dataclass(frozen=True)
class VariableTracking(Task):
    """Name all variables that hold a value, most of them copied (vt of RULER, Hsieh et al., arXiv 2404.06654).

        Variables are assigned values in this text. Remember them.                   <- header
        The grass is green. VAR QWXZB = 40213. The sky is blue. ... VAR PLMTR = VAR QWXZB. ... There and back again.
        Which 2 variables have the value 40213, directly or through others? The variables are    <- " QWXZB, PLMTR"

    Constant over lengths, for each sample: everything but the haystack, i.e. chains, names, values, question, room, the
    share of the haystack before each statement, and where running text starts. Only the haystack grows. Names (five
    upper-case letters) and values (five digits) are uniform, distinct, and new in each sample. Running text may
    contain the same digits; only a statement assigns them. The least length is the largest need among the n samples, so
    near it n decides whether a length is refused.

    The statements of a chain keep their order, each at the end of a sentence. Every chain starts at a uniform depth,
    and its other statements are uniform behind that; so only their values distinguish chains, not where they start or
    end. The depth of a sample is the share of the haystack before the queried chain's first statement.

    Several questions behind one text, which is read once: each asks for a chain of its own, and those of the others are
    distractors to it. The first statements of their chains stand in strata spread evenly over the text, which is one
    cluster. Where a question is shorter in tokens than others of its text, some more haystack fills its length.

    Chance is the best guess without the value: any one chain (1 / chains); with one chain, or in the control, any
    names. The wording is ours. RULER has one chain, where all names in the text are the answer: `chains=1
    example=true`.

    Scores: `accuracy` (copied whole): the answer begins with exactly the names, in any order, with or without VAR
    before each. `contains`: the share of the names that occur anywhere in the answer (RULER's string_match_all).
    `in_place`, `reached`, `chosen` and `forced`: `lexbench.taskkit.key_scores`.

    Args:
        chains: with equally many statements, at least as many as questions behind a text; to each question all but one
            are distractors.
        hops: variables per chain that copy another variable.
        haystack: "noise" (repeated sentences) or "text" (running text of the corpus).
        example: begin with an answered question about another, short text of the same form.
        strata: stratify the depth of the queried chain into this many equal parts; sample i lies in part i modulo
            strata.
        room: tokens to write; None: those of the answer and eight more.
        needle: False is the control: the same prompt without the queried chains.
        chat: use the model's chat template; the first words of the answer come after it.
        corpus: for haystack=text.
        questions_per_text: questions behind each text; n counts questions.
        absent: write or choose: half of the questions ask for a value that no variable has
            (`lexbench.taskkit.absence`); a chain of another value stands in its place. None: all have an answer.
    """

    form: ClassVar[tuple[str, ...]] = ("needle", "room", "chat", "example")
    version: ClassVar[int] = 2
    questions_version: ClassVar[int] = 1
    metrics: ClassVar[tuple[Metric, ...]] = key_scores.KEY_METRICS
    chains: int = 2
    hops: int = 4
    haystack: str = "noise"
    example: bool = False
    strata: int = 8
    room: int | None = None
    needle: bool = True
    chat: bool = False
    corpus: Corpus | None = None
    questions_per_text: int = field(default=1, metadata={"new": True})
    absent: str | None = field(default=None, metadata={"new": True})

    def __post_init__(self) -> None:
        check_at_least("variable_tracking", self, chains=1, hops=1, strata=1, room=1, questions_per_text=1)
        check_haystack("variable_tracking", self)
        absence.check_absent(self)
        if self.absent == "choose" and self.example:
            raise ConfigError("variable_tracking's example has a written answer, got absent=choose: leave example out")

    @property
    def edition(self) -> int:
        """The version; questions that may have no answer have that of their form (`absence.edition`)."""
        return absence.edition(self, self.questions_version) if self.absent else self.version

    @property
    def _chains(self) -> int:
        """Chains in a text."""
        return max(self.chains, self.questions_per_text)

    @property
    def first_scored_edition(self) -> int:
        """That of the questions, whose later versions only added scores; with `absent` another answer became right."""
        return self.edition if self.absent else self.questions_version

    def protocol(self, tokenizer: Tokenizer) -> str:
        """Protocol in words: number of chains, haystack, scoring of the answer."""
        control = "" if self.needle else ", control without the asked chain"
        shown = ", one example" if self.example else ""
        several = f", {self.questions_per_text} asked for behind each text" if self.questions_per_text > 1 else ""
        return (
            f"variable tracking: {self._chains} chains of {self.hops} hops in {self.haystack}{several}{shown}"
            f"{absence.describe_form(self)}{control}, strict: exactly the asked names come first, greedy"
            f"{'' if self.absent else key_scores.PROTOCOL_WORDS}, {context_beginning(tokenizer, self.chat)}"
        )

    def outline(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Outline:
        """Sizes of n questions, estimated from those of the first texts."""
        check_count("variable_tracking", self._chains * (self.hops + 1), "statements", length)
        texts = [self._fixed_parts(tokenizer, seed, text) for text in texts_for_sizes(n, self.questions_per_text)]
        check_length("variable_tracking", max(sample.least for text in texts for sample in text), length)
        return outline_of(texts, length, n, writes=self.absent != "choose")

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        """One prompt of exactly length - room tokens per sample."""
        check_count("variable_tracking", self._chains * (self.hops + 1), "statements", length)
        texts = [self._fixed_parts(tokenizer, seed, text) for text in range(-(-n // self.questions_per_text))]
        check_length("variable_tracking", max(sample.least for text in texts for sample in text), length)
        asked = [self._questions_of(tokenizer, length, seed, number, text) for number, text in enumerate(texts)]
        return [question for text in asked for question in text][:n]

    def _fixed_parts(self, tokenizer: Tokenizer, seed: int, text: int) -> list[FixedChains]:
        """The questions of a text."""
        rng, count = self.rng("chains", seed, text), self.questions_per_text
        new = _chains(rng, self.hops + 1)
        # Queried chains are drawn first: their names and values do not depend on how many others there are.
        chains = list(itertools.islice(new, self._chains))
        shown = self._example(rng, list(itertools.islice(new, self._chains))) if self.example else ""
        needles = [[tokenizer.encode(each).ids for each in one.statements()] for one in chains]
        if not self.needle:
            needles[:count] = [[np.empty(0, np.int64)] * (self.hops + 1)] * count
        found = []
        for number, chain in enumerate(chains[:count]):
            index, answers, present = text * count + number, [chain.answer()], True
            ask, begin, spare = chain.question(), ANSWER_BEGINNING, ANSWER_MARGIN_TOKENS
            if self.absent:
                present = absence.has_answer(self, seed, index)
                answers = absence.answers(self, answers[0], present)
            if self.absent == "choose":
                ask, begin, spare = ASK_WHETHER.format(value=chain.value), BEGIN_WHETHER, 0
            if not present:  # another chain stands in the text
                needles[number] = [tokenizer.encode(each).ids for each in next(new).statements()]
            headers = [shown, PROMPT_HEADER, *absence.headers(self)]
            frame = fixed_fields(self, tokenizer, index, headers, ask, begin, answers, spare)
            others = [list(one.names) for one in chains if one is not chain]
            found.append(FixedChains(**frame, chain=chain, needles=needles, present=present, others=others))
        return found

    def _example(self, rng: np.random.Generator, chains: Sequence[Chain]) -> str:
        """Statements of the chains, randomly mixed, then the first chain's question and answer."""
        left = [chain.statements() for chain in chains]
        turns = rng.permutation(np.repeat(np.arange(len(chains)), self.hops + 1))
        text = "".join(left[turn].pop(0) for turn in turns).lstrip()
        return f"{PROMPT_HEADER}{text}{chains[0].question()}{ANSWER_BEGINNING}{chains[0].answer()}.\n\n"

    def _questions_of(
        self, tokenizer: Tokenizer, length: int, seed: int, number: int, text: list[FixedChains]
    ) -> list[Generate | Choose]:
        """All questions behind one text."""
        rng, of_text = self.rng("places", seed, number), self.rng("text", seed, number)
        sizes, count = [fixed.least for fixed in text], len(text)
        filled = haystack.fill_haystack(self.corpus, tokenizer, length - min(sizes), str(number), of_text)
        body, more = haystack.cut_haystack(filled, length - max(sizes))
        begins = [haystack.stratified_depth_in_text(number, each, count, self.strata, rng) for each in range(count)]
        begins += rng.random(self._chains - count).tolist()
        # Later statements are uniform behind the first, in order.
        depths = [[begin, *(begin + (1 - begin) * np.sort(rng.random(self.hops)))] for begin in begins]
        order = rng.permutation(self._chains).tolist()  # random, as statements of two chains may share a sentence end
        needles = [needle for chain in order for needle in text[0].needles[chain]]
        tokens, realised = haystack.insert_needles(
            body, needles, [each for one in order for each in depths[one]], self.strata
        )
        found = list[Generate | Choose]()
        for chain, fixed in enumerate(text):
            depth = realised[order.index(chain) * (self.hops + 1)]
            facts = {"expected": list(fixed.chain.names), "value": fixed.chain.value, "depth": depth}
            whole = [tokens, more[: max(sizes) - fixed.least]]
            if self.absent:
                found.append(absence.ask(self, tokenizer, fixed, whole, body.name, fixed.present, facts))
            else:
                question = fixed.write(whole, body.name, self._chance(), facts)
                needed = [shortcuts.tokens_from(question.prompt, fixed.needles[chain][0])] if self.needle else []
                question = shortcuts.once_read(
                    question, needed, 1 / math.comb(26**VARIABLE_NAME_LETTERS, self.hops + 1)
                )
                # In the control the text lacks the asked chains, so the wrong options must not be in it either.
                others, own = fixed.others if self.needle else [], self.rng("options", seed, fixed.index)
                found.append(key_scores.with_options(question, tokenizer, others, self._draw_answer, own))
        return found

    def _draw_answer(self, rng: np.random.Generator) -> list[str]:
        """Names of a chain that no text need hold."""
        letters = sampling.random_letter_words(rng, string.ascii_uppercase, VARIABLE_NAME_LETTERS)
        return list(itertools.islice(letters, self.hops + 1))

    def _chance(self) -> float:
        """Chance of guessing one of several chains in the text, or else any names."""
        return (
            1 / self._chains
            if self._chains > 1 and self.needle
            else 1 / math.comb(26**VARIABLE_NAME_LETTERS, self.hops + 1)
        )

    def score(self, question: AnyQuestion, answer: Answer) -> Sample:
        """The names copied whole, and the other scores of keys."""
        item = rf"(?-i:[A-Z]{{{VARIABLE_NAME_LETTERS}}})"
        if self.absent:
            return absence.score_absent(question, answer, item, _without_var)
        assert isinstance(question, Generate) and isinstance(answer, GenerateAnswer)
        return key_scores.score_keys(question, answer, item_scores(question, answer, item, _without_var))


def _without_var(text: str) -> str:
    return text.replace("VAR ", "")


def _chains(rng: np.random.Generator, size: int) -> Iterator[Chain]:
    """Chains of `size` names without end; all names and all values differ."""
    drawn = (str(rng.integers(*VALUE_RANGE)) for _ in itertools.count())
    values = sampling.without_repetitions(drawn, "variable_tracking finds no further value", "lower chains")
    letters = sampling.random_letter_words(rng, string.ascii_uppercase, VARIABLE_NAME_LETTERS)
    names = sampling.without_repetitions(letters, "variable_tracking finds no further name", "lower chains or hops")
    while True:
        yield Chain(next(values), tuple(itertools.islice(names, size)))
