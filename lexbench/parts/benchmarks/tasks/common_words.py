"""Common words: name the few words of a long list that occur most often."""

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from lexbench import Answer, AnyQuestion, ConfigError, Generate, Outline, Sample, Task, Tokenizer, Tokens
from lexbench.taskkit import haystack, matching, sampling, shortcuts
from lexbench.taskkit.prompt import (
    FixedParts,
    check_at_least,
    check_length,
    context_beginning,
    fixed_fields,
    outline_of,
    texts_for_sizes,
)
from lexbench.taskkit.scoring import score_items

PROMPT_HEADER = "This numbered list has words that occur more often than others.\n"
QUESTION_TEMPLATE = "\nWhich {common} words occur most often in the list?"
ANSWER_BEGINNING = " The words are"
CANDIDATE_WORDS = sampling.PRONOUNCEABLE_WORDS
"""Words to draw from, enough for a list of about four million tokens."""
LIST_ITEM_PATTERN = rf"(?:[{sampling.CONSONANT_LETTERS}][{sampling.VOWEL_LETTERS}]){{{len(CANDIDATE_WORDS.lists)}}}"
ANSWER_MARGIN_TOKENS = 8
"""Tokens to write beyond those of the answer."""
MAX_EXACTLY_SIZED_TOKENS = 10_000
"""Tokens up to which the least length is computed exactly; above, a lower bound refuses without making a list."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FixedWordList(FixedParts):
    """The parts of a sample that are the same at every length."""

    common: list[str]
    words: list[Tokens]
    """The common words and as many other words."""
    more: Iterator[Tokens]
    """Further words, to fill the length."""
    least: int
    """Least tokens of a question: prompt with every occurrence of `words`, and `room` tokens to write."""


@dataclass(frozen=True)
class CommonWords(Task):
    """Name the words that occur most often in a numbered list (cwe of RULER, Hsieh et al., arXiv 2404.06654).

        This numbered list has words that occur more often than others.              <- header
        1. kavodu
        2. mosiri
        3. kavodu
        ...
        Which 3 words occur most often in the list? The words are                    <- " kavodu, teluga, bifosa"

    Constant over lengths, for each sample: the common words, their number, how often each occurs and how often each
    other word occurs. Only the number of different other words grows, at least as many as there are common ones. A
    further word is added as long as all its occurrences fit; noise sentences before the list, the last one cut, fill
    the rest. Words are three syllables (consonant and vowel), new in each sample, distinct and equally long, so that no
    word contains another. The order is random. The least length is the largest need among the n samples, so near it n
    decides whether a length is refused.

    Chance: naming the first different words of the list, which counts nothing and yet is right more often than any
    `common` words, as these stand there more often: the product of k times / (lines - (common - k) times) for k from 1
    to `common`. (It was that of any words.)

    The wording is ours. RULER has 10 common words, which occur 30 times and others 3 times (`common=10 times=30
    others=3`), but 6 times and once below 4096 tokens, where its difficulty jumps. RULER uses one order for all lists
    of a size, and shows an answered example first.

    Scores: `accuracy` (strict): the answer begins with exactly the common words, in any order, numbered or not.
    `contains`: the share of them that occur anywhere in the answer (RULER's string_match_all).

    Args:
        common: number of words to name.
        times: occurrences of each common word.
        others: occurrences of each other word, fewer than `times`.
        room: tokens to write; None: those of the answer and eight more.
        chat: use the model's chat template; the first words of the answer come after it.
    """

    form: ClassVar[tuple[str, ...]] = ("room", "chat")
    common: int = 3
    times: int = 8
    others: int = 1
    room: int | None = None
    chat: bool = False

    def __post_init__(self) -> None:
        check_at_least("common_words", self, common=1, others=1, room=1)
        if self.times <= self.others:
            raise ConfigError(f"common_words' times must be more than others={self.others}, got {self.times}")

    def protocol(self, tokenizer: Tokenizer) -> str:
        """Protocol in words: how often words occur, scoring of the answer."""
        return (
            f"common words: {self.common} words {self.times} times each among others {self.others} times each, "
            f"strict: exactly these words come first, greedy, {context_beginning(tokenizer, self.chat)}"
        )

    def outline(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Outline:
        """Sizes of n questions, estimated from those of the first samples."""
        return outline_of(
            [[sample] for sample in self._fitting_parts(tokenizer, length, texts_for_sizes(n), seed)], length, n
        )

    def _fitting_parts(self, tokenizer: Tokenizer, length: int, samples: range, seed: int) -> list[FixedWordList]:
        """The fixed parts of some samples; Refused where those of one do not fit."""
        least = 2 * self.common * (self.times + self.others)  # at least a token for each word and each number
        fixed = (
            [self._fixed_parts(tokenizer, seed, index) for index in samples]
            if least <= max(length, MAX_EXACTLY_SIZED_TOKENS)
            else []
        )
        least = max([least, *(sample.least for sample in fixed)])
        check_length("common_words", least, length, "raise length or lower times")
        return fixed

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        """One prompt of exactly length - room tokens per sample."""
        samples = self._fitting_parts(tokenizer, length, range(n), seed)
        return [self._question(tokenizer, length, seed, sample) for sample in samples]

    def _fixed_parts(self, tokenizer: Tokenizer, seed: int, index: int) -> FixedWordList:
        spelled = _shuffled_words(self.rng("words", seed, index))
        common = list(itertools.islice(spelled, self.common))
        more = (tokenizer.encode(f" {word}").ids for word in spelled)
        words = [*(tokenizer.encode(f" {word}").ids for word in common), *itertools.islice(more, self.common)]
        answer, ask = " " + ", ".join(common), QUESTION_TEMPLATE.format(common=self.common)
        frame = fixed_fields(
            self, tokenizer, index, [PROMPT_HEADER], ask, ANSWER_BEGINNING, [answer], ANSWER_MARGIN_TOKENS
        )
        # The order is random, so the numbers' tokens are counted apart from the words'.
        times = self._times(len(words))
        numbers = sum(len(_number(tokenizer, place)) for place in range(1, sum(times) + 1))
        listed = numbers + sum(count * len(word) for count, word in zip(times, words, strict=True))
        return FixedWordList(**frame, common=common, words=words, more=more, least=FixedParts(**frame).tokens + listed)

    def _times(self, words: int) -> list[int]:
        """Occurrences of each of so many words, the common ones first."""
        return [self.times] * self.common + [self.others] * (words - self.common)

    def _question(self, tokenizer: Tokenizer, length: int, seed: int, fixed: FixedWordList) -> Generate:
        words, left = list(fixed.words), length - fixed.least
        listed = sum(self._times(len(words)))
        # Line numbers count as well, and grow a token longer here and there.
        for word in fixed.more:
            further = range(listed + 1, listed + self.others + 1)
            cost = self.others * len(word) + sum(len(_number(tokenizer, place)) for place in further)
            if cost > left:
                break
            words.append(word)
            left -= cost
            listed += self.others
        each = np.repeat(np.arange(len(words)), self._times(len(words)))
        order = self.rng("order", seed, fixed.index).permutation(each)
        items = [part for place, word in enumerate(order, start=1) for part in (_number(tokenizer, place), words[word])]
        filler = haystack.noise_haystack(tokenizer, left, str(fixed.index))
        facts = {"expected": fixed.common, "different": len(words), "listed": listed}
        # One word after another, its own repetitions left out of the lines: any of the k that are still to name.
        unnamed = range(self.common, 0, -1)
        chance = math.prod(k * self.times / (listed - (self.common - k) * self.times) for k in unnamed)
        question = fixed.write([filler.tokens, *items], filler.name, chance, facts)
        # An item is its number and its word, of which the word is read last.
        ends = len(fixed.after) + np.cumsum([len(item) for item in items[::-1]])[::2][::-1]
        steps = shortcuts.of_counts(order.tolist(), ends.tolist(), range(self.common))
        return replace(question, shortcut=steps)

    def score(self, question: AnyQuestion, answer: Answer) -> Sample:
        """Strict and lenient accuracy."""
        return score_items(question, answer, LIST_ITEM_PATTERN, matching.remove_list_numbers)


def _shuffled_words(rng: np.random.Generator) -> Iterator[str]:
    """All words in random order; Refused after the last one."""
    lack = (
        f"common_words has {CANDIDATE_WORDS.count} different words, the list needs more: raise others or lower length"
    )
    return map(CANDIDATE_WORDS.spell, sampling.shuffled_numbers(rng, CANDIDATE_WORDS.count, lack))


@functools.lru_cache(maxsize=1 << 18)
def _number(tokenizer: Tokenizer, place: int) -> Tokens:
    """Tokens of the line number in front of a word."""
    return tokenizer.encode(f"\n{place}.").ids
