"""Shapes by the rule, means over seeds, what stands beside papers, and the page: against numbers worked out by hand."""

import itertools
import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from lexbench.core.method_key import BASELINE_METHOD, parse_label
from lexbench.core.record import Sample
from lexbench.parts.lab.study import page as study_page
from lexbench.parts.lab.study.page import beside, measured, plots, predictions
from lexbench.parts.lab.study.page import page as page_text
from lexbench.parts.lab.study.page.curves import (
    HEADLINE_METRICS,
    Curve,
    CurvePoint,
    build_curves,
    likelihood_difference,
    mean_over_seeds,
)
from lexbench.parts.lab.study.page.measured import MeasuredRow
from lexbench.parts.lab.study.page.shapes import CurveShape, shape_of_changes, shape_of_curve, slope_per_doubling
from lexbench.parts.lab.study.settings import Prediction
from lexbench.stats.combine import Estimate
from lexbench.stats.records import records_of
from lexbench.store.format import FinishedCell
from tests.report.fake_run import cell, keep

LN2 = math.log(2)


def changes(*values: float, half: float | None = None) -> dict[float, Estimate]:
    """At 1, 2, 4, ... times the trained length, each with an interval of that half-width."""
    ends = [(None, None) if half is None else (value - half, value + half) for value in values]
    return {2.0**i: Estimate(value, *end) for i, (value, end) in enumerate(zip(values, ends, strict=True))}


@pytest.mark.parametrize(
    ("values", "half", "name", "multiple"),
    [
        ((0.0, 0.70, 1.5, 2.8), None, "explodes", 8.0),  # ln 2 = 0.693 is exceeded
        ((0.0, 0.70, 0.0, 0.0), None, "explodes", 2.0),  # anywhere beyond the trained length
        ((0.0, 0.69, 0.5, 0.2), None, "rises slowly", 2.0),
        ((0.0, -0.05, 0.04, 0.18), None, "rises slowly", 8.0),  # ALiBi of LEX, table 2
        ((0.0, -0.10, -0.08, 0.05), None, "flat", 8.0),  # 0.05 is not exceeded, the longest length counts
        ((0.0, -0.04, -0.06, -0.066), None, "falls", 8.0),  # xPos under BCA of LEX, table 2
        ((0.0, 0.03, 0.02, -0.05), None, "flat", 8.0),
        ((0.0, 0.90, 0.90, 0.90), 0.20, "explodes", 2.0),  # 0.70 is above ln 2
        ((0.0, 0.0), 0.04, "flat", 2.0),
    ],
)
def test_the_rule_on_constructed_curves(
    values: Sequence[float], half: float | None, name: str, multiple: float
) -> None:
    found = shape_of_changes(changes(*values, half=half))
    assert found is not None
    assert (found.name, found.text, found.multiple, found.open) == (name, name, multiple, False)


@pytest.mark.parametrize(
    ("value", "half", "text"),
    [
        (0.90, 0.30, "rises slowly to explodes"),  # 0.60 to 1.20
        (0.06, 0.02, "flat to rises slowly"),  # 0.04 to 0.08
        (-0.06, 0.02, "falls to flat"),
        (0.00, 0.10, "falls to rises slowly"),
        (0.40, 0.80, "falls to explodes"),
    ],
)
def test_an_interval_that_reaches_into_another_shape_names_both(value: float, half: float, text: str) -> None:
    found = shape_of_changes(changes(0.0, value, half=half))
    assert found is not None
    assert found.text == text
    assert found.open
    assert found.allows("explodes") == text.endswith("explodes")


def test_without_a_length_beyond_there_is_no_shape() -> None:
    assert shape_of_changes({0.5: Estimate(0.1), 1.0: Estimate(0.0)}) is None


def test_a_mean_over_seeds_adds_seeds_and_documents_in_squares() -> None:
    # values 1, 2, 3: mean 2, deviation 1; Student's t of 2 degrees at 97.5 % is 4.302653; documents add 0.5 and 0.25
    found = mean_over_seeds([(1.0, 0.5, 1.25), (2.0, 1.5, 2.25), (3.0, 2.5, 3.25)])
    spread = 4.302652729911275 / math.sqrt(3)
    assert found is not None and found.low is not None and found.high is not None
    assert found.value == 2.0
    assert found.low == pytest.approx(2 - math.sqrt(spread**2 + 0.25), rel=1e-9)
    assert found.high == pytest.approx(2 + math.sqrt(spread**2 + 0.0625), rel=1e-9)


def test_one_seed_has_its_documents_interval_and_none_has_nothing() -> None:
    assert mean_over_seeds([(1.0, 0.75, 1.5)]) == Estimate(1.0, 0.75, 1.5)
    assert mean_over_seeds([(1.0, None, None)]) == Estimate(1.0)
    assert mean_over_seeds([(None, None, None)]) is None


def curve(entry: str, values: Sequence[float], method: str = "none", half: float = 0.01, **changed: Any) -> Curve:
    """NLL at 1, 2, 4, ... times 128."""
    points = []
    for place, value in enumerate(values):
        change = value - values[0]
        ends = Estimate(value, value - half, value + half), Estimate(change, change - half, change + half)
        documents = {"a": (10 * (value - half), 10.0), "b": (10 * (value + half), 10.0)}
        points.append(CurvePoint(128 * 2**place, 2.0**place, *ends, seeds={0: value}, documents=documents))
    settled: dict[str, Any] = {"family": "f", "task": "last_segment", "metric": "nll", "protocol": "p", **changed}
    stated = {"name": settled["task"].partition("(")[0]}
    return Curve(entry=entry, method=parse_label(method), points=points, stated=stated, **settled)


