"""Draws of tasks: numbers without repetition, distinct values, values of equally many tokens, words by number."""

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from scipy import stats

from lexbench import Refused
from lexbench.checkpoints.tokenizer import FastTokenizer
from lexbench.taskkit import sampling


@pytest.mark.parametrize("wide", [False, True])
def test_all_orders_of_four_numbers_are_equally_likely_and_then_there_are_no_more(wide: bool) -> None:
    """24 orders, chi-square at 0.001."""
    rng, orders = np.random.default_rng(0), Counter[tuple[int, ...]]()
    for _ in range(2400):
        numbers = sampling.shuffled_numbers(rng, 4, "no more: ask for less", wide)
        orders[tuple(itertools.islice(numbers, 4))] += 1
        with pytest.raises(Refused, match=r"^no more: ask for less$"):
            next(numbers)
    assert set(orders) == set(itertools.permutations(range(4)))
    assert stats.chisquare(list(orders.values())).pvalue > 0.001


@pytest.mark.parametrize("wide", [False, True])
def test_numbers_are_distinct_and_within_bounds(wide: bool) -> None:
    """All of 1000; and the first 2000 of 10^6 are uniform (Kolmogorov-Smirnov, 0.001)."""
    rng = np.random.default_rng(1)
    assert sorted(itertools.islice(sampling.shuffled_numbers(rng, 1000, "", wide), 1000)) == list(range(1000))
    drawn = list(itertools.islice(sampling.shuffled_numbers(rng, 10**6, "", wide), 2000))
    assert len(set(drawn)) == 2000 and min(drawn) >= 0 and max(drawn) < 10**6
    assert stats.kstest(np.asarray(drawn) / 10**6, "uniform").pvalue > 0.001


def test_numbers_may_be_of_128_bits() -> None:
    """Each bit is set in half of 1000 numbers (binomial; the smallest of 128 p-values, by Bonferroni, at 0.001)."""
    drawn = list(itertools.islice(sampling.shuffled_numbers(np.random.default_rng(2), 2**128, "", wide=True), 1000))
    assert len(set(drawn)) == 1000 and max(drawn) < 2**128
    set_bits = [sum(number >> bit & 1 for number in drawn) for bit in range(128)]
    assert min(stats.binomtest(count, 1000).pvalue for count in set_bits) > 0.001 / 128


def test_of_none_there_is_none() -> None:
    with pytest.raises(Refused, match="none"):
        next(sampling.shuffled_numbers(np.random.default_rng(0), 0, "none"))


STREAMS: dict[str, Callable[[np.random.Generator], Iterator[object]]] = {
    "numbers": lambda rng: sampling.shuffled_numbers(rng, 10**6, ""),
    "wide numbers": lambda rng: sampling.shuffled_numbers(rng, 10**30, "", wide=True),
    "letters": lambda rng: sampling.random_letter_words(rng, "abc", 5),
}


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
def test_draws_are_made_when_they_are_asked_for(stream: Callable[[np.random.Generator], Iterator[object]]) -> None:
    """Draws are lazy: two streams of one seed agree as far as both are taken."""
    one, other = np.random.default_rng(3), np.random.default_rng(3)
    long, short = stream(one), stream(other)
    first = list(itertools.islice(long, 5))
    assert first == list(itertools.islice(short, 5)) and stream(one) is not None
    assert one.bit_generator.state == other.bit_generator.state
    assert next(long) == next(short) not in first


def test_letters_are_uniform() -> None:
    """Words of three letters out of four: each place, and all 64 words, are uniform (chi-square, 0.001)."""
    words = list(itertools.islice(sampling.random_letter_words(np.random.default_rng(4), "wxyz", 3), 6400))
    assert set(words) == {"".join(each) for each in itertools.product("wxyz", repeat=3)}
    assert stats.chisquare(list(Counter(words).values())).pvalue > 0.001


def test_unused_values_come_once() -> None:
    values = ["ab", "cd", "ab", "ef", "cd", "gh", "a"]
    assert list(sampling.without_repetitions(values, "no", "do")) == ["ab", "cd", "ef", "gh", "a"]


