"""Variable tracking: chains of assignments in a text, and which variables hold a value at its end."""

import itertools
import math
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lexbench import Answer, AnyQuestion, Corpus, Refused, Sample, Task, Tokenizer, Tokens, Write, Written
from lexbench.taskkit import haystack, matching, sampling
from lexbench.taskkit.perplexity import encoded_corpus
from lexbench.taskkit.scoring import score_written

HEADER = "Variables are assigned values in this text. Remember them.\n"
STATEMENT = " VAR {name} = {value}."
ASK = "\nWhich {count} variables have the value {value}, directly or through others?"
BEGIN = " The variables are"
LETTERS = 5
VALUES = (10_000, 100_000)
MARGIN = 8
"""Tokens to write beyond those of the answer."""


@dataclass(frozen=True)
class Chain:
    """A value, and the variables that hold it: the first one directly, each other one through the one before it."""

    value: str
    names: tuple[str, ...]

    def statements(self) -> list[str]:
        """One for each variable, in order."""
        given = [self.value, *(f"VAR {name}" for name in self.names[:-1])]
        return [STATEMENT.format(name=name, value=value) for name, value in zip(self.names, given, strict=True)]

    def asked(self) -> str:
        """The question for its variables."""
        return ASK.format(count=len(self.names), value=self.value)

    def answer(self) -> str:
        """What is to be written."""
        return " " + ", ".join(self.names)


@dataclass(frozen=True, kw_only=True, eq=False)
class Asked:
    """All that one sample has besides its haystack."""

    index: int
    chain: Chain
    before: Tokens
    needles: list[list[Tokens]]
    """Statements of each chain, first those of the asked one; these are without tokens in the control."""
    after: Tokens
    room: int

    @property
    def least(self) -> int:
        """Tokens without any haystack."""
        statements = sum(len(needle) for chain in self.needles for needle in chain)
        return len(self.before) + statements + len(self.after) + self.room


