"""Bytes and words of tokens, seeds, and scores of likelihoods."""

import hashlib
import json
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from lexbench import Corpus, Encoded, Generate, Loglikelihood, LoglikelihoodAnswer, Task
from lexbench.core.task import Choose, ClassifyTokens, ProbeAttention
from lexbench.corpora.synthetic import Synthetic
from lexbench.taskkit.scoring import score_likelihood


def encoded(text: str, *starts: int) -> Encoded:
    return Encoded(ids=np.arange(len(starts)), starts=np.asarray(starts), text=text)


def test_a_word_belongs_to_the_token_in_which_it_begins() -> None:
    pieces = encoded("the cat sat on", 0, 3, 5, 8, 12)  # the| c|at |sat |on
    assert [pieces.units(place, place + 1) for place in range(5)] == [(3, 1), (2, 1), (3, 0), (4, 1), (2, 1)]
    assert pieces.units(1, 4) == (9, 2)


def test_bytes_are_those_of_utf8() -> None:
    pieces = encoded("né日🙂", 0, 1, 2, 3)
    assert [pieces.units(place, place + 1)[0] for place in range(4)] == [1, 2, 3, 4]


def test_what_a_tokenizer_drops_belongs_to_a_neighbour() -> None:
    pieces = encoded("  a  b  ", 2, 5)
    assert pieces.units(0, 1) == (5, 1)
    assert pieces.units(1, 2) == (3, 1)


@dataclass(frozen=True)
class Draws(Task):
    corpus: Corpus
    digits: int = 5


@dataclass(frozen=True)
class Other(Task):
    corpus: Corpus
    digits: int = 5


def drawn(task: Task, *place: int | str) -> int:
    return int(task.rng(*place).integers(2**62))


def test_randomness_follows_from_place_name_version_and_parameters() -> None:
    corpus, elsewhere = Synthetic(), Synthetic(seed=1)
    assert drawn(Draws(corpus), 128, 0, 3) == drawn(Draws(corpus), 128, 0, 3) == drawn(Draws(elsewhere), 128, 0, 3)
    later = type("Draws", (Draws,), {"version": 2})(corpus)
    others = [
        drawn(Draws(corpus), 128, 0, 4),
        drawn(Draws(corpus), 128, 1, 3),
        drawn(Draws(corpus), 256, 0, 3),
        drawn(Draws(corpus, digits=6), 128, 0, 3),
        drawn(Other(corpus), 128, 0, 3),
        drawn(later, 128, 0, 3),
    ]
    assert len({drawn(Draws(corpus), 128, 0, 3), *others}) == 7


def question(targets: int) -> Loglikelihood:
    return Loglikelihood(index=3, cluster="book", tokens=np.arange(10), first_target=10 - targets, bytes=17, words=4)


def test_a_sample_keeps_every_targets_likelihood_and_its_units() -> None:
    sample = score_likelihood(question(3), LoglikelihoodAnswer(nll=np.asarray([0.5, 1.0, 2.0], np.float32)))
    assert sample.nll is not None
    assert sample.nll.tolist() == [0.5, 1.0, 2.0]
    assert (sample.index, sample.cluster, sample.tokens, sample.bytes, sample.words) == (3, "book", 10, 17, 4)
    assert sample.failed is None


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_likelihood_that_is_not_finite_fails_the_sample(bad: float) -> None:
    sample = score_likelihood(question(3), LoglikelihoodAnswer(nll=np.asarray([0.5, bad, bad], np.float32)))
    assert sample.failed == "2 of 3 targets have no finite likelihood"


def test_an_answer_with_a_target_too_few_is_our_own_bug() -> None:
    with pytest.raises(AssertionError, match="every target once"):
        score_likelihood(question(3), LoglikelihoodAnswer(nll=np.zeros(2, np.float32)))


def test_a_question_without_a_token_before_its_targets_is_our_own_bug() -> None:
    with pytest.raises(AssertionError, match="first_target 0 of 10"):
        question(10)


def test_room_counts_in_a_questions_length() -> None:
    assert Generate(index=0, cluster="0", prompt=np.arange(7), max_new_tokens=5).length == 12
    assert Generate(index=0, cluster="0", prompt=np.arange(7), max_new_tokens=5, thought=100).length == 112


@dataclass(frozen=True)
class Formed(Task):
    form: ClassVar[tuple[str, ...]] = ("room",)
    words: int = 5
    room: int | None = None


def test_how_a_question_is_asked_has_no_part_in_its_randomness() -> None:
    for words, room in ((5, None), (5, 9), (6, 12)):
        key = json.dumps(["Formed", 1, {"words": str(words), "room": "None"}, 256, 0, 3], sort_keys=True)
        seeded = np.random.default_rng(np.frombuffer(hashlib.sha256(key.encode()).digest(), dtype=np.uint32))
        drawn = Formed(words, room).rng(256, 0, 3).integers(1 << 40, size=4)
        assert drawn.tolist() == seeded.integers(1 << 40, size=4).tolist()


def test_chance_is_that_of_the_options_or_the_stated_guess() -> None:
    options = tuple(np.array([place]) for place in range(4))
    for guess, chance in ((None, 1 / 4), (0.19, 0.19)):
        choice = Choose(index=0, cluster="a", prompt=np.array([1, 2]), options=options, expected=0, guess=guess)
        marks = ClassifyTokens(
            index=0, cluster="a", tokens=np.arange(4), places=np.array([1, 3]), options=np.arange(4), guess=guess
        )
        assert (choice.chance, marks.chance) == (chance, chance)


def test_lengths_count_what_is_read_and_written() -> None:
    options = (np.array([1]), np.array([1, 2, 3]))
    prompt, tokens = np.arange(7), np.arange(9)
    assert Choose(index=0, cluster="", prompt=prompt, options=options, expected=0).length == 10  # the longest option's
    assert ClassifyTokens(index=0, cluster="", tokens=tokens, places=np.array([1]), options=np.arange(9)).length == 9
    assert ProbeAttention(index=0, cluster="", tokens=tokens).length == 9
    assert question(3).length == 10


def test_an_answer_ends_at_any_of_its_stop_texts() -> None:
    asked = Generate(index=0, cluster="", prompt=np.arange(2), max_new_tokens=9, until=("\n", "Q:"))
    assert [asked.contains_stop_text(text) for text in ("4 Q: next", "4\n", "4 Q", "")] == [True, True, False, False]
    assert not Generate(index=0, cluster="", prompt=np.arange(2), max_new_tokens=9).contains_stop_text("anything\n")


def test_spans_behind_white_space_begin_a_word_and_inside_one_do_not() -> None:
    pieces = encoded("ab cd\tef", 0, 1, 3, 6)  # a|b |cd\t|ef
    assert [pieces.units(place, place + 1) for place in range(4)] == [(1, 1), (2, 0), (3, 1), (2, 1)]
    assert pieces.units(0, 4) == (8, 3) and pieces.units(1, 4) == (7, 2)
    assert encoded("a  b", 0, 1, 3).units(1, 3) == (3, 1)  # a span that begins with white space