def test_the_slope_is_that_of_least_squares_from_the_trained_length_on() -> None:
    for values in ([3.0, 3.1, 3.4], [3.0, 3.9, 3.8, 3.95], [3.0, 2.5]):
        fitted = np.polyfit(np.arange(len(values)), values, 1)[0]  # a line with an intercept of its own
        assert slope_per_doubling(curve("a", values)) == pytest.approx(fitted)
    assert slope_per_doubling(curve("a", [3.0])) is None


def test_a_curve_is_judged_up_to_a_multiple() -> None:
    late = curve("a", [3.0, 3.0, 5.0])
    two, four = shape_of_curve(late, 2.0), shape_of_curve(late)
    assert isinstance(two, CurveShape) and isinstance(four, CurveShape)
    assert (two.name, four.name) == ("flat", "explodes")


ROWS = [
    {"table": "lex-2", "printed": "ALiBi", "entry": "alibi"},
    {"table": "lex-2", "printed": "Roformer(RoPE)", "entry": "rope"},
    {"table": "lex-2", "printed": "LEX(xPos+BCA)", "entry": "xpos", "method": "bca"},
    {"table": "survey-3", "printed": "ALiBi", "entry": "alibi"},
]


def test_published_rows_have_the_shapes_of_their_figures() -> None:
    ours = [
        curve("alibi", [3.0, 3.1, 3.2, 3.2]),
        curve("rope", [3.0, 3.1, 3.3, 3.4]),
        curve("xpos", [3.0, 2.9, 2.9, 2.9], "bca"),
    ]
    lines = beside.published_rows(ours, {"published": ROWS}, "last_segment")
    found = {(line.table, line.data, line.trained_length, line.printed): line for line in lines}
    rope = found["lex-2", "PG22", 1024, "Roformer(RoPE)"]
    assert rope.theirs is not None
    assert rope.theirs.name == "explodes"
    assert rope.theirs.change.value == pytest.approx(math.log(458.83 / 26.68))
    assert rope.agrees == "other size"  # ours rises by 0.4
    xpos = found["lex-2", "PG22", 1024, "LEX(xPos+BCA)"]
    assert xpos.theirs is not None and xpos.theirs.name == "falls"  # ln(24.89 / 26.59) = -0.066
    assert xpos.agrees == "yes"
    assert found["survey-3", "WikiText-103", 512, "ALiBi"].logs.keys() == {1.0, 2.0}  # 1012 is printed
    assert found["survey-3", "ArXiv", 512, "ALiBi"].agrees == "other size"  # theirs ln(5.41 / 5.25) = 0.03


def test_a_shape_contradicts_by_its_sign_alone() -> None:
    published = {"published": [row for row in ROWS if row["printed"] in ("LEX(xPos+BCA)", "Roformer(RoPE)")]}

    def verdict(entry: str, change: Estimate, method: str) -> str:
        measured = replace(curve(entry, [3.0, 3.0, 3.0, 3.0], method))
        points = [replace(point, change=change) if point.multiple > 1 else point for point in measured.points]
        lines = beside.published_rows([replace(measured, points=points)], published, "last_segment")
        return next(line.agrees for line in lines if (line.table, line.data) == ("lex-2", "PG22"))

    # xPos with BCA falls by 0.066 in the paper, RoPE rises by 2.8.
    assert verdict("xpos", Estimate(0.3, 0.1, 0.5), "bca") == "no"
    assert verdict("xpos", Estimate(0.3, -0.1, 0.6), "bca") == "perhaps"
    assert verdict("xpos", Estimate(0.03, 0.0, 0.04), "bca") == "other size"
    assert verdict("rope", Estimate(0.3, 0.1, 0.4), "none") == "other size"
    assert verdict("rope", Estimate(-0.3, -0.4, -0.1), "none") == "no"


def test_orders_are_compared_pair_by_pair() -> None:
    ours = [curve("alibi", [3.0, 3.3, 3.2]), curve("rope", [3.0, 3.1, 3.21])]
    found = beside.published_pairs(beside.published_rows(ours, {"published": ROWS[:2]}, "last_segment"))
    on_books = {pair.multiple: pair for pair in found if pair.better.data == "PG22"}
    assert {pair.better.printed for pair in on_books.values()} == {"ALiBi"}
    assert on_books[2.0].verdict == "no"  # 3.1 - 3.3 = -0.2 in each document
    assert on_books[2.0].difference.high == pytest.approx(-0.2)
    assert on_books[4.0].verdict == "yes"  # 3.21 - 3.20
    assert not any(pair.older for pair in found)  # both have 3.0 at the trained length
    higher = [curve("alibi", [3.2, 3.3, 3.2]), ours[1]]
    older = beside.published_pairs(beside.published_rows(higher, {"published": ROWS[:2]}, "last_segment"))
    assert {pair.multiple: pair.older for pair in older if pair.better.data == "PG22"} == {2.0: True, 4.0: False}
    about = {"published": ROWS[:2], "trained_length": 128}
    said = " ".join(
        page_text._published_section(
            page_text._compare_with_published(higher, about), higher, {**about, "models": []}, []
        )
    )
    assert "pairs of rows: 1 yes, 1 no; at 1x, too: 0 yes, 1 no." in said


@pytest.mark.slow
def test_a_protocol_says_how_many_questions_were_asked_and_what_guessing_has(folder: Path) -> None:
    rows, about = study_page.read_page_data(folder)
    asked = {curve.task: curve.asked for curve in build_curves(rows, about) if curve.method == BASELINE_METHOD}
    for task, said in asked.items():
        records = [row.record for row in rows if row.record.task == task and row.record.value is not None]
        counts = sorted({record.n for record in records if record.metric in HEADLINE_METRICS})
        assert said.startswith(f"n = {counts[0]}") and (len(counts) == 1 or f" to {counts[-1]}" in said)
        chances = {f"{record.chance:.2g}" for record in records if record.chance is not None}
        assert chances == set() or said.endswith(f"guessing has {' to '.join(sorted(chances))}")


