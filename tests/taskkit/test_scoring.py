"""Samples of answers: accuracy by hand, ties, and answers that are no numbers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from lexbench import Generate, GenerateAnswer
from lexbench.core.task import Choose, ChooseAnswer, ClassifyTokens, ClassifyTokensAnswer
from lexbench.taskkit.scoring import score_choice, score_items, score_marks, score_written


def choice(expected: int) -> Choose:
    options = tuple(np.array([place]) for place in range(4))
    return Choose(index=3, cluster="a", prompt=np.array([7, 8]), options=options, expected=expected, facts={"key": 1})


@pytest.mark.parametrize(
    ("nll", "expected", "accuracy"),
    [
        ([2.0, 1.0, 3.0, 4.0], 1, 1.0),
        ([2.0, 1.0, 3.0, 4.0], 0, 0.0),
        ([1.0, 1.0, 3.0, 1.0], 3, 1 / 3),
        ([1.0, 1.0, 3.0, 1.0], 2, 0.0),
        ([0.5] * 4, 0, 0.25),
        ([np.nan, 1.0, 2.0, 3.0], 1, 0.0),
        ([np.inf, 1.0, 2.0, 3.0], 1, 0.0),
    ],
)
def test_a_choice_is_right_where_its_option_is_likeliest_and_ties_share(
    nll: list[float], expected: int, accuracy: float
) -> None:
    sample = score_choice(choice(expected), ChooseAnswer(nll=np.array(nll)), depth=0.5)
    assert sample.scores == {"accuracy": pytest.approx(accuracy)}
    assert (sample.index, sample.cluster, sample.tokens, sample.chance, sample.depth) == (3, "a", 3, 0.25, 0.5)
    assert (sample.failed is None) == bool(np.isfinite(nll).all())
    assert sample.facts == {"key": 1, "expected_option": expected}
    np.testing.assert_array_equal(sample.statistics["option_nll"], np.array(nll, np.float32))


def marks(nll: Sequence[Sequence[float]]) -> Any:
    """Places 1, 3 and 4 of 5 tokens; the options are 5, 6 and 7, the right ones 6, 5 and 7."""
    question = ClassifyTokens(
        index=2,
        cluster="b",
        tokens=np.array([0, 6, 9, 5, 7]),
        places=np.array([1, 3, 4]),
        options=np.array([5, 6, 7]),
    )
    return score_marks(question, ClassifyTokensAnswer(nll=np.array(nll, np.float32)))


def test_marks_are_the_share_of_right_places_and_exact_where_all_are() -> None:
    sample = marks([[2, 1, 3], [1, 2, 3], [3, 2, 1]])
    assert sample.scores == {"accuracy": 1.0, "exact": 1.0} and sample.failed is None
    assert sample.statistics["nll"].tolist() == [1, 1, 1] and sample.statistics["place"].tolist() == [1, 3, 4]
    sample = marks([[1, 1, 3], [4, 2, 3], [3, 2, 1]])  # two tie at the first place, the second is wrong
    assert sample.scores == {"accuracy": pytest.approx((1 / 2 + 0 + 1) / 3), "exact": 0.0}
    assert sample.statistics["right"].tolist() == [0.5, 0.0, 1.0]
    assert sample.statistics["nll"].tolist() == [1, 4, 1]
    assert (sample.index, sample.cluster, sample.tokens, sample.chance) == (2, "b", 5, 1 / 3)
    broken = marks([[np.nan, 1, 2], [1, 2, 3], [3, np.inf, 1]])
    assert broken.failed == "2 of 3 places have no finite likelihood"
    assert broken.scores == {"accuracy": pytest.approx(2 / 3), "exact": 0.0}  # of NaN nothing is likeliest


def question(**facts: Any) -> Generate:
    return Generate(index=1, cluster="c", prompt=np.arange(6), max_new_tokens=4, chance=0.1, facts=facts)


def test_a_written_answer_keeps_its_text_its_depth_and_whether_it_was_cut() -> None:
    answer = GenerateAnswer(tokens=np.arange(2), text=" 42", hit_room=True)
    sample = score_written(question(depth=0.25), answer, {"accuracy": 1.0}, parts=("early",))
    assert (sample.output, sample.hit_room, sample.depth, sample.tokens) == (" 42", True, 0.25, 10)
    assert (sample.chance, sample.parts, sample.scores) == (0.1, ("early",), {"accuracy": 1.0})
    assert score_written(question(), answer, {}).depth is None


@pytest.mark.parametrize(
    ("text", "accuracy", "contains"),
    [
        (" 12, 7", 1.0, 1.0),
        (" 7 and 12.", 1.0, 1.0),
        (" 12, 7, 5", 0.0, 1.0),
        (" 12", 0.0, 0.0),
        (" none", 0.0, 0.0),
    ],
)
def test_items_are_all_and_no_others_for_accuracy_and_all_for_contains(
    text: str, accuracy: float, contains: float
) -> None:
    answer = GenerateAnswer(tokens=np.arange(2), text=text, hit_room=False)
    sample = score_items(question(expected=["7", "12"]), answer, r"\d+")
    assert (sample.scores["accuracy"] == 1.0, sample.scores["contains"] == 1.0) == (accuracy == 1.0, contains == 1.0)
    doubled = score_items(question(expected=["7", "12"]), answer, r"\d+", plain=lambda said: " 99," + said)
    assert doubled.scores["accuracy"] < 1 and doubled.scores["contains"] == sample.scores["contains"]
