"""Repeated words: write a long list of one word again, with the one that differs at its place."""

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lexbench import Answer, AnyQuestion, Generate, GenerateAnswer, Outline, Sample, Task, Tokenizer
from lexbench.taskkit import haystack, sampling
from lexbench.taskkit.prompt import (
    FixedParts,
    check_at_least,
    check_length,
    context_beginning,
    outline_of,
    tokens_around_haystack,
)
from lexbench.taskkit.scoring import score_written

TEXT_HEADER = "Repeat these words exactly, in the same order:"
ASK_AGAIN = ".\nThe same words again, in the same order:"
WORDS_END = "."
MIN_TOKENS_PER_WORD_TOKEN = 2
"""Tokens to write for each token of the words, at least."""
MIN_WORDS = 8


@dataclass(frozen=True)
class RepeatedWords(Task):
    """Write again what was read: one word many times, and once another (Hong, Troynikov and Huber, Context Rot, 2025).

        Repeat these words exactly, in the same order: river river river castle river river river river.
        The same words again, in the same order:        <- " river river river castle river river river river."

    The answer grows with the length, which no other task of retrieval has: a third of the length is the words, two
    thirds are room, as in the experiment repeated_words of chroma-core/context-rot. Beside the words only the room has
    what is left over. There the pairs of words are seven, the lengths 25 to 10,000 words, and the odd word stands at
    one of about 101 places; here both words are new in each sample, have equally many tokens, and the place is drawn
    from stratum i modulo `strata` for sample i.

    Chance is the best answer that knows both words and their number and not the place: 1 / words. Repeating the common
    word alone has a `similarity` of 1 - 1 / words, which is why `accuracy` and `odd_place` come first.

    Scores of what stands before the first full stop: `accuracy`, exactly the same words; `similarity`, 1 - Levenshtein
    / the longer one, in words (in characters there); `odd_word`, it occurs; `odd_place`, it stands at its place;
    `word_count`, the smaller number of words divided by the larger one.

    Small models of 135 million parameters and less stay at the floor of `accuracy` (`results/reference/tasks_2026.md`),
    so no suite has this task.

    Args:
        strata: stratify the place of the odd word into this many equal parts.
        chat: use the model's chat template; the first words of the answer come after it.
    """

    form: ClassVar[tuple[str, ...]] = ("chat",)
    strata: int = 8
    chat: bool = False

    def __post_init__(self) -> None:
        check_at_least("repeated_words", self, strata=1)

    def protocol(self, tokenizer: Tokenizer) -> str:
        """Protocol: the repeated words, the room, and the score."""
        return (
            f"one word many times and once another, written again, room at least {MIN_TOKENS_PER_WORD_TOKEN} times the "
            "words, strict: the "
            f"same words up to the first full stop, greedy, {context_beginning(tokenizer, self.chat)}"
        )

    def outline(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Outline:
        """Sizes of the first questions."""
        asked = [self._question(tokenizer, length, seed, index) for index in range(min(n, 8))]
        fixed = [
            FixedParts(
                index=each.index,
                before=each.prompt,
                after=each.prompt[:0],
                room=each.max_new_tokens,
                answer=each.answer,
            )
            for each in asked
        ]
        return outline_of([[each] for each in fixed], length, n)

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        """One list of words per sample."""
        return [self._question(tokenizer, length, seed, index) for index in range(n)]

    def _question(self, tokenizer: Tokenizer, length: int, seed: int, index: int) -> Generate:
        rng = self.rng("words", seed, index)
        nouns = _nouns(tokenizer)
        common, odd = (nouns[each] for each in rng.permutation(len(nouns))[:2])
        before, after = tokens_around_haystack(tokenizer, self.chat, [TEXT_HEADER], ASK_AGAIN, "")
        words = {word: tokenizer.encode(f" {word}").ids for word in (common, odd)}
        size, end = len(words[common]), len(tokenizer.encode(WORDS_END).ids)
        fixed = len(before) + len(after) + end
        check_length("repeated_words", fixed + (1 + MIN_TOKENS_PER_WORD_TOKEN) * size * MIN_WORDS, length)
        count = (length - fixed) // ((1 + MIN_TOKENS_PER_WORD_TOKEN) * size)
        place = min(int(haystack.stratified_depth(index, self.strata, rng) * count), count - 1)
        listed = [odd if each == place else common for each in range(count)]
        prompt = np.concatenate([before, *(words[word] for word in listed), after])
        return Generate(
            index=index,
            cluster=str(index),
            prompt=prompt,
            max_new_tokens=length - len(prompt),
            answer=f" {' '.join(listed)}{WORDS_END}",
            chance=1 / count,
            until=(WORDS_END,),
            facts={"common": common, "odd": odd, "words": count, "place": place, "depth": (place + 0.5) / count},
        )

    def score(self, question: AnyQuestion, answer: Answer) -> Sample:
        """Whether the words are the same, and how nearly."""
        assert isinstance(question, Generate) and isinstance(answer, GenerateAnswer)
        facts = question.facts
        expected = [facts["odd"] if each == facts["place"] else facts["common"] for each in range(facts["words"])]
        written = re.findall(r"[\w-]+", answer.text.partition(WORDS_END)[0].lower())
        at_place = written[facts["place"] : facts["place"] + 1]
        longer = max(len(expected), len(written))
        scores = {
            "accuracy": float(written == expected),
            "similarity": 1 - _distance(expected, written) / longer,
            "odd_word": float(facts["odd"] in written),
            "odd_place": float(at_place == [facts["odd"]]),
            "word_count": min(len(expected), len(written)) / longer,
        }
        return score_written(question, answer, scores)


@functools.lru_cache(maxsize=16)
def _nouns(tokenizer: Tokenizer) -> list[str]:
    """Words of the most common number of tokens."""
    return sampling.values_of_common_size(tokenizer, sampling.ENGLISH_NOUNS)


def _distance(one: Sequence[str], other: Sequence[str]) -> int:
    """Levenshtein's distance of two lists of words: insertions, deletions and replacements."""
    numbers = {word: number for number, word in enumerate(dict.fromkeys([*one, *other]))}
    columns, steps = np.array([numbers[word] for word in other], np.int64), np.arange(len(other) + 1)
    row = steps
    for place, word in enumerate(one, 1):
        # Deleted or replaced; then inserted: the least of all cells to the left, one more for each step from there.
        best = np.concatenate([[place], np.minimum(row[1:] + 1, row[:-1] + (columns != numbers[word]))])
        row = np.minimum.accumulate(best - steps) + steps
    return int(row[-1])