def test_rows_of_papers_beside_one_measurement_count_once() -> None:
    ours = [curve("alibi", [3.0, 3.0, 3.1, 3.2]), curve("rope", [3.0, 3.1, 3.3, 3.4])]
    about = {"published": ROWS[:2] + ROWS[3:], "trained_length": 128}
    compared = page_text._compare_with_published(ours, about)
    # ALiBi of LEX-2 (PG22, QMSum) and survey-3 (four rows) up to 8x and 2x; RoPE of LEX-2 alone
    assert compared.shape_verdicts().keys() == {("alibi", 8.0), ("alibi", 2.0), ("rope", 8.0)}
    assert compared.shape_verdicts()["alibi", 2.0] == "papers differ"  # flat; on WikiText-103, 512, theirs falls
    assert compared.shape_verdicts()["alibi", 8.0] == "yes" and compared.shape_verdicts()["rope", 8.0] == "other size"
    assert compared.order_verdicts().keys() == {
        (frozenset(("alibi", "rope")), multiple) for multiple in (2.0, 4.0, 8.0)
    }
    assert set(compared.order_verdicts().values()) <= {"yes", "uncertain"}
    assert beside.verdict_of_measurement([("a", "yes"), ("b", "no"), ("a", "yes"), ("b", "yes"), ("b", "no")]) == {
        "a": "yes",
        "b": "papers differ",
    }


@pytest.mark.parametrize(
    ("stated", "verdict", "measured"),
    [
        ({"entry": "rope", "shape": "explodes"}, "holds", "explodes, +1.000 [+0.990, +1.010] at 4x"),
        ({"entry": "rope", "other_than": "explodes"}, "fails", "explodes, +1.000 [+0.990, +1.010] at 4x"),
        ({"entry": "open", "shape": "flat"}, "uncertain", "flat to rises slowly, +0.055 [+0.045, +0.065] at 4x"),
        (
            {"entry": "open", "other_than": "explodes"},
            "holds",
            "flat to rises slowly, +0.055 [+0.045, +0.065] at 4x",
        ),
        ({"entry": "open", "at": 2, "within": 0.05}, "holds", "+0.030 [+0.020, +0.040]"),
        ({"entry": "open", "at": 4, "within": 0.05}, "uncertain", "+0.055 [+0.045, +0.065]"),
        ({"entry": "rope", "at": 4, "within": 0.05}, "fails", "+1.000 [+0.990, +1.010]"),
        # 1.0 - 0.055 in each document
        ({"entry": "open", "at": 4, "below": "rope"}, "holds", "-0.945 [-0.945, -0.945]"),
        ({"entry": "rope", "at": 4, "below": "open"}, "fails", "+0.945 [+0.945, +0.945]"),
        ({"entry": "rope", "at": 8, "below": "open"}, "not measured", ""),
        ({"entry": "xpos", "shape": "explodes"}, "not measured", ""),
        ({"entry": "rope", "method": "bca", "shape": "explodes"}, "not measured", ""),
    ],
)
def test_a_prediction_is_judged_by_the_interval(stated: Mapping[str, Any], verdict: str, measured: str) -> None:
    ours = [curve("rope", [3.0, 3.5, 4.0]), curve("open", [3.0, 3.03, 3.055])]
    [row] = predictions.judge_predictions(ours, [Prediction(**stated, tasks=["last_segment"], source="a paper")])
    assert (row[0], row[3]) == (verdict, measured)


def test_what_contradicts_stands_first() -> None:
    ours = [curve("rope", [3.0, 3.5, 4.0])]
    about: dict[str, Any] = {"entry": "rope", "tasks": ["last_segment"], "source": "a paper"}
    stated = [Prediction(**about, shape="explodes"), Prediction(**about, other_than="explodes")]
    assert [row[0] for row in predictions.judge_predictions(ours, stated)] == ["fails", "holds"]


def test_what_would_decide_is_said_of_predictions_that_fail() -> None:
    ours = [curve("rope", [3.0, 3.5, 4.0])]
    about: dict[str, Any] = {"entry": "rope", "tasks": ["last_segment"], "source": "a paper"}
    fails = Prediction(**about, shape="flat", decide="try 0")
    holds, silent = Prediction(**about, shape="explodes", decide="try 1"), Prediction(**about, shape="flat")
    said = ["What would decide those that fail:", "", "- rope flat: try 0", ""]
    assert predictions.deciding_items(ours, [fails, holds, silent]) == said
    assert predictions.deciding_items(ours, [holds, silent]) == []


def test_windows_of_other_lengths_are_paired_by_document(tmp_path: Path) -> None:
    # two documents of 12 targets: as three windows of 4 at 256 tokens, and one of 12 at 512
    def windows(length: int, nats: Sequence[float], targets: int) -> FinishedCell:
        samples = [
            Sample(
                index=i,
                cluster=f"d{i * targets // 12}",
                tokens=length,
                nll=np.full(targets, each, np.float32),
                bytes=9,
                words=2,
            )
            for i, each in enumerate(nats)
        ]
        return FinishedCell(cell("non_overlapping", "none", length, n=len(nats), model="rope-seed0"), samples)

    keep(tmp_path, [windows(256, [1.0, 2.0, 3.0, 2.0, 2.0, 2.0], 4), windows(512, [2.5, 2.25], 12)])
    [row] = [
        row for row in study_page.measured_rows([tmp_path]) if row.record.length == 512 and row.record.metric == "nll"
    ]
    assert row.change == pytest.approx((0.5 + 0.25) / 2)
    assert row.change_low is not None and row.change_high is not None
    assert row.change_low < 0.375 < row.change_high


