"""N-gram models of a training's text, counted in another way and beside the floors of a corpus."""

import math
from collections import Counter

import numpy as np
import pytest

from lexbench.parts.lab.native.ngrams import WittenBell
from lexbench.taskkit.floors import Floors
from tests.taskkit.test_floors import encoded


def test_the_trigram_of_a_trainings_text_by_counting_in_another_way() -> None:
    rng = np.random.default_rng(1)
    texts, rows = rng.integers(0, 6, (5, 40)), rng.integers(0, 7, (3, 12))  # token 6 was never seen
    counts = [Counter[tuple[int, ...]]() for _ in range(3)]
    for text in texts.tolist():
        for n in (1, 2, 3):
            counts[n - 1].update(tuple(text[place : place + n]) for place in range(len(text) - n + 1))

    def probability(gram: tuple[int, ...]) -> float:
        if len(gram) == 1:
            return (counts[0][gram] + 1) / (texts.size + 8)
        behind = {each: count for each, count in counts[len(gram) - 1].items() if each[:-1] == gram[:-1]}
        shorter = probability(gram[1:])
        if not behind:
            return shorter
        return (counts[len(gram) - 1][gram] + len(behind) * shorter) / (sum(behind.values()) + len(behind))

    found = WittenBell(list(texts), 8).nll(rows, 11)
    for n, name in ((1, "unigram"), (2, "bigram"), (3, "trigram")):
        expected = [
            [-math.log(probability(tuple(row[max(0, place - n + 1) : place + 1]))) for place in range(1, 12)]
            for row in rows.tolist()
        ]
        np.testing.assert_allclose(found[name], expected, rtol=1e-12)
    assert (found["uniform"] == math.log(8)).all()


def test_the_bigram_of_a_trainings_text_is_that_of_a_corpus_without_the_target() -> None:
    texts = encoded([0, 1, 0, 1, 2], [3, 1, 2, 2])
    known = Floors([encoded([3])[0], *texts], 5).of(0, np.array([2, 1]), np.array([1, 2]))
    found = WittenBell([text.ids for text in texts], 5).nll(np.array([[1, 2, 1]]), 2)
    assert {name: nll.mean() for name, nll in found.items() if name != "trigram"} == pytest.approx(dict(known))
