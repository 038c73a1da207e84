"""Common words: a long list in which a few words come again and again, and which these are."""

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lexbench import Answer, AnyQuestion, Refused, Sample, Task, Tokenizer, Tokens, Write, Written
from lexbench.taskkit import haystack, matching, sampling
from lexbench.taskkit.scoring import score_written

HEADER = "This numbered list has words that occur more often than others.\n"
ASK = "\nWhich {common} words occur most often in the list?"
BEGIN = " The words are"
WORDS = sampling.SPOKEN
"""All that there are would make a list of some four million tokens."""
ITEM = rf"(?:[{sampling.CONSONANTS}][{sampling.VOWELS}]){{{len(WORDS.lists)}}}"
MARGIN = 8
"""Tokens to write beyond those of the answer."""
COUNTED = 10_000
"""Tokens up to which the least length is told exactly; above, a lower bound of it refuses at once."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Asked:
    """All that one sample has at the least."""

    index: int
    common: list[str]
    words: list[Tokens]
    """The common words and as many others."""
    more: Iterator[Tokens]
    """Still others."""
    before: Tokens
    after: Tokens
    room: int
    answer: str
    least: int
    """Tokens in all, with every occurrence of `words`."""


@dataclass(frozen=True)
class CommonWords(Task):
    """Name the words of a numbered list that occur most often in it (RULER's cwe).

    After Hsieh et al., RULER (arXiv 2404.06654); words our own. Held constant over lengths: of sample i the common
    words, how many they are, how often each occurs, how often each other word occurs, and so the ratio of the two. What
    grows is the number of different other words, and with it the share of the list that they take. (RULER has 10 common
    words, 30 times against 3, but 6 times against 1 below 4096 tokens, where its difficulty jumps; `common=10 times=30
    others=3` is the former. Its lists of one size all have one order, and it shows an answered example first.)

        This numbered list has words that occur more often than others.              <- header
        1. kavodu
        2. mosiri
        3. kavodu
        ...
        Which 3 words occur most often in the list? The words are                    <- " kavodu, teluga, bifosa"

    Words are three syllables of a consonant and a vowel, new in each sample, all different and equally long, so that
    none is a part of another. The order is by chance, anew in each sample. Others are added as long as the next one
    fits with all its occurrences; what is then left is filled, before the list, with sentences of noise, the last one
    cut. There are at least as many other words as common ones. The least length is the most that any of the n samples
    needs, so near it n decides whether a length is refused. Chance is any words of the list.

    Scores: `accuracy`, strict: what is written begins with exactly the common words, in any order, numbered or not;
    `contains`: the share of them that stand somewhere in it (RULER's string_match_all).

    Args:
        common: words that are asked for.
        times: that each of them occurs.
        others: times that each other word occurs, fewer than `times`.
        room: tokens to write; None: those of the answer, and eight more.
        chat: ask in the model's chat template; the answer's first words come after it.
    """

    form: ClassVar[tuple[str, ...]] = ("room", "chat")
    common: int = 3
    times: int = 8
    others: int = 1
    room: int | None = None
    chat: bool = False

    def __post_init__(self) -> None:
        for name in ("common", "others", "room"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"common_words' {name} must be at least 1, got {value}")
        if self.times <= self.others:
            raise ValueError(f"common_words' times must be more than others={self.others}, got {self.times}")

    def protocol(self, tokenizer: Tokenizer) -> str:
        """One line: what is asked and how it is scored."""
        start = ("BOS" if tokenizer.prefix else "no BOS") + (", chat template" if self.chat else "")
        return (
            f"common words: {self.common} words {self.times} times each among others {self.others} times each, "
            f"strict: exactly these words come first, greedy, {start}"
        )

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        """Prompts of exactly length - room tokens, one a sample."""
        least = 2 * self.common * (self.times + self.others)  # a word and its number have a token each, or more
        samples = [self._asked(tokenizer, seed, index) for index in range(n)] if least <= max(length, COUNTED) else []
        least = max([least, *(sample.least for sample in samples)])
        if length < least:
            raise Refused(
                f"common_words needs at least {least} tokens, asked for {length}: raise length or lower times"
            )
        return [self._question(tokenizer, length, seed, sample) for sample in samples]

    def _asked(self, tokenizer: Tokenizer, seed: int, index: int) -> Asked:
        spelled = _distinct(self.rng("words", seed, index))
        common = list(itertools.islice(spelled, self.common))
        more = (tokenizer.encode(f" {word}").ids for word in spelled)
        words = [*(tokenizer.encode(f" {word}").ids for word in common), *itertools.islice(more, self.common)]
        answer = " " + ", ".join(common)
        written = len(tokenizer.encode(answer).ids)
        if self.room is not None and self.room < written:
            raise Refused(f"common_words' answer has {written} tokens, its room {self.room}: raise room")
        frame, begin = tokenizer.frame(self.chat), BEGIN.lstrip() if self.chat else BEGIN
        ask = tokenizer.encode(ASK.format(common=self.common)).ids
        before = np.concatenate([frame.before, tokenizer.encode(HEADER).ids])
        after = np.concatenate([ask, frame.after, tokenizer.encode(begin).ids])
        room = self.room or written + MARGIN
        times = self._times(len(words))
        numbers = sum(len(_number(tokenizer, place)) for place in range(1, sum(times) + 1))
        listed = numbers + sum(count * len(word) for count, word in zip(times, words, strict=True))
        least = len(before) + listed + len(after) + room
        return Asked(
            index=index,
            common=common,
            words=words,
            more=more,
            before=before,
            after=after,
            room=room,
            answer=answer,
            least=least,
        )

    def _times(self, words: int) -> list[int]:
        """How often each of so many words occurs."""
        return [self.times] * self.common + [self.others] * (words - self.common)

    def _question(self, tokenizer: Tokenizer, length: int, seed: int, asked: Asked) -> Write:
        words, left = list(asked.words), length - asked.least
        listed = sum(self._times(len(words)))
        for word in asked.more:
            further = range(listed + 1, listed + self.others + 1)
            cost = self.others * len(word) + sum(len(_number(tokenizer, place)) for place in further)
            if cost > left:
                break
            words.append(word)
            left -= cost
            listed += self.others
        each = np.repeat(np.arange(len(words)), self._times(len(words)))
        order = self.rng("order", seed, asked.index).permutation(each)
        items = [part for place, word in enumerate(order, start=1) for part in (_number(tokenizer, place), words[word])]
        filler = haystack.noise(tokenizer, left, str(asked.index))
        return Write(
            index=asked.index,
            cluster=filler.name,
            prompt=np.concatenate([asked.before, filler.tokens, *items, asked.after]),
            room=asked.room,
            answer=asked.answer,
            chance=1 / math.comb(len(words), self.common),
            facts={"expected": asked.common, "different": len(words), "listed": listed},
        )

    def score(self, question: AnyQuestion, answer: Answer) -> Sample:
        """Strict and lenient accuracy."""
        assert isinstance(question, Write) and isinstance(answer, Written)
        return score_written(
            question,
            answer,
            {
                "accuracy": matching.strict(matching.unnumbered(answer.text), question.facts["expected"], ITEM),
                "contains": matching.contains_all(answer.text, question.facts["expected"]),
            },
        )


def _distinct(rng: np.random.Generator) -> Iterator[str]:
    """Words by chance, each once; Refused after the last one."""
    lack = f"common_words has {WORDS.count} different words, the list needs more: raise others or lower length"
    return map(WORDS.spell, sampling.distinct(rng, WORDS.count, lack))


@functools.lru_cache(maxsize=1 << 18)
def _number(tokenizer: Tokenizer, place: int) -> Tokens:
    """What stands before a word."""
    return tokenizer.encode(f"\n{place}.").ids