def test_what_was_learnt_stands_beside_the_trigram() -> None:
    def found(task: str, metric: str, *values: float) -> Curve:
        points = [
            CurvePoint(64 * 2**i, 0.5 * 2**i, Estimate(value), Estimate(value - values[-1]))
            for i, value in enumerate(values)
        ]
        return Curve("rope", "f", BASELINE_METHOD, task, metric, "p", points, stated={"name": task})

    models = [{"entry": "rope", "floors": {"trigram": 3.5}, "last_loss": {"held_out": loss}} for loss in (3.25, 3.0)]
    own = [found("last_segment", "nll", 3.5, 3.25), found("copy", "accuracy", 0.5, 0.75)]
    said = page_text._learned_section(own, {"models": models})
    row = [entry.strip() for entry in said[-2].split("|")[1:-1]]
    assert row == ["rope", "+0.375", "+0.250", "0.75"]
    assert page_text._learned_section(own[:1], {"models": models}) == []
    unknown = [{**model, "last_loss": {"held_out": None}} for model in models]
    assert page_text._learned_section(own, {"models": unknown})[-2].split("|")[2].strip() == ""
    other = replace(own[0], entry="alibi")  # of two encodings, one was asked to copy
    assert page_text._learned_section([*own, other], {"models": models}) == []


def test_a_difference_is_paired_by_document_and_knows_its_seeds() -> None:
    def point(seeds: Sequence[float], *nats: float) -> CurvePoint:
        documents = {str(place): (each, 4.0) for place, each in enumerate(nats)}
        return CurvePoint(128, 1.0, None, None, seeds=dict(enumerate(seeds)), documents=documents)

    # gaps of 1 nat in each of two documents of 4 targets: 0.25, whatever the documents are
    alike = likelihood_difference(point([1.0], 4, 40), point([1.25], 5, 41))
    assert alike == Estimate(0.25, 0.25, 0.25)
    # deviations 0.1 and 0 over two seeds: sqrt(0.01 / 2) = 0.0707107, times Student's t of 1 degree, 12.7062047
    spread = likelihood_difference(
        point([1.0 - 0.1 / math.sqrt(2), 1.0 + 0.1 / math.sqrt(2)], 4, 40), point([1.25, 1.25], 5, 41)
    )
    assert spread is not None and spread.low is not None
    assert spread.low == pytest.approx(0.25 - 12.706204736 * 0.1 / math.sqrt(2), rel=1e-6)
    assert likelihood_difference(point([1.0], 4, 40), CurvePoint(128, 1.0, None, None)) is None


def test_a_difference_pairs_equal_seeds_and_lends_the_spread_of_several_to_one() -> None:
    documents = {"a": (4.0, 4.0), "b": (40.0, 4.0)}, {"a": (5.0, 4.0), "b": (41.0, 4.0)}

    def reach(left: Mapping[int, float], right: Mapping[int, float]) -> float:
        sides = [
            CurvePoint(128, 1.0, None, None, seeds=seeds, documents=each)
            for seeds, each in zip((left, right), documents, strict=True)
        ]
        found = likelihood_difference(*sides)
        assert found is not None and found.low is not None and found.value == 0.25  # in each document, so without width
        return found.value - found.low

    one, two = 12.706204736, 4.302652730  # Student's t at 97.5 %
    assert reach({0: 1.0, 1: 2.0}, {1: 2.25, 0: 1.25}) == pytest.approx(0, abs=1e-9)  # seeds move both alike
    assert reach({0: 1.0, 1: 2.0}, {0: 2.0, 1: 1.0}) == pytest.approx(one * math.sqrt(2 / 2))  # differences 1 and -1
    assert reach({0: 1.0, 1: 2.0}, {1: 1.0, 2: 2.0}) == pytest.approx(one * math.sqrt(0.5 / 2 + 0.5 / 2))
    assert reach({0: 1.0, 1: 2.0, 2: 3.0}, {0: 9.0}) == pytest.approx(two * math.sqrt(1 / 3 + 1))
    assert reach({0: 9.0}, {0: 1.0, 1: 2.0, 2: 3.0}) == pytest.approx(two * math.sqrt(1 / 3 + 1))
    assert reach({0: 9.0}, {1: 1.0}) == 0


@pytest.mark.parametrize(
    ("theirs", "change", "agrees"),
    [
        ((0.8, 0.9), Estimate(0.10, 0.02, 0.18), "yes"),
        ((0.8, 0.9), Estimate(0.10, -0.02, 0.22), "perhaps"),
        ((0.8, 0.9), Estimate(-0.10, -0.18, -0.02), "no"),
        ((0.9, 0.3), Estimate(-0.10, -0.18, -0.02), "yes"),
        ((0.9, 0.3), Estimate(-0.10), "yes"),
    ],
)
def test_resolution_rises_or_falls_only_as_far_as_its_interval_says(
    theirs: tuple[float, float], change: Estimate, agrees: str
) -> None:
    ours = Estimate(1.0), Estimate(1.0 + change.value)
    assert beside.ResolutionRow("ALiBi", "alibi", theirs, ours, change, 2.0).agrees == agrees


@pytest.mark.slow
def test_resolution_changes_by_document(folder: Path) -> None:
    rows, about = study_page.read_page_data(folder)
    [found] = [
        c for c in build_curves(rows, about) if (c.entry, c.task, c.method) == ("rope", "resolution", BASELINE_METHOD)
    ]
    point = found.at(2.0)
    assert point is not None and point.change is not None and point.change.high is not None
    # documents i = 0 to 3 have (1 + i / 10) / length: a mean of 1.15 (1 / 512 - 1 / 256), in each document below 0
    assert point.change.value == pytest.approx(-1.15 / 512, rel=1e-6)
    assert point.change.high < 0


