"""Synthetic text: the same bytes everywhere, and exactly the dependencies that its docstring promises."""

import math
import re
from collections import Counter

import numpy as np
import pytest

from lexbench.corpora.synthetic import COLOUR_WORDS, Synthetic

STATED = re.compile(r"(\w+) owns an? (\w+) (\w+)\.")
RECALLED = re.compile(r"The (\w+) of (\w+) is (\w+)\.")


LATEST = 2048 + 100


def recalls(text: str) -> tuple[list[int], list[str]]:
    """Words from a statement's begin to its recall's, for statements with LATEST words behind them; all colours."""
    words, waiting, distances, colours = 0, {}, {}, []
    for sentence in re.findall(r"[^.]+\.", text):
        if stated := STATED.fullmatch(sentence.strip()):
            owner, colour, thing = stated.groups()
            assert (owner, thing) not in waiting
            waiting[owner, thing] = (words, colour)
            colours.append(colour)
        elif recalled := RECALLED.fullmatch(sentence.strip()):
            thing, owner, colour = recalled.groups()
            begin, known = waiting.pop((owner, thing))
            assert colour == known
            distances[begin] = words - begin
        words += len(sentence.split())
    assert all(begin > words - LATEST for begin, _ in waiting.values())
    return [distance for begin, distance in distances.items() if begin <= words - LATEST], colours


@pytest.fixture(scope="module")
def measured() -> tuple[list[int], list[str]]:
    parts = [recalls(document.text) for document in Synthetic(count=4, words=40_000, reach=2048).documents()]
    return [d for distances, _ in parts for d in distances], [c for _, colours in parts for c in colours]


def test_the_bytes_are_the_same_on_every_machine() -> None:
    assert Synthetic(count=2, words=200).fingerprint() == "d66ea242a545d8aa"
    first = next(Synthetic().documents())
    assert first.text.startswith("The old railway leads from the forest to the forest. Cora owns a blue barrel. ")


def test_text_is_ascii_of_the_asked_size() -> None:
    documents = list(Synthetic(count=5, words=300).documents())
    assert len(documents) == 5
    for document in documents:
        assert document.text.isascii()
        assert 300 <= len(document.text.split()) < 300 + 10  # the longest sentence has ten words
        assert {line.count(".") for line in document.text.splitlines()[:-1]} == {6}


def test_a_document_depends_on_its_place_alone() -> None:
    few, many = list(Synthetic(count=2).documents()), list(Synthetic(count=4).documents())
    assert few == many[:2]
    assert len({document.text for document in [*many, *Synthetic(count=4, seed=1).documents()]}) == 8


def test_every_recall_comes_and_says_what_was_stated_last(measured: tuple[list[int], list[str]]) -> None:
    """`recalls` has compared every colour, and found no statement left without its recall."""
    distances, _ = measured
    assert len(distances) > 5000
    assert 16 <= min(distances) <= max(distances) < LATEST


def test_every_doubling_of_the_reach_brings_as_many_recalls(measured: tuple[list[int], list[str]]) -> None:
    """16 to 2048 are eight distances, each of an eighth: chi-square, 7 degrees of freedom, < 24.3 with p 0.999."""
    counts = np.bincount([int(math.log2(distance / 16)) for distance in measured[0]])
    assert len(counts) == 8
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 24.3


def test_colours_are_uniform_over_sixteen(measured: tuple[list[int], list[str]]) -> None:
    """ln 16 nats a recall; chi-square with 15 degrees of freedom: below 37.7 with probability 0.999."""
    counts = np.asarray(list(Counter(measured[1]).values()))
    assert len(counts) == len(set(COLOUR_WORDS.split())) == 16
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 37.7


def test_more_context_tells_more_and_by_equal_steps() -> None:
    """A reader of c words knows the colours stated within them: each doubling saves as many nats a document."""
    distances, _ = recalls(next(Synthetic(count=1, words=100_000, reach=1024).documents()).text)
    unseen = [sum(distance > words for distance in distances) for words in (31, 62, 124, 248, 496, 992, 1984)]
    steps = -np.diff(np.asarray(unseen) * math.log(16))
    np.testing.assert_allclose(steps, steps.mean(), rtol=0.2)  # about 450 recalls each: four standard errors
    assert unseen[-1] == 0


@pytest.mark.parametrize("changed", [{"seed": -1}, {"count": 0}, {"words": 0}, {"reach": 15}])
def test_a_parameter_below_its_least_is_an_error(changed: dict[str, int]) -> None:
    [name] = changed
    with pytest.raises(ValueError, match=f"corpus.{name} must be at least"):
        Synthetic(**changed)
