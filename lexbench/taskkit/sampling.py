"""Random draws of tasks: numbers without repetition, strings that are distinct or equally long in tokens, words.

All iterators are lazy: the values do not depend on how many are taken, only on the generator and on earlier draws.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lexbench.core.record import Refused
from lexbench.core.task import Tokenizer, Tokens

MAX_UNUSABLE_VALUES = 1000
"""Give up after so many unusable values in a row."""
N_USUAL_SIZE_VALUES = 64
"""Number of values from which the usual number of tokens is taken."""


def shuffled_numbers(rng: np.random.Generator, count: int, refusal: str, wide: bool = False) -> Iterator[int]:
    """The numbers 0 to count - 1, each once, in uniform random order (Fisher and Yates); memory grows with the draws.

    Args:
        rng: used for one number at a time.
        count: at most 2^63, with `wide` 2^128.
        refusal: reason of the Refused after the last number.
        wide: draw 256 bits per number and take the remainder; the deviation from uniform is count / 2^256.
    """
    moved: dict[int, int] = {}  # place below `left` -> its number, if not the place itself
    for left in range(count, 0, -1):
        # A UUID has more values than a 64-bit draw.
        place = int.from_bytes(rng.bytes(32), "big") % left if wide else int(rng.integers(left))
        # Fisher and Yates without the list: the last number moves to the drawn place, and only moved ones are kept.
        number, moved[place] = moved.get(place, place), moved.get(left - 1, left - 1)
        yield number
    raise Refused(refusal)


def without_repetitions(values: Iterable[str], what: str, remedy: str) -> Iterator[str]:
    """The values without repetitions.

    Raises Refused, "`what` in 1000: `remedy`", after 1000 repetitions in a row.
    """
    seen, misses = set[str](), 0
    for value in values:
        # In a row: a few repetitions are luck, a thousand say that the values are used up.
        misses = misses + 1 if value in seen else 0
        if misses == 0:
            seen.add(value)
            yield value
        elif misses == MAX_UNUSABLE_VALUES:
            raise Refused(f"{what} in {MAX_UNUSABLE_VALUES}: {remedy}")


def keep_usual_size(tokenizer: Tokenizer, values: Iterable[str], what: str, remedy: str) -> Iterator[str]:
    """The values with the usual number of tokens, behind a space; the usual number is that of most of the first 64.

    Options of a choice need it: a summed NLL favours options with fewer tokens. Raises Refused, "`what` of N tokens in
    1000: `remedy`", after 1000 other values in a row.
    """

    def tokens(value: str) -> int:
        return len(tokenizer.encode(f" {value}").ids)

    values = iter(values)
    first = list(itertools.islice(values, N_USUAL_SIZE_VALUES))
    usual, misses = Counter(map(tokens, first)).most_common(1)[0][0], 0
    for value in itertools.chain(first, values):
        misses = 0 if tokens(value) == usual else misses + 1
        if misses == 0:
            yield value
        elif misses == MAX_UNUSABLE_VALUES:
            raise Refused(f"{what} of {usual} tokens in {MAX_UNUSABLE_VALUES}: {remedy}")


def values_of_common_size(tokenizer: Tokenizer, values: Sequence[str]) -> list[str]:
    """The values with the most common number of tokens, behind a space: options of a choice, as in
    `keep_usual_size`."""
    sizes = [len(tokenizer.encode(f" {value}").ids) for value in values]
    usual, _ = Counter(sizes).most_common(1)[0]
    return [value for value, size in zip(values, sizes, strict=True) if size == usual]


def random_letter_words(rng: np.random.Generator, alphabet: str, size: int) -> Iterator[str]:
    """Words of `size` letters without end; letters are uniform and independent."""
    while True:
        yield "".join(alphabet[letter] for letter in rng.integers(len(alphabet), size=size))


@dataclass(frozen=True)
class Combined:
    """All strings with one part from each list, by number; the first list's part changes fastest."""

    lists: Sequence[Sequence[str]]
    between: str = ""

    @property
    def count(self) -> int:
        """Number of strings. They are distinct if no string splits into parts in two ways."""
        return math.prod(map(len, self.lists))

    def spell(self, number: int) -> str:
        """The string with this number, from 0 to count - 1."""
        parts = []
        for words in self.lists:
            number, place = divmod(number, len(words))
            parts.append(words[place])
        return self.between.join(parts)


CONSONANT_LETTERS, VOWEL_LETTERS = "bcdfghjklmnprstvwz", "aeiou"
TWO_LETTER_SYLLABLES = tuple(consonant + vowel for consonant in CONSONANT_LETTERS for vowel in VOWEL_LETTERS)
PRONOUNCEABLE_WORDS = Combined((TWO_LETTER_SYLLABLES,) * 3)
"""729,000 pronounceable words of six letters; no word contains another."""

WORD_LISTS_FILE = Path(__file__).with_name("words.txt")
ENGLISH_ADJECTIVES, ENGLISH_NOUNS = (
    words.split() for words in WORD_LISTS_FILE.read_text(encoding="utf-8").split("\n\n")
)


def single_tokens(tokenizer: Tokenizer, symbols: str, task: str) -> Tokens:
    """[symbols] the token of each symbol behind a new line; Refused unless each has one token of its own."""
    # Behind a new line, as in the text: many tokenizers give a word a blank or another token at the start of a text.
    behind = len(tokenizer.encode("\n").ids)
    found = [tokenizer.encode(f"\n{symbol}").ids[behind:] for symbol in symbols]
    if {len(ids) for ids in found} != {1} or len({int(ids[0]) for ids in found}) < len(symbols):
        raise Refused(f"{task} needs a token of its own for each of {' '.join(symbols)}: take another tokenizer")
    return np.concatenate(found)