def test_what_is_said_of_the_trained_length_goes_by_intervals() -> None:
    def passkey(entry: str, value: float, low: float, high: float) -> Curve:
        point = CurvePoint(128, 1.0, Estimate(value, low, high), None)
        return Curve(entry, "f", BASELINE_METHOD, "passkey", "accuracy", "p", [point], stated={"name": "passkey"})

    own = [passkey("a", 0.9, 0.7, 0.97), passkey("b", 0.6, 0.4, 0.8), passkey("c", 0.1, 0.0, 0.3)]
    [said] = page_text._learnt_items(own)
    assert said.startswith(
        "- passkey at the trained length, of 3 encodings: 1 more than half of the keys, 1 less than half of the keys, "
        "1 uncertain (the interval contains one half); the highest 0.90 [0.70, 0.97]."
    )


def test_models_below_each_table_of_tokens_are_counted() -> None:
    floors = {"unigram": 5.0, "bigram": 4.0, "trigram": 3.0}
    losses = {"a-seed0": 4.5, "b-seed0": 3.5, "c-seed0": 4.75, "diverged": None}
    models = [
        {"name": name, "entry": name, "seed": 0, "start": None, "floors": floors, "last_loss": {"held_out": loss}}
        for name, loss in losses.items()
    ]
    further = {**models[0], "name": "pi-seed0", "entry": "pi", "start": "a", "floors": {"unigram": 5.5}}
    alike = {**models[0], "name": "abf-seed0", "entry": "abf", "start": "a"}
    told = [
        line
        for line in page_text._floors_section({"models": [*models, further, alike]})
        if line.startswith("Models of")
    ]
    assert told == [
        "Models of seed 0:",
        *(f"Models of seed 0 that were trained further: `{name}`:" for name in ("pi", "abf")),
    ]
    said = page_text._floors_section({"models": [*models, {"name": "older"}]})
    table = [[entry.strip() for entry in row.split("|")[1:-1]] for row in said if row.startswith("| ")]
    assert table[2:] == [
        ["unigram", "5.000", "3 of 3"],
        ["bigram", "4.000", "1 of 3"],
        ["trigram", "3.000", "0 of 3"],
    ]
    assert "Median of the models: 4.500; lowest: `b-seed0`, 3.500." in said
    assert "In none of these tables, as a held-out loss or n-grams are missing: `diverged`, `older`." in said
    failed = page_text._floors_section({"models": [models[0], {"name": "older", "failed": "no memory"}]})
    assert not [line for line in failed if line.startswith("In none")]
    assert page_text._floors_section({"models": [{"name": "older"}]}) == []


@pytest.mark.slow
def test_shapes_that_are_all_open_are_counted(tmp_path: Path) -> None:
    about = {"trained_length": 128}
    both = [curve("a", [3.0, 3.06], half=0.02), curve("b", [3.0, 3.0], half=0.1)]
    assert "Without a method: 2 uncertain between several shapes." in page_text._shapes_section(both, about, tmp_path)
    assert "Without a method: 1 flat, 1 uncertain between several shapes." in page_text._shapes_section(
        [both[0], curve("b", [3.0, 3.0])], about, tmp_path
    )


def test_a_rank_correlation_names_the_encodings_on_which_it_hangs() -> None:
    line = [(f"e{place}", float(place), float(-place)) for place in range(9)]
    assert page_text._leave_one_out_sentence(line) == "Without one of them -1.00 to -1.00. "
    # Without e5 all is in reverse order; without another one ranks are 1 2 3 4 and 3 2 1 4: 1 - 6 (4 + 4) / 60 = 0.2.
    some = [(f"e{x}", float(x), float(y)) for x, y in zip((1, 2, 3, 4, 5), (5, 4, 3, 2, 9), strict=True)]
    assert page_text._leave_one_out_sentence(some) == (
        "Without one of them -1.00 to +0.20; without `e1` or `e2` or `e3` or `e4` the interval holds 0. "
    )
    assert page_text._leave_one_out_sentence(some[:4]) == ""


def test_rank_correlation_is_spearmans() -> None:
    pairs = [("a", 1.0, 9.0), ("b", 2.0, 7.0), ("c", 3.0, 8.0), ("d", 4.0, 1.0)]
    # ranks 1 2 3 4 and 4 2 3 1: 1 - 6 (9 + 0 + 0 + 9) / (4 * 15) = -0.8
    rank, _, high = plots.rank_correlation(pairs) or (0, 0, 0)
    assert rank == pytest.approx(-0.8)
    # by hand: arctanh -0.8 = -ln 9 / 2 = -1.0986, error sqrt(1.32) = 1.1489,
    # tanh(-1.0986 + 2.2519) = 9.040 / 11.040 = 0.8188
    assert high == pytest.approx(0.8188, abs=1e-4)
    assert plots.rank_correlation(pairs[:3]) is None
    assert plots.rank_correlation([(str(n), n, n) for n in range(5)]) == pytest.approx((1, 1, 1))
    assert plots.rank_correlation([(str(n), n, 0) for n in range(5)]) is None


# figures


