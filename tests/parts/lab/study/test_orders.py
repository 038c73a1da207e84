"""Predicted orders against values worked out by hand; guesses against the tasks' own questions."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import lexbench
from lexbench.checkpoints.tokenizer import FastTokenizer
from lexbench.core.method_key import BASELINE_METHOD
from lexbench.parts.lab.study.page.curves import Curve, CurvePoint
from lexbench.parts.lab.study.page.orders import (
    OrderComparison,
    compare_orders,
    guess_accuracy,
    verdict_lines,
    whole_string_lines,
)
from lexbench.parts.lab.study.settings import PredictedOrder, read_predictions
from lexbench.stats.combine import Estimate

Values = Mapping[float, tuple[float, float]]


def curve(entry: str, task: str, values: Values, metric: str = "accuracy") -> Curve:
    """Values and half widths by multiple of 40 tokens."""
    points = [
        CurvePoint(round(40 * multiple), multiple, Estimate(value, value - half, value + half), None)
        for multiple, (value, half) in values.items()
    ]
    return Curve(entry, "f", BASELINE_METHOD, task, metric, "p", points, stated={"name": task})


FOUND = [
    curve("a", "copy", {1.0: (0.95, 0.01), 2.0: (0.8, 0.03)}),
    curve("b", "copy", {1.0: (0.90, 0.01), 2.0: (0.6, 0.04)}),
    curve("a", "sort", {1.0: (0.99, 0.01), 2.0: (0.9, 0.01)}),
    curve("b", "sort", {1.0: (0.89, 0.01), 2.0: (0.9, 0.01)}),
    curve("c", "copy", {1.0: (0.50, 0.01), 2.0: (0.9, 0.01)}),
    curve("c", "sort", {1.0: (0.98, 0.01), 2.0: (0.9, 0.01)}),
    curve("a", "sort", {1.0: (0.9, 0.1), 2.0: (0.50, 0.06)}, "exact"),
    curve("b", "sort", {1.0: (0.9, 0.1), 2.0: (0.99, 0.01)}, "exact"),
    curve("c", "sort", {1.0: (0.9, 0.1), 2.0: (0.45, 0.08)}, "exact"),
]
CHANCES = {"copy": 0.03, "sort": 0.1}


def compared(**given: Any) -> list[OrderComparison]:
    return list(compare_orders(FOUND, [PredictedOrder(multiples=[2.0], source="s", **given)], CHANCES))


@pytest.mark.parametrize(
    ("higher", "lower", "tasks", "value", "half", "verdict"),
    [
        ("a", "b", ["copy"], 0.2, 0.05, "yes"),  # b has learnt no sorting; 0.03 and 0.04 in squares
        ("b", "a", ["copy"], -0.2, 0.05, "no"),
        ("a", "c", ["sort"], 0.05, 0.1, "uncertain"),  # by exact: 0.06 and 0.08 in squares
    ],
)
def test_means_are_over_tasks_that_both_have_learnt(
    higher: str, lower: str, tasks: list[str], value: float, half: float, verdict: str
) -> None:
    (found,) = compared(higher=higher, lower=[lower])
    assert found.difference is not None and found.difference.low is not None and found.difference.high is not None
    assert (found.tasks, found.verdict) == (tasks, verdict)
    ends = found.difference.value, found.difference.low, found.difference.high
    assert ends == pytest.approx((value, value - half, value + half))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"lower": "b"}, "order 1 has a wrong lower: 'b'"),
        ({"lower": []}, "order of s must have higher and lower, or task and entries: e.g. higher: nope"),
        ({"multiples": [None]}, "order 1 has a wrong multiples: list"),
        ({"source": 5}, "order 1 has a wrong source: 5"),
        ({"lwer": ["b"]}, "order 1 differs in 'lwer'"),
        ({"task": "copy", "entries": ["a"]}, "order of s must have higher and lower, or task and entries"),
    ],
    ids=str,
)
def test_a_malformed_order_is_refused_in_one_line(changed: dict[str, Any], said: str) -> None:
    given = {"higher": "a", "lower": ["b"], "multiples": [2], "source": "s"}
    assert read_predictions(PredictedOrder, [given], "order") == [
        PredictedOrder(higher="a", lower=["b"], multiples=[2], source="s")
    ]
    with pytest.raises(ValueError, match=said):
        read_predictions(PredictedOrder, [{**given, **changed}], "order")


def test_accuracy_decides_where_a_task_has_no_other_metric() -> None:
    plain = [curve for curve in FOUND if curve.metric == "accuracy"]
    (found,) = compare_orders(plain, [PredictedOrder(higher="a", lower=["c"], multiples=[2.0], source="s")], CHANCES)
    assert found.difference is not None and (found.difference.value, found.verdict) == (0.0, "uncertain")


def test_a_mean_over_two_tasks_has_half_of_their_half_widths_in_squares() -> None:
    (found,) = compared(task="copy", entries=["a"])  # 0.8 -+ 0.03 of copy against 0.5 -+ 0.06 exact of sort
    assert found.difference is not None and found.difference.low is not None
    assert (found.difference.value, found.difference.low) == pytest.approx((0.3, 0.3 - (0.03**2 + 0.06**2) ** 0.5))
    both = [*FOUND, curve("d", "copy", {1.0: (1, 0), 2.0: (0, 0)}), curve("d", "sort", {1.0: (1, 0), 2.0: (0, 0)})]
    both.append(curve("d", "sort", {2.0: (0, 0)}, "exact"))
    (found,) = compare_orders(both, [PredictedOrder(higher="a", lower=["d"], multiples=[2.0], source="s")], CHANCES)
    assert found.difference is not None and found.difference.low is not None
    assert (found.difference.value, found.difference.low) == pytest.approx(
        (0.65, 0.65 - (0.03**2 + 0.06**2) ** 0.5 / 2)
    )


def test_nothing_follows_from_what_was_not_learnt() -> None:
    (found,) = compared(higher="c", lower=["b"])
    assert (found.tasks, found.difference, found.verdict) == ([], None, "nothing follows")
    (found,) = compared(higher="a", lower=["b"], tasks=["sort"])
    assert found.verdict == "nothing follows"
    assert [each.verdict for each in compared(task="copy", entries=["c"])] == ["nothing follows"]


@pytest.mark.parametrize(
    ("low", "half", "verdict"),
    [
        (0.06, 0.031, "both at chance"),  # ends at 0.029, which chance is above; without that, "yes": 0.05 -+ 0.0314
        (0.06, 0.029, "yes"),
        (0.01, 0.005, "both at chance"),
    ],
)
def test_two_sides_at_chance_have_no_order(low: float, half: float, verdict: str) -> None:
    found = [
        curve("d", "copy", {1.0: (0.95, 0.01), 2.0: (low, half)}),
        curve("e", "copy", {1.0: (0.95, 0.01), 2.0: (0.01, 0.005)}),
    ]
    (made,) = compare_orders(found, [PredictedOrder(higher="d", lower=["e"], multiples=[2.0], source="s")], CHANCES)
    assert made.verdict == verdict
    found[1] = curve("d", "sort", {1.0: (0.95, 0.01), 2.0: (0.0, 0.0)})
    found.append(curve("d", "sort", {1.0: (0.95, 0.01), 2.0: (0.0, 0.0)}, "exact"))  # chance is 0
    (made,) = compare_orders(found, [PredictedOrder(task="copy", entries=["d"], multiples=[2.0], source="s")], CHANCES)
    assert made.verdict == verdict


def test_whole_strings_are_above_chance_as_soon_as_some_are_right() -> None:
    found = [
        curve("d", "copy", {1.0: (0.95, 0.01), 2.0: (0.01, 0.005)}),
        curve("d", "sort", {1.0: (0.95, 0.01), 2.0: (0.1, 0.0)}),
        curve("d", "sort", {1.0: (0.95, 0.01), 2.0: (0.05, 0.02)}, "exact"),  # below the chance of a digit
    ]
    (made,) = compare_orders(found, [PredictedOrder(task="copy", entries=["d"], multiples=[2.0], source="s")], CHANCES)
    assert made.verdict == "no"  # -0.04 -+ 0.0206


def test_what_can_be_told_stands_in_a_table_and_the_rest_below_it() -> None:
    orders = [PredictedOrder(higher=high, lower=["b"], multiples=[2.0, 5.0], source="s") for high in ("a", "c")]
    made = list(compare_orders(FOUND, orders, CHANCES))
    told = [each for each in made if (each.higher, each.multiple) == ("a", 2.0)]
    table = verdict_lines(told)
    assert table[2:] == ["| a above b |  2x |  copy | +0.200 [+0.150, +0.250] |   yes |      s |"]
    said = "Nothing follows about these, as both sides share no task that they have learnt:"
    note = [said, "", "- c above b (s): 2x, 5x"]
    both = verdict_lines([each for each in made if each.higher == "c" or each in told])
    assert both == [*table, "", *note]
    assert verdict_lines([each for each in made if each.higher == "c"]) == note


def test_guesses_are_those_of_the_tasks_own_questions(tokenizer: FastTokenizer) -> None:
    for length in (40, 400):
        questions = lexbench.task("sort").questions(tokenizer, length, 300, 0)
        again = np.array([question.facts["again"] for question in questions])
        assert guess_accuracy("sort", length) == pytest.approx(again.mean(), abs=4 * again.std() / 300**0.5 + 1e-4)
    assert guess_accuracy("mqar", 40) == pytest.approx(0.3397, abs=5e-5)
    assert guess_accuracy("copy", 40) is None


def test_the_best_share_of_whole_strings_is_said_unless_one_symbol_is_asked() -> None:
    one = {1.0: (0.9, 0.1), 2.0: (0.4, 0.1)}
    found = [*FOUND, *(curve("a", "parity", one, metric) for metric in ("accuracy", "exact"))]
    found.append(curve("c", "copy", {1.0: (0.2, 0.1), 2.0: (0.0, 0.05), 5.0: (0.0, 0.05)}, "exact"))
    assert whole_string_lines(found)[1:] == ["- copy: 0.00 at 2x, 0.00 at 5x", "- sort: 0.99 at 2x", ""]
    assert whole_string_lines([each for each in FOUND if each.metric == "accuracy"]) == []