def test_after_a_thousand_used_values_in_a_row_there_is_none() -> None:
    """999 repetitions in a row are allowed; each new value restarts the count."""
    used = ["used"] * 999
    values = ["used", *used, "x", *used, "y"]
    assert list(sampling.without_repetitions(values, "no", "do")) == ["used", "x", "y"]
    found = sampling.without_repetitions([*values, *used, "used", "z"], "nothing new", "ask less")
    assert list(itertools.islice(found, 3)) == ["used", "x", "y"]
    with pytest.raises(Refused, match=r"^nothing new in 1000: ask less$"):
        next(found)


def test_alike_are_those_with_as_many_tokens_as_most(tokenizer: FastTokenizer) -> None:
    """Digits and the space before them are one token each: most of the 64 have two digits, and so do all later ones."""
    first = ["7"] * 20 + ["12", "34"] * 15 + ["567"] * 14
    later = ["8", "56", "9", "789", "78"]
    assert [len(tokenizer.encode(f" {value}").ids) for value in ("7", "12", "567")] == [2, 3, 4]
    assert list(sampling.keep_usual_size(tokenizer, first + later, "no", "do")) == ["12", "34"] * 15 + ["56", "78"]
    the_64th_decides = ["1"] * 31 + ["345"] + ["12"] * 32 + ["2"] * 50 + ["34"]
    assert list(sampling.keep_usual_size(tokenizer, the_64th_decides, "no", "do")) == ["12"] * 32 + ["34"]


def test_after_a_thousand_of_other_lengths_there_is_none(tokenizer: FastTokenizer) -> None:
    unlike = ["12"] * 999
    values = ["1"] * 64
    assert list(sampling.keep_usual_size(tokenizer, [*values, *unlike, "2", *unlike, "3"], "no", "do"))[-2:] == [
        "2",
        "3",
    ]
    found = sampling.keep_usual_size(tokenizer, [*values, *unlike, "12", "3"], "nothing", "ask less")
    assert list(itertools.islice(found, 64)) == values
    with pytest.raises(Refused, match=r"^nothing of 2 tokens in 1000: ask less$"):
        next(found)


def test_combined_strings_have_one_part_of_each_list() -> None:
    """By hand: the first list's parts change fastest; in all, the strings of itertools.product."""
    both = sampling.Combined([["a", "b"], ["x", "y", "z"]], "-")
    assert both.count == 6
    assert list(map(both.spell, range(6))) == ["a-x", "b-x", "a-y", "b-y", "a-z", "b-z"]
    three = sampling.Combined([range_of("a", 3), range_of("b", 4), range_of("c", 5)])
    expected = {"".join(parts) for parts in itertools.product(*three.lists)}
    assert {three.spell(number) for number in range(three.count)} == expected and three.count == 60


def range_of(letter: str, size: int) -> list[str]:
    return [f"{letter}{number}" for number in range(size)]


@pytest.mark.slow
def test_spoken_words_are_three_syllables_and_differ() -> None:
    """18 consonants and 5 vowels: 90 syllables."""
    assert sampling.PRONOUNCEABLE_WORDS.count == 90**3 == 729_000
    words = list(map(sampling.PRONOUNCEABLE_WORDS.spell, range(sampling.PRONOUNCEABLE_WORDS.count)))
    assert len(set(words)) == len(words)
    assert re.fullmatch(r"([bcdfghjklmnprstvwz][aeiou]){3}(, ([bcdfghjklmnprstvwz][aeiou]){3})*", ", ".join(words))
    assert (words[0], words[1], words[90], words[-1]) == ("bababa", "bebaba", "babeba", "zuzuzu")


def test_adjectives_and_nouns_are_single_words_each_once() -> None:
    for words in (sampling.ENGLISH_ADJECTIVES, sampling.ENGLISH_NOUNS):
        assert len(set(words)) == len(words) and all(re.fullmatch("[a-z]{3,}", word) for word in words)
    assert len(sampling.ENGLISH_ADJECTIVES) * len(sampling.ENGLISH_NOUNS) >= 1000