def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Figures, as they are saved."""
    figures: list[Figure] = []
    monkeypatch.setattr(plots, "save_figure", lambda figure, stem: figures.append(figure))
    return figures


def test_a_curve_refused_everywhere_is_in_the_numbers_and_not_in_the_legend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = drawn(monkeypatch)
    refused = [replace(point, value=None, change=None, refused="no") for point in curve("b", [3.0, 3.0]).points]
    whole = [
        replace(curve("b", [3.0, 3.0], family="g"), points=refused),
        replace(curve("c", [3.0, 3.0], family="h"), points=refused),
        curve("d", [3.0, 3.2], family="h"),
        curve("e", [3.0, 3.1], family="g"),
    ]
    plots.plot_small_multiples(whole, 128, tmp_path / "curves")
    legends = [panel.get_legend() for panel in figures[0].axes]
    assert [[text.get_text() for text in legend.get_texts()] for legend in legends if legend] == [["e"], ["d"]]
    assert [panel.get_title(loc="left") for panel in figures[0].axes] == ["g", "h"]
    assert [line.split(",")[1] for line in (tmp_path / "curves.csv").read_text().split()[1:]] == list("bbccddee")
    assert page_text._figure_lines(whole[:2], {"trained_length": 128}, tmp_path) == []


def test_floors_are_drawn_and_legends_stand_beside_the_panels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = drawn(monkeypatch)
    seeds = {"d": 3.1, "e": 3.3}  # the bigram of each, as tables of other seeds' texts differ
    made = [curve(name, [3.0, 3.2]) for name in seeds]
    made = [replace(each, points=[replace(point, floor=seeds[each.entry]) for point in each.points]) for each in made]
    plots.plot_small_multiples([*made, curve("f", [3.0, 3.1], family="h")], 128, tmp_path / "curves")
    first, second = figures[0].axes
    [floor] = [line for line in first.lines if line.get_label() == "a bigram"]
    assert np.asarray(floor.get_xdata(), np.float64).tolist() == [1.0, 2.0]
    assert np.asarray(floor.get_ydata(), np.float64).tolist() == pytest.approx([3.2, 3.2])
    assert not [line for line in second.lines if line.get_label() == "a bigram"]
    # `curve` has intervals of 0.01 on both sides: bars at 3.0 and 3.1.
    bars = [np.asarray(line.get_ydata(), np.float64) for line in second.lines if line.get_alpha() == 0.4]
    np.testing.assert_allclose(bars, [[2.99, 3.01], [3.09, 3.11]])
    for panel in (first, second):
        legend = panel.get_legend()
        assert legend is not None and not legend.get_window_extent().overlaps(panel.bbox)


@pytest.mark.slow
def test_a_floor_is_the_bigrams_of_likelihoods_and_guessing_in_scores(folder: Path) -> None:
    rows, about = study_page.read_page_data(folder)
    bigrams = {"seed0": 4.0, "seed1": 4.5}
    stated = [
        replace(row, record=replace(row.record, bigram=bigrams[row.record.model.partition("-")[2]], chance=0.25))
        for row in rows
    ]
    found = {point.floor for each in build_curves(stated, about) if each.metric == "nll" for point in each.points}
    assert found == {4.25}
    scores = [each for each in build_curves(stated, about) if each.metric == "accuracy"]
    assert {point.floor for each in scores for point in each.points} == {0.25}


@pytest.mark.slow
def test_names_of_points_cover_neither_each_other_nor_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = drawn(monkeypatch)
    # Slopes of 0.01 to 0.03 beside one of 1, and resolutions within 2 % beside one of a tenth: marks overlap.
    steep = {"inverse_leaky_rerope": 0.01, "randomized": 0.02, "key_norm": 0.03, "far": 1.0}
    flat = [curve(entry, [3.0, 3.0 + by, 3.0 + 2 * by]) for entry, by in steep.items()]
    seen = [
        replace(curve(entry, [0.3 + 0.003 * place if place < 3 else 0.03] * 2), task="resolution", metric="resolution")
        for place, entry in enumerate(steep)
    ]
    plots.plot_steepness([*flat, *seen], 2.0, "last_segment", tmp_path / "slopes")
    [axes] = figures[0].axes
    boxes = [text.get_window_extent() for text in axes.texts]
    assert [text.get_text() for text in axes.texts] == list(steep)
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
    [line] = [line for line in axes.lines if line.get_linestyle() == "None"]
    for x, y in axes.transData.transform(line.get_xydata()):
        assert not any(box.contains(x, y) for box in boxes)
    assert all(axes.bbox.contains(*corner) for box in boxes for corner in box.corners())


# from run folders to the page


RISES = {"rope": 0.4, "alibi": 0.0, "sinusoidal": 1.0}
"""Nats per doubling beyond the trained length."""
LENGTHS = (128, 256, 512, 1024)


def likelihoods(model: str, method: str, length: int, seed: int) -> FinishedCell:
    """Six documents of 20 targets, all at 3 nats, and what positions beyond the trained length add."""
    entry = model.partition("-")[0]
    over = 0.0 if method == "bca" else RISES[entry] * max(0.0, math.log2(length / 256))
    nats = [3.0 + 0.1 * seed + 0.2 * place + over * (1 + 0.02 * seed) for place in range(6)]
    samples = [
        Sample(index=i, cluster=f"d{i}", tokens=length, nll=np.full(20, loss, np.float32), bytes=60, words=10)
        for i, loss in enumerate(nats)
    ]
    return FinishedCell(cell("last_segment", method, length, n=6, model=model), samples)


def others(model: str, method: str, length: int) -> list[FinishedCell]:
    """A passkey that is refused where it does not fit, and resolution."""
    passkey = cell("passkey", method, length, n=4, model=model)
    found = [Sample(index=i, cluster=str(i), tokens=length, scores={"accuracy": float(length < 512)}) for i in range(4)]
    refused = FinishedCell(passkey, [], "passkey needs at least 74 tokens, asked for 32: raise length")
    probed = [
        Sample(index=i, cluster=f"d{i}", tokens=length, scores={"resolution": (1 + i / 10) / length}) for i in range(4)
    ]
    return [
        refused if length == 128 else FinishedCell(passkey, found),
        FinishedCell(cell("resolution", method, length, n=4, model=model), probed),
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a study of three encodings and two seeds leaves."""
    tmp_path = tmp_path_factory.mktemp("zoo")
    models: list[Mapping[str, Any]] = []
    for entry in (*RISES, "cope"):
        for seed in (0, 1):
            name = f"{entry}-seed{seed}"
            known = {"parameters": 787_584, "tokens": 1_000_000, "seconds": 160.0, "device": "x86_64 CPU"}
            model = {"name": name, "entry": entry, "family": "bias" if entry == "alibi" else "rotary", "seed": seed}
            models.append({**model, "start": None, "failed": None if entry != "cope" else "no memory", **known})
            if entry != "cope":
                cells = [likelihoods(name, m, n, seed) for m in ("none", "bca") for n in LENGTHS]
                cells += [each for m in ("none", "bca") for n in LENGTHS for each in others(name, m, n)]
                keep(tmp_path / "runs" / name, cells)
    about = {"study": "encodings", "recipe": "zoo", "trained_length": 256, "models": models, "published": ROWS}
    page = tmp_path / "page"
    page.mkdir()
    (page / "models.json").write_text(json.dumps(about))
    study_page.write_rows(study_page.measured_rows(sorted((tmp_path / "runs").iterdir())), page)
    return page


