"""Frequent words: name the three most frequent words of a coded text that follows Zipf's law."""

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from lexbench import Answer, AnyQuestion, ConfigError, Generate, Outline, Sample, Task, Tokenizer, Tokens
from lexbench.taskkit import haystack, matching, sampling, shortcuts
from lexbench.taskkit.prompt import (
    FixedParts,
    check_at_least,
    check_count,
    check_length,
    context_beginning,
    fixed_fields,
    outline_of,
    texts_for_sizes,
)
from lexbench.taskkit.scoring import score_items

PROMPT_HEADER = "This coded text repeats some words more often than others.\n"
DOTS_PIECE = " ..."
QUESTION_TEXT = "\nApart from the dots, which three words occur most often in it?"
ANSWER_BEGINNING = " The words are"
N_ASKED_WORDS = 3
"""Words to name."""
CODED_WORD_LETTERS, CODED_WORD_SIZE = "bcdfghjklmnpqrstvwxz", 6
ANSWER_MARGIN_TOKENS = 8
"""Tokens to write beyond those of the answer."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FixedCodedText(FixedParts):
    """The parts of a sample that are the same at every length."""

    words: list[str]
    """Words by rank, without the dots; the first three are the answer."""
    pieces: list[Tokens]
    """Tokens of the dots and of each word."""

    def coded_text_tokens(self, counts: NDArray[np.int64]) -> int:
        """Tokens of a coded text with these counts of the pieces."""
        return int(counts @ np.asarray([len(piece) for piece in self.pieces]))


@dataclass(frozen=True)
class FrequentWords(Task):
    """Name the three most frequent words of a coded text (fwe of RULER, Hsieh et al., arXiv 2404.06654).

        share of rank k = k^-alpha / (1^-alpha + ... + vocabulary^-alpha); rank 1 is the dots

        This coded text repeats some words more often than others.                   <- header
        ... hbxkzq ... ... wprtgm ... hbxkzq nvcdls ... ... hbxkzq
        Apart from the dots, which three words occur most often in it? The words are         <- " hbxkzq, wprtgm, ..."

    Constant over lengths, for each sample: the words and their shares. All counts grow together. Counts are computed,
    not sampled: rank k occurs floor(share * s) times, at least once, for the largest whole number s at which the text
    fits and the counts of ranks 2 to 5 decrease strictly; so the three words are unique. More dots before the text,
    the last ones cut, fill the rest. Words are six consonants, distinct, and new in each sample; so is the order. The
    least length is the largest need among the n samples, so near it n decides whether a length is refused.

    Chance: naming the first three different words of the text, which counts nothing and yet is right the more often,
    the more frequent the three are: the sum over their orders of the product of c / (words left), one after another,
    e.g. 0.15 of 1024 tokens. (It was that of any three words, 0.001.)

    The wording is ours. RULER's vocabulary is a fiftieth of the length, so its number of words grows with the length;
    its alpha is also 2.

    Scores: `accuracy` (strict): the answer begins with exactly the three words, in any order. `contains`: the share of
    them that occur anywhere in the answer (RULER's string_match_all).

    Args:
        vocabulary: number of different words, dots included.
        alpha: exponent of the shares; a larger one makes the three words stand out more and raises the least length.
        room: tokens to write; None: those of the answer and eight more.
        chat: use the model's chat template; the first words of the answer come after it.
    """

    form: ClassVar[tuple[str, ...]] = ("room", "chat")
    vocabulary: int = 20
    alpha: float = 2.0
    room: int | None = None
    chat: bool = False

    def __post_init__(self) -> None:
        check_at_least("frequent_words", self, vocabulary=N_ASKED_WORDS + 2, room=1)
        if not 1 < self.alpha <= 4:
            raise ConfigError(f"frequent_words' alpha must be above 1 and at most 4, got {self.alpha}")

    def protocol(self, tokenizer: Tokenizer) -> str:
        """Protocol in words: distribution of the words, scoring of the answer."""
        return (
            f"frequent words: the first three of {self.vocabulary - 1} by zeta({self.alpha:g}) beside dots, "
            f"strict: exactly these come first, greedy, {context_beginning(tokenizer, self.chat)}"
        )

    def outline(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Outline:
        """Sizes of n questions, estimated from those of the first samples."""
        return outline_of(
            [[sample] for sample in self._fitting_parts(tokenizer, length, texts_for_sizes(n), seed)], length, n
        )

    def _fitting_parts(self, tokenizer: Tokenizer, length: int, samples: range, seed: int) -> list[FixedCodedText]:
        """The fixed parts of some samples; Refused where those of one do not fit."""
        check_count("frequent_words", self.vocabulary, "words", length)
        fixed = [self._fixed_parts(tokenizer, seed, index) for index in samples]
        shortest = self._counts(next(total for total in itertools.count(1) if self._separate(total)))
        check_length(
            "frequent_words", max(sample.tokens + sample.coded_text_tokens(shortest) for sample in fixed), length
        )
        return fixed

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        """One prompt of exactly length - room tokens per sample."""
        samples = self._fitting_parts(tokenizer, length, range(n), seed)
        return [self._question(tokenizer, length, seed, sample) for sample in samples]

    def _fixed_parts(self, tokenizer: Tokenizer, seed: int, index: int) -> FixedCodedText:
        drawn = sampling.random_letter_words(self.rng("words", seed, index), CODED_WORD_LETTERS, CODED_WORD_SIZE)
        new = sampling.without_repetitions(drawn, "frequent_words finds no further word", "lower vocabulary")
        words = list(itertools.islice(new, self.vocabulary - 1))
        # Rank 1 is the dots, so the first three words are ranks 2 to 4.
        answer = " " + ", ".join(words[:N_ASKED_WORDS])
        return FixedCodedText(
            **fixed_fields(
                self, tokenizer, index, [PROMPT_HEADER], QUESTION_TEXT, ANSWER_BEGINNING, [answer], ANSWER_MARGIN_TOKENS
            ),
            words=words,
            pieces=[tokenizer.encode(text).ids for text in (DOTS_PIECE, *(f" {word}" for word in words))],
        )

    def _counts(self, total: int) -> NDArray[np.int64]:
        """[vocabulary] occurrences of each rank, dots first, for a text of about `total` pieces."""
        weights = np.arange(1, self.vocabulary + 1) ** -self.alpha
        # 1e-9: a share that is a whole number must not be rounded down by a float error of some machine
        shares: NDArray[np.float64] = total * weights / weights.sum() + 1e-9
        return np.maximum(1, shares.astype(np.int64))

    def _separate(self, total: int) -> bool:
        """Whether the counts of the words to name, and of the word after them, decrease strictly."""
        return bool((np.diff(self._counts(total)[1 : N_ASKED_WORDS + 2]) < 0).all())

    def _question(self, tokenizer: Tokenizer, length: int, seed: int, fixed: FixedCodedText) -> Generate:
        space = length - fixed.tokens
        totals = range(space + 1)  # a piece has at least one token
        # Tokens grow with the total of pieces, so the largest that fits is found by bisection.
        largest = bisect.bisect_right(totals, space, key=lambda total: fixed.coded_text_tokens(self._counts(total))) - 1
        # Down from there to counts that name the words without a tie.
        counts = self._counts(next(total for total in range(largest, 0, -1) if self._separate(total)))
        order = self.rng("order", seed, fixed.index).permutation(np.repeat(np.arange(self.vocabulary), counts))
        filler = haystack.noise_haystack(
            tokenizer, space - fixed.coded_text_tokens(counts), str(fixed.index), [DOTS_PIECE]
        )
        body = [filler.tokens, *(fixed.pieces[rank] for rank in order)]
        facts = {"expected": fixed.words[:N_ASKED_WORDS], "counts": counts[1:].tolist()}
        question = fixed.write(body, filler.name, _chance_of_first(counts[1:].tolist()), facts)
        places = len(fixed.after) + np.cumsum([len(fixed.pieces[rank]) for rank in order[::-1]])[::-1]
        words = np.flatnonzero(order)  # the dots are no word
        steps = shortcuts.of_counts(order[words].tolist(), places[words].tolist(), range(1, N_ASKED_WORDS + 1))
        return replace(question, shortcut=steps)

    def score(self, question: AnyQuestion, answer: Answer) -> Sample:
        """Strict and lenient accuracy."""
        return score_items(
            question, answer, rf"[{CODED_WORD_LETTERS}]{{{CODED_WORD_SIZE}}}", matching.remove_list_numbers
        )


def _chance_of_first(counts: Sequence[int]) -> float:
    """Probability that the words to name are the first different ones, in a random order of words with these counts."""
    found = 0.0
    for order in itertools.permutations(counts[:N_ASKED_WORDS]):
        # What stands behind a word does not depend on where its own repetitions are: they are left out of what is left.
        left = [sum(counts) - sum(order[:place]) for place in range(N_ASKED_WORDS)]
        found += math.prod(count / words for count, words in zip(order, left, strict=True))
    return found