@dataclass(frozen=True)
class VariableTracking(Task):
    """Find all variables that hold a value, where most of them got it from another variable (RULER's vt).

    After Hsieh et al., RULER (arXiv 2404.06654); words our own. Held constant over lengths: of sample i everything but
    the haystack: its chains and hops, names and values, the question, the room, the share of the haystack before each
    statement, and the place where running text begins; the haystack grows. The least length is the most that any of the
    n samples needs, so near it n decides whether a length is refused. Names (five upper-case letters) and values (five
    digits) are uniform, all different and new in each sample. Running text may have the same digits: what they mean
    follows from the form of a statement alone.

        Variables are assigned values in this text. Remember them.                   <- header
        The grass is green. VAR QWXZB = 40213. The sky is blue. ... VAR PLMTR = VAR QWXZB. ... There and back again.
        Which 2 variables have the value 40213, directly or through others? The variables are    <- " QWXZB, PLMTR"

    A chain's statements stand in its order, each at the end of a sentence. Every chain begins at a uniform depth, and
    the rest of it is uniform behind that: chains are told apart by their values alone, not by where they begin or end.
    The asked one's beginning is stratified over the samples; the share of the haystack before it is the sample's depth.
    RULER has one chain, so that all names in the text are the answer (`chains=1 example=true` is its setting). Chance
    is the likeliest guess without the value: the names of one chain, whichever, right once in `chains`; with one chain,
    or in the control, any names at all.

    Scores: `accuracy`, strict: what is written begins with exactly the names, in any order, with or without VAR before
    each; `contains`: the share of the names that stand somewhere in it (RULER's string_match_all).

    Args:
        chains: of equally many statements; all but one are distractors.
        hops: variables of a chain that take their value from another one.
        haystack: "noise" (repeated sentences) or "text" (running text of the corpus).
        example: whether an answered question about another, short text of the same form comes first.
        strata: the asked chain's first statement is stratified by depth into this many equal parts, sample i in part
            i modulo strata.
        room: tokens to write; None: those of the answer, and eight more.
        needle: False is the control: the same prompt without the asked chain.
        chat: ask in the model's chat template; the answer's first words come after it.
        corpus: of "text".
    """

    form: ClassVar[tuple[str, ...]] = ("needle", "room", "chat", "example")
    chains: int = 2
    hops: int = 4
    haystack: str = "noise"
    example: bool = False
    strata: int = 8
    room: int | None = None
    needle: bool = True
    chat: bool = False
    corpus: Corpus | None = None

    def __post_init__(self) -> None:
        for name in ("chains", "hops", "strata", "room"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"variable_tracking's {name} must be at least 1, got {value}")
        if self.haystack not in ("noise", "text"):
            raise ValueError(f"variable_tracking's haystack must be noise or text, got {self.haystack!r}")
        if self.haystack == "noise":
            object.__setattr__(self, "corpus", None)
        elif self.corpus is None:
            raise ValueError("variable_tracking's haystack text needs a corpus: give corpus=... or haystack=noise")

    def protocol(self, tokenizer: Tokenizer) -> str:
        """One line: what is asked and how it is scored."""
        control = "" if self.needle else ", control without the asked chain"
        shown = ", one example" if self.example else ""
        start = ("BOS" if tokenizer.prefix else "no BOS") + (", chat template" if self.chat else "")
        return (
            f"variable tracking: {self.chains} chains of {self.hops} hops in {self.haystack}{shown}{control}, "
            f"strict: exactly the asked names come first, greedy, {start}"
        )

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        """Prompts of exactly length - room tokens, one a sample."""
        samples = [self._asked(tokenizer, seed, index) for index in range(n)]
        least = max(sample.least for sample in samples)
        if length < least:
            raise Refused(f"variable_tracking needs at least {least} tokens, asked for {length}: raise length")
        return [self._question(tokenizer, length, seed, sample) for sample in samples]

    def _asked(self, tokenizer: Tokenizer, seed: int, index: int) -> Asked:
        rng = self.rng("chains", seed, index)
        new = _chains(rng, self.hops + 1)
        chain, *others = itertools.islice(new, self.chains)
        shown = self._example(rng, list(itertools.islice(new, self.chains))) if self.example else ""
        frame, begin = tokenizer.frame(self.chat), BEGIN.lstrip() if self.chat else BEGIN
        needles = [[tokenizer.encode(each).ids for each in one.statements()] for one in (chain, *others)]
        if not self.needle:
            needles[0] = [np.empty(0, np.int64)] * (self.hops + 1)
        written = len(tokenizer.encode(chain.answer()).ids)
        if self.room is not None and self.room < written:
            raise Refused(f"variable_tracking's answer has {written} tokens, its room {self.room}: raise room")
        return Asked(
            index=index,
            chain=chain,
            before=np.concatenate([frame.before, tokenizer.encode(shown).ids, tokenizer.encode(HEADER).ids]),
            needles=needles,
            after=np.concatenate([tokenizer.encode(chain.asked()).ids, frame.after, tokenizer.encode(begin).ids]),
            room=self.room or written + MARGIN,
        )

    def _example(self, rng: np.random.Generator, chains: Sequence[Chain]) -> str:
        """Statements without a haystack, the question for the first chain and its answer; chains mix by chance."""
        left = [chain.statements() for chain in chains]
        turns = rng.permutation(np.repeat(np.arange(len(chains)), self.hops + 1))
        text = "".join(left[turn].pop(0) for turn in turns).lstrip()
        return f"{HEADER}{text}{chains[0].asked()}{BEGIN}{chains[0].answer()}.\n\n"

    def _question(self, tokenizer: Tokenizer, length: int, seed: int, asked: Asked) -> Write:
        space, rng = length - asked.least, self.rng("places", seed, asked.index)
        if self.corpus is None:
            body = haystack.noise(tokenizer, space, str(asked.index))
        else:
            texts = encoded_corpus(self.corpus, tokenizer)
            body = haystack.text(texts, space, self.rng("text", seed, asked.index))
        begins = [haystack.stratified(asked.index, self.strata, rng), *rng.random(self.chains - 1)]
        depths = [[begin, *(begin + (1 - begin) * np.sort(rng.random(self.hops)))] for begin in begins]
        order = rng.permutation(self.chains).tolist()  # statements of two chains may meet at one end of a sentence
        needles = [needle for chain in order for needle in asked.needles[chain]]
        tokens, realised = haystack.insert(body, needles, [each for one in order for each in depths[one]], self.strata)
        depth = realised[order.index(0) * (self.hops + 1)]
        return Write(
            index=asked.index,
            cluster=body.name,
            prompt=np.concatenate([asked.before, tokens, asked.after]),
            room=asked.room,
            answer=asked.chain.answer(),
            chance=self._chance(),
            facts={"expected": list(asked.chain.names), "value": asked.chain.value, "depth": depth},
        )

    def _chance(self) -> float:
        """Of naming any one chain of several in the text, or else any names."""
        return 1 / self.chains if self.chains > 1 and self.needle else 1 / math.comb(26**LETTERS, self.hops + 1)

    def score(self, question: AnyQuestion, answer: Answer) -> Sample:
        """Strict and lenient accuracy."""
        assert isinstance(question, Write) and isinstance(answer, Written)
        names = question.facts["expected"]
        bare = answer.text.replace("VAR ", "")
        return score_written(
            question,
            answer,
            {
                "accuracy": matching.strict(bare, names, rf"(?-i:[A-Z]{{{LETTERS}}})"),
                "contains": matching.contains_all(answer.text, names),
            },
        )


def _chains(rng: np.random.Generator, size: int) -> Iterator[Chain]:
    """Chains of `size` names; neither names nor values occur twice."""
    drawn = (str(rng.integers(*VALUES)) for _ in itertools.count())
    values = sampling.unused(drawn, "variable_tracking finds no further value", "lower chains")
    letters = sampling.letters(rng, string.ascii_uppercase, LETTERS)
    names = sampling.unused(letters, "variable_tracking finds no further name", "lower chains or hops")
    while True:
        yield Chain(next(values), tuple(itertools.islice(names, size)))