def test_models_that_do_not_speak_the_text_are_named() -> None:
    """Inside the trained length 3.5 nats, where counting tokens has 3.2; for the other model it has 4.9."""
    rows = []
    for name, floor in (("rope-seed0", 3.2), ("alibi-seed0", 4.9)):
        made = likelihoods(name, "none", 256, 0)
        samples = [replace(each, floors={"uniform": 5.0, "unigram": floor}) for each in made.samples]
        rows += [MeasuredRow(each, {"name": "last_segment"}) for each in records_of(replace(made, samples=samples))]
    [said] = [line for line in page_text._language_not_learned_lines(rows) if line]
    assert said.startswith("- rope-seed0 does not speak this text: none has 3.500 nats per token at 256 tokens")


def test_models_trained_further_are_named_with_their_start_and_tokens() -> None:
    base = {"seed": 0, "failed": None, "tokens": 5000, "parameters": 1000}
    models = [{**base, "name": "rope-seed0", "entry": "rope", "start": None}]
    about = {"recipe": "lab", "trained_length": 128, "models": models}
    assert "further" not in "\n".join(page_text._model_lines(about))
    for entry, tokens in (("pi", 700), ("abf", 1500)):
        models.append({**base, "name": f"{entry}-seed0", "entry": entry, "start": "rope", "tokens": tokens})
    said = page_text._model_lines(about)
    assert said[0].startswith(
        "1 encoding, seed 0; recipe `lab`: trained length 128, 1,000 parameters; each trained on 5,000 t"
    )
    assert "Trained further from `rope`, each on 700 or 1,500 tokens more: `pi`, `abf`." in said


def test_encodings_of_which_fewer_seeds_were_asked_are_named() -> None:
    def asked(entry: str, *seeds: float, method: str = "none") -> Curve:
        refused = CurvePoint(32, 0.25, None, None, "too short")
        return Curve(
            entry,
            "f",
            parse_label(method),
            "repeated",
            "accuracy",
            "p",
            [refused, CurvePoint(128, 1.0, None, None, None, dict(enumerate(seeds)))],
            stated={"name": "repeated"},
        )

    about = {"models": [{"entry": entry} for entry in ("rope", "hwfa", "bipe") for _ in range(3)] + [{"entry": "fox"}]}
    found = [asked("rope", 0.3, 0.3, 0.2), asked("hwfa", 0.3, 0.2), asked("hwfa", method="bca"), asked("fox", 0.1)]
    assert page_text._fewer_seeds_lines(found, about) == ["Fewer seeds than were trained: `hwfa` (2 of 3).", ""]
    some = [*found, asked("bipe", 0.3)]
    assert (
        page_text._fewer_seeds_lines(some, about)[0]
        == "Fewer seeds than were trained: `hwfa` (2 of 3); `bipe` (1 of 3)."
    )
    assert page_text._fewer_seeds_lines([asked("fox", 0.1)], about) == []


def test_encodings_of_more_seeds_than_most_are_named() -> None:
    base = {"failed": None, "tokens": 5000, "parameters": 1000, "start": None}
    models = [
        {**base, "name": f"{entry}-seed{seed}", "entry": entry, "seed": seed}
        for entry, seeds in (("rope", (0, 2, 1)), ("fox", (0,)), ("alibi", (0, 1, 2)), ("pi", (0,)), ("t5", (0,)))
        for seed in seeds
    ]
    [said, *_] = page_text._model_lines({"recipe": "lab", "trained_length": 128, "models": models})
    assert said.startswith("5 encodings, seed 0; `rope`, `alibi` with seeds 0, 1, 2; recipe `lab`: trained length 128")


@pytest.mark.parametrize(
    ("seconds", "middle"), [((300, 100, 210), 210), ((300, 100, 240, 200), 220), ((300, 100), 200)], ids=str
)
def test_the_time_of_a_training_is_the_median(seconds: tuple[float, ...], middle: int) -> None:
    base = {"seed": 0, "failed": None, "tokens": 5000, "parameters": 1000, "start": None, "device": "CPU"}
    models = [{**base, "name": str(each), "entry": str(each), "seconds": each} for each in seconds]
    [said, *_] = page_text._model_lines({"recipe": "lab", "trained_length": 128, "models": models})
    assert said.endswith(f"tokens, {middle} seconds (median; CPU).")


