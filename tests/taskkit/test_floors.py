"""Floors of likelihoods, counted by hand and by another program, from other documents only."""

import itertools
import math
from collections import Counter, defaultdict

import numpy as np
import pytest

from lexbench.core.task import Encoded
from lexbench.taskkit import floors
from lexbench.taskkit.floors import Floors


def encoded(*texts: list[int]) -> list[Encoded]:
    return [Encoded(ids=np.array(ids, np.int64), starts=np.arange(len(ids)), text="x" * len(ids)) for ids in texts]


def test_the_floors_of_two_targets_worked_out_by_hand() -> None:
    # Others: 0 1 0 1 2. Tokens: c(0) = 2, c(1) = 2, c(2) = 1 of N = 5; V = 4.
    # Pairs: 01 twice, 10, 12. Behind 0: two pairs of one kind; behind 1: two pairs of two kinds.
    found = Floors(encoded([3, 3, 3], [0, 1, 0, 1, 2]), 4).of(0, np.array([1, 3]), np.array([0, 1]))
    uni = (2 + 1) / (5 + 4), (0 + 1) / (5 + 4)
    bi = (2 + 1 * uni[0]) / (2 + 1), (0 + 2 * uni[1]) / (2 + 2)
    assert found == pytest.approx(
        {
            "uniform": math.log(4),
            "unigram": -(math.log(uni[0]) + math.log(uni[1])) / 2,
            "bigram": -(math.log(bi[0]) + math.log(bi[1])) / 2,
        }
    )


def test_a_token_never_seen_before_the_target_leaves_the_unigram() -> None:
    found = Floors(encoded([5], [0, 1, 0, 1]), 8).of(0, np.array([1]), np.array([6]))
    assert found["bigram"] == found["unigram"] == pytest.approx(-math.log(3 / 12))


def test_without_another_document_only_the_uniform_floor_is_known() -> None:
    assert Floors(encoded([0, 1, 0, 1]), 2).of(0, np.array([1]), np.array([0])) == {"uniform": math.log(2)}


@pytest.mark.parametrize("document", [0, 1, 2])
def test_the_counts_are_those_of_the_other_documents_alone(document: int) -> None:
    rng = np.random.default_rng(document)
    texts = [rng.integers(0, 7, 60).tolist() for _ in range(3)]
    targets, before = np.array(texts[document][1:]), np.array(texts[document][:-1])
    found = Floors(encoded(*texts), 9).of(document, targets, before)

    singles: Counter[int] = Counter()
    pairs: dict[int, Counter[int]] = defaultdict(Counter)
    for place, ids in enumerate(texts):
        if place != document:
            singles.update(ids)
            for one, two in itertools.pairwise(ids):
                pairs[one][two] += 1
    losses: list[tuple[float, float]] = []
    for one, two in zip(before.tolist(), targets.tolist(), strict=True):
        unigram = (singles[two] + 1) / (sum(singles.values()) + 9)
        behind = pairs[one]
        share = sum(behind.values()) / (sum(behind.values()) + len(behind)) if behind else 0.0
        seen = behind[two] / sum(behind.values()) if behind else 0.0
        losses.append((-math.log(unigram), -math.log(share * seen + (1 - share) * unigram)))
    assert [found["unigram"], found["bigram"]] == pytest.approx(np.mean(losses, axis=0).tolist())


def test_counting_ends_with_the_document_that_reaches_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floors, "MAX_COUNTED_TOKENS", 4)
    counted = Floors(encoded([9], [0, 1, 0, 1], [2, 2, 2, 2]), 10).of(0, np.array([2]), np.array([2]))
    assert counted["unigram"] == pytest.approx(-math.log(1 / 14))  # the third document is not counted
