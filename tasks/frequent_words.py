"""Frequent words: a coded text whose words follow Zipf's law, and which three of them are the most frequent."""

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from lexbench import Answer, AnyQuestion, Refused, Sample, Task, Tokenizer, Tokens, Write, Written
from lexbench.taskkit import haystack, matching, sampling
from lexbench.taskkit.scoring import score_written

HEADER = "This coded text repeats some words more often than others.\n"
DOTS = " ..."
ASK = "\nApart from the dots, which three words occur most often in it?"
BEGIN = " The words are"
ASKED = 3
LETTERS, SIZE = "bcdfghjklmnpqrstvwxz", 6
MARGIN = 8
"""Tokens to write beyond those of the answer."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Asked:
    """All that one sample has at every length."""

    index: int
    words: list[str]
    """By rank, those asked for first; the dots are none of them."""
    pieces: list[Tokens]
    """Dots and words as tokens."""
    before: Tokens
    after: Tokens
    room: int
    answer: str

    @property
    def fixed(self) -> int:
        """Tokens without the coded text."""
        return len(self.before) + len(self.after) + self.room

    def coded(self, counts: NDArray[np.int64]) -> int:
        """Tokens of the coded text with so many of each piece."""
        return int(counts @ np.asarray([len(piece) for piece in self.pieces]))


@dataclass(frozen=True)
class FrequentWords(Task):
    """Name the three most frequent words of a coded text (RULER's fwe).

    After Hsieh et al., RULER (arXiv 2404.06654); words our own. The word of rank k has the share
    k^-alpha / (1^-alpha + ... + vocabulary^-alpha) of the text; rank 1 are dots, which are not asked for. Held constant
    over lengths: of sample i the words and the shares; all counts grow together. (RULER's vocabulary is a fiftieth of
    the length, so that there are the more words the longer the text; its alpha is 2, too.)

        This coded text repeats some words more often than others.                   <- header
        ... hbxkzq ... ... wprtgm ... hbxkzq nvcdls ... ... hbxkzq
        Apart from the dots, which three words occur most often in it? The words are         <- " hbxkzq, wprtgm, ..."

    Counts are set, not drawn: rank k has its share of s, rounded down, and at least 1, where s is the largest whole
    number for which the text fits. The three words are unique because an s is taken only if the counts of ranks 2 to 5
    fall strictly, each below the one before; otherwise the next smaller s is tried. What is then left is filled, before
    the text, with more dots, the last ones cut. The order is by chance, anew in each sample, and so are the words: six
    consonants, all different. The least length is the most that any of the n samples needs, so near it n decides
    whether a length is refused. Chance is any three words of the text.

    Scores: `accuracy`, strict: what is written begins with exactly the three words, in any order; `contains`: the share
    of them that stand somewhere in it (RULER's string_match_all).

    Args:
        vocabulary: different words of the text, dots counted.
        alpha: of the shares; larger ones make the three stand out more, and the text longer that they need.
        room: tokens to write; None: those of the answer, and eight more.
        chat: ask in the model's chat template; the answer's first words come after it.
    """

    form: ClassVar[tuple[str, ...]] = ("room", "chat")
    vocabulary: int = 20
    alpha: float = 2.0
    room: int | None = None
    chat: bool = False

    def __post_init__(self) -> None:
        if self.vocabulary < ASKED + 2:
            raise ValueError(f"frequent_words' vocabulary must be at least {ASKED + 2}, got {self.vocabulary}")
        if not 1 < self.alpha <= 4:
            raise ValueError(f"frequent_words' alpha must be above 1 and at most 4, got {self.alpha}")
        if self.room is not None and self.room < 1:
            raise ValueError(f"frequent_words' room must be at least 1, got {self.room}")

    def protocol(self, tokenizer: Tokenizer) -> str:
        """One line: what is asked and how it is scored."""
        start = ("BOS" if tokenizer.prefix else "no BOS") + (", chat template" if self.chat else "")
        return (
            f"frequent words: the first three of {self.vocabulary - 1} by zeta({self.alpha:g}) beside dots, "
            f"strict: exactly these come first, greedy, {start}"
        )

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        """Prompts of exactly length - room tokens, one a sample."""
        samples = [self._asked(tokenizer, seed, index) for index in range(n)]
        shortest = self._counts(next(total for total in itertools.count(1) if self._separate(total)))
        least = max(sample.fixed + sample.coded(shortest) for sample in samples)
        if length < least:
            raise Refused(f"frequent_words needs at least {least} tokens, asked for {length}: raise length")
        return [self._question(tokenizer, length, seed, sample) for sample in samples]

    def _asked(self, tokenizer: Tokenizer, seed: int, index: int) -> Asked:
        drawn = sampling.letters(self.rng("words", seed, index), LETTERS, SIZE)
        new = sampling.unused(drawn, "frequent_words finds no further word", "lower vocabulary")
        words = list(itertools.islice(new, self.vocabulary - 1))
        answer = " " + ", ".join(words[:ASKED])
        written = len(tokenizer.encode(answer).ids)
        if self.room is not None and self.room < written:
            raise Refused(f"frequent_words' answer has {written} tokens, its room {self.room}: raise room")
        frame, begin = tokenizer.frame(self.chat), BEGIN.lstrip() if self.chat else BEGIN
        return Asked(
            index=index,
            words=words,
            pieces=[tokenizer.encode(text).ids for text in (DOTS, *(f" {word}" for word in words))],
            before=np.concatenate([frame.before, tokenizer.encode(HEADER).ids]),
            after=np.concatenate([tokenizer.encode(ASK).ids, frame.after, tokenizer.encode(begin).ids]),
            room=self.room or written + MARGIN,
            answer=answer,
        )

    def _counts(self, total: int) -> NDArray[np.int64]:
        """[vocabulary] of each rank, dots first, in a text of about so many pieces."""
        weights = np.arange(1, self.vocabulary + 1) ** -self.alpha
        shares: NDArray[np.float64] = total * weights / weights.sum() + 1e-9  # whole numbers stay so on every machine
        return np.maximum(1, shares.astype(np.int64))

    def _separate(self, total: int) -> bool:
        """Whether the words asked for differ in their counts, from one another and from the word after them."""
        return bool((np.diff(self._counts(total)[1 : ASKED + 2]) < 0).all())

    def _question(self, tokenizer: Tokenizer, length: int, seed: int, asked: Asked) -> Write:
        space = length - asked.fixed
        totals = range(space + 1)  # a piece has a token or more
        largest = bisect.bisect_right(totals, space, key=lambda total: asked.coded(self._counts(total))) - 1
        counts = self._counts(next(total for total in range(largest, 0, -1) if self._separate(total)))
        order = self.rng("order", seed, asked.index).permutation(np.repeat(np.arange(self.vocabulary), counts))
        filler = haystack.noise(tokenizer, space - asked.coded(counts), str(asked.index), [DOTS])
        return Write(
            index=asked.index,
            cluster=filler.name,
            prompt=np.concatenate([asked.before, filler.tokens, *(asked.pieces[rank] for rank in order), asked.after]),
            room=asked.room,
            answer=asked.answer,
            chance=1 / math.comb(self.vocabulary - 1, ASKED),
            facts={"expected": asked.words[:ASKED], "counts": counts[1:].tolist()},
        )

    def score(self, question: AnyQuestion, answer: Answer) -> Sample:
        """Strict and lenient accuracy."""
        assert isinstance(question, Write) and isinstance(answer, Written)
        items = rf"[{LETTERS}]{{{SIZE}}}"
        return score_written(
            question,
            answer,
            {
                "accuracy": matching.strict(matching.unnumbered(answer.text), question.facts["expected"], items),
                "contains": matching.contains_all(answer.text, question.facts["expected"]),
            },
        )