@pytest.mark.slow
def test_changes_are_paired_on_the_same_targets(folder: Path) -> None:
    rows, about = study_page.read_page_data(folder)
    [found] = [
        c for c in build_curves(rows, about) if (c.entry, c.task, c.method) == ("rope", "last_segment", BASELINE_METHOD)
    ]
    point = found.at(4.0)
    assert point is not None and point.value is not None and point.change is not None
    assert len(point.seeds) == 2
    # seeds 3.0 + 0.5 + 0.8 and 3.1 + 0.5 + 0.8 * 1.02, over documents 0 to 5; all documents change alike
    assert point.value.value == pytest.approx((4.3 + 4.416) / 2, abs=1e-6)
    assert point.change.value == pytest.approx((0.8 + 0.816) / 2, abs=1e-6)
    half = 12.706204736432095 * 0.008  # t of one degree of freedom, deviation 0.016 / sqrt 2, over sqrt 2 seeds
    assert point.change.low == pytest.approx(0.808 - half, abs=1e-5)


@pytest.mark.slow
def test_the_page_is_made_of_the_records_alone(folder: Path) -> None:
    page = study_page.write_page(folder).read_text()
    assert "- `cope-seed0`: no memory" in page
    assert "4 encodings, seeds 0, 1; recipe `zoo`: trained length 256, 787,584 parameters" in page
    [row] = [line for line in page.splitlines() if line.startswith("| alibi ") and "flat" in line][:1]
    assert "+0.000" in row
    assert "refused: passkey needs at least 74 tokens" in page
    assert "Comparison with published tables" in page
    assert "nothing beyond" not in page
    assert not [line for line in page.splitlines() if {"nan", "None,", "|None"} & set(line.split())]
    for link in ("last_segment-none.svg", "resolution-slope.svg"):
        assert f"plots/{link}" in page
    assert "passkey-none.svg" not in page
    for file in ("last_segment-none.svg", "last_segment-bca.svg", "passkey-none.csv", "resolution-slope.svg"):
        assert (folder / "plots" / file).stat().st_size > 100


@pytest.mark.slow
def test_the_same_records_give_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    rows, _ = study_page.read_page_data(folder)
    study_page.write_rows([row for row in rows if row.record.method == BASELINE_METHOD], tmp_path)
    shutil.copy(folder / "models.json", tmp_path)
    study_page.write_page(tmp_path)
    again = {file.name: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    assert {"last_segment-none.svg", "passkey-none.svg", "resolution-slope.svg"} <= again.keys()
    study_page.write_page(tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == again


@pytest.mark.slow
def test_a_record_comes_back_as_it_was_kept(folder: Path) -> None:
    rows, about = study_page.read_page_data(folder)
    study_page.write_rows(rows, folder)
    assert study_page.read_page_data(folder)[0] == rows
    assert {row.record.metric for row in rows} >= {"nll", "accuracy", "resolution", None}
    assert all(row.change is None for row in rows if row.record.metric not in ("nll", "resolution"))
    assert {row.record.model for row in rows} < {model["name"] for model in about["models"]}


def test_cells_of_other_weights_are_left_out(tmp_path: Path) -> None:
    keep(tmp_path, [likelihoods("rope-seed0", "none", length, 0) for length in LENGTHS])
    assert {row.record.length for row in study_page.measured_rows([tmp_path])} == set(LENGTHS)
    assert study_page.measured_rows([tmp_path], {"rope-seed0": "5f0c"}) == study_page.measured_rows(
        [tmp_path], {"alibi-seed0": "0"}
    )
    assert study_page.measured_rows([tmp_path], {"rope-seed0": "0"}) == []


def test_two_corpora_are_no_two_seeds(tmp_path: Path) -> None:
    one = likelihoods("rope-seed0", "none", 256, 0)
    other = cell("last_segment", "none", 256, n=6, model="rope-seed0", corpus="wikitext")
    keep(tmp_path, [one, FinishedCell(other, one.samples)])
    said = (
        f"run folder {tmp_path} must hold one cell of last_segment, method none, length 256, got two (corpus "
        "(stdlib and wikitext|wikitext and stdlib)"
    )
    with pytest.raises(ValueError, match=said.replace("two (", r"two \(") + r"\): remove that folder, or give another"):
        study_page.measured_rows([tmp_path])


def test_an_interval_of_a_likelihood_ends_at_0(tmp_path: Path) -> None:
    names = [f"rope-seed{seed}" for seed in (0, 1)]
    for seed, name in enumerate(names):  # values 0.1 and 1.9: 1 -+ 12.7 * 0.9
        samples = [
            Sample(index=i, cluster=f"d{i}", tokens=256, nll=np.full(2, 0.1 + 1.8 * seed, np.float32), bytes=1, words=1)
            for i in range(2)
        ]
        keep(tmp_path / name, [FinishedCell(cell("last_segment", "none", 256, n=2, model=name), samples)])
    models = [{"name": name, "entry": "rope", "family": "rotary", "seed": seed} for seed, name in enumerate(names)]
    about = {"models": models}
    [found] = build_curves(study_page.measured_rows(tmp_path / name for name in names), about)
    value = found.points[0].value
    assert value is not None and value.high is not None
    assert value.low == 0.0
    assert value.value == pytest.approx(1.0)
    assert value.high == pytest.approx(1 + 12.706204736 * 0.9, rel=1e-6)


def test_a_folder_without_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no measured.parquet: give a page folder of `lexbench study`"):
        study_page.read_page_data(tmp_path)


def test_nats_of_documents_are_kept_with_the_digits_of_float32() -> None:
    text = measured._documents_text({"a.py": (207.90018224716187, 48.0), "b.py": (3532.166156430263, 1023.0)})
    assert json.loads(text) == {"a.py": [207.9002, 48.0], "b.py": [3532.166, 1023.0]}
