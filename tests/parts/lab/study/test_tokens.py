"""Token accuracy beside Su's tables: signs of changes and of differences, by hand."""

import math
from typing import Any

import pytest

from lexbench.core.method_key import parse_label
from lexbench.parts.lab.study.page import page as page_text
from lexbench.parts.lab.study.page import tokens
from lexbench.parts.lab.study.page.curves import Curve, CurvePoint, unpaired_difference
from lexbench.stats.combine import Estimate

ROWS: list[dict[str, Any]] = [
    {"table": "su-9708", "metric": "token accuracy", "printed": "Baseline", "entry": "rope"},
    {"table": "su-9708", "metric": "token accuracy", "printed": "ReRoPE-w256", "entry": "rope", "method": "rerope"},
    {"table": "su-9708", "metric": "token accuracy", "printed": "HFWA", "entry": "hwfa"},
    {"table": "su-9859-b", "metric": "token accuracy", "printed": "KNA", "entry": "key_norm"},
    {"table": "lex-2", "printed": "Roformer(RoPE)", "entry": "rope"},
]
"""Of su-9708, repeated: 49.41 to 24.17, to 77.90, and 48.70 to 80.84; not repeated: to 23.16, 48.48 and 48.15."""


def curve(entry: str, first: float, beyond: float, method: str = "none", repeat: bool = True) -> Curve:
    task = "hxkw" if repeat else "bzrv"  # labels are only shown: what was asked is what the identity states
    points = [
        CurvePoint(length, length / 128, Estimate(value, value - 0.03, value + 0.04), None)
        for length, value in ((128, first), (1024, beyond))
    ]
    stated = {"name": "repeated", "repeat": repeat}
    return Curve(entry, "f", parse_label(method), task, "accuracy", "p", points, stated=stated)


OURS = [
    curve("rope", 0.4, 0.2),
    curve("rope", 0.4, 0.7, "rerope"),
    curve("hwfa", 0.4, 0.6),
    curve("rope", 0.4, 0.44, repeat=False),
    curve("rope", 0.4, 0.2, "rerope", repeat=False),
]


def test_a_difference_of_two_questions_adds_the_ends_in_squares() -> None:
    found = unpaired_difference(Estimate(0.7, 0.6, 0.9), Estimate(0.2, 0.17, 0.24))
    assert found.value == pytest.approx(0.5)
    assert found.low == pytest.approx(0.5 - math.hypot(0.1, 0.04)) and found.high == pytest.approx(
        0.5 + math.hypot(0.2, 0.03)
    )


def test_changes_beyond_the_trained_length_have_the_published_sign() -> None:
    found = {(each.label, each.text): each for each in tokens.token_accuracy_rows(OURS, {"published": ROWS})}
    assert found.keys() == {
        *(("rope", text) for text in tokens.DATA_ENDING_OF_TEXT),
        *(("rope + rerope", text) for text in tokens.DATA_ENDING_OF_TEXT),
        ("hwfa", "repeated"),
    }
    rope = found["rope", "repeated"]
    assert rope.theirs == pytest.approx((0.4941, 0.2417)) and (rope.multiple, rope.agrees) == (8.0, "yes")
    assert rope.change.value == pytest.approx(-0.2)
    assert found["rope + rerope", "repeated"].agrees == "yes"  # both rise
    assert found["rope", "other text"].agrees == "perhaps"  # +0.04 [-0.01, +0.09]
    assert found["rope + rerope", "other text"].agrees == "yes"  # 49.41 to 48.48, and 0.4 to 0.2: both fall


def test_pairs_of_one_table_and_text_are_ordered_by_the_published_accuracy() -> None:
    found = tokens.token_accuracy_pairs(tokens.token_accuracy_rows(OURS, {"published": ROWS}))
    said = {(pair.better.label, pair.worse.label, pair.better.text): pair.verdict for pair in found}
    assert said == {
        ("rope + rerope", "rope", "repeated"): "yes",
        ("hwfa", "rope", "repeated"): "yes",
        ("hwfa", "rope + rerope", "repeated"): "no",  # 80.84 before 77.90; ours 0.6 and 0.7
        ("rope + rerope", "rope", "other text"): "no",  # ours 0.2 and 0.44
    }
    rows = tokens.contrary_pairs(found)[2:]
    assert len(rows) == 2 and "HFWA before ReRoPE-w256" in rows[0] and "-0.100" in rows[0]
    numbers = [[int(number) for number in line.split("|")[4:7]] for line in tokens.count_same_orders(found)[2:]]
    assert numbers == [[2, 0, 1], [0, 0, 1]]  # yes, uncertain, no: repeated, then other text


def test_what_contradicts_su_stands_first() -> None:
    models = [{"entry": entry, "seed": 0} for entry in ("rope", "hwfa")]
    about = {"published": ROWS, "trained_length": 128, "predictions": [], "models": models}
    compared = page_text._compare_with_published(OURS, about)
    first = page_text._contradictions_section(OURS, about, compared)
    assert "Token accuracies in the reverse order:" in first
    after = page_text._published_section(compared, OURS, about, [])
    assert "Order agrees, of 4 pairs of measurements: 2 yes, 2 no." in after
    assert not page_text._contradictions_section(
        OURS, about, page_text._compare_with_published(OURS[:3:2], about)
    )  # RoPE and HFWA agree
