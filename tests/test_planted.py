"""Truths that `tools/planted.py` plants: their size, what commands say of them, and the page."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lexbench.core.record import Sample
from tests.report import fake_run
from tools import planted, planted_faults, planted_page
from tools.planted_commands import COMMANDS, CheckGate, Compare, Place
from tools.planted_readings import EFFECTS, Library, Reading


def likelihoods(loss: float, n: int = 32) -> list[Sample]:
    """Healthy answers of texts that are no neighbours, each worse by a loss."""
    found = [fake_run.likelihood_sample(index, 512, 0.0) for index in range(n)]
    assert all(each.nll is not None for each in found)
    return [
        replace(each, cluster=str(each.index), nll=each.nll + np.float32(loss))  # type: ignore[operator]
        for each in found
    ]


def test_a_mix_has_the_size_that_was_asked_for() -> None:
    healthy, worse = likelihoods(0.0, 2000), likelihoods(0.4, 2000)
    shared = planted.Mix(0.25).all("E01", healthy, worse)
    blended = planted.Mix(1.0, 0.25).all("E01", healthy, worse)
    lost = planted.losses(healthy, shared, "nll")
    assert set(np.round(lost, 5)) == {0.0, 0.4}
    assert lost.mean() == pytest.approx(0.1, abs=4 * 0.4 * (0.25 * 0.75 / 2000) ** 0.5)  # 4 binomial standard errors
    assert planted.losses(healthy, blended, "nll") == pytest.approx(0.1, abs=1e-5)
    assert all(one is other for one, other in zip(planted.Mix(0.0).all("E01", healthy, worse), healthy, strict=True))


@pytest.mark.parametrize(
    ("size", "mix"),
    [
        (0.5, planted.Mix(0.25)),
        (2.0, planted.Mix(1.0)),
        (2.5, None),
    ],
)
def test_sizes_are_dialled_by_the_share_of_texts(size: float, mix: planted.Mix | None) -> None:
    site = planted.Site("E01", Place("ntk", 512, "nll"), False, stated=0.05, full=0.1)
    assert planted.mix_of(site, size, 32) == mix


def test_a_share_of_less_than_two_texts_is_blended() -> None:
    site = planted.Site("E01", Place("ntk", 512, "nll"), False, stated=0.01, full=1.0)
    assert planted.mix_of(site, 1.0, 32) == planted.Mix(1.0, 0.01)
    of_scores = replace(site, place=Place("ntk", 512, "accuracy"))
    assert planted.mix_of(of_scores, 1.0, 32) == planted.Mix(0.01)


def test_compare_tells_what_is_planted_by_its_sign_and_nothing_else(tmp_path: Path) -> None:
    trial, place = Compare(Library(tmp_path)), Place("none", 512, "nll")
    healthy, worse = likelihoods(0.0), likelihoods(0.3)
    assert trial.judge(place, healthy, worse, "-") == (True, 0)
    assert trial.judge(place, healthy, worse, "+") == (True, 0)
    assert trial.judge(place, worse, healthy, "-") == (False, 1)
    assert trial.judge(place, healthy, healthy, "-") == (False, 0)


def test_the_gate_states_the_sizes_that_its_command_prints(tmp_path: Path) -> None:
    """`lexbench check` of the committed baseline's own run: 0.055 nats of nll, 20 points of accuracy, 21 of chosen."""
    gate = CheckGate(Library(tmp_path))
    stated = {name: gate.stated(Place("none", 256, name)) for name in ("nll", "accuracy", "chosen")}
    assert stated == {
        "nll": pytest.approx(0.055, abs=5e-4),
        "accuracy": pytest.approx(0.20, abs=5e-3),
        "chosen": pytest.approx(0.21, abs=5e-3),
    }


def test_a_reading_with_an_effect_answers_the_same_questions(tmp_path: Path) -> None:
    library, healthy = Library(tmp_path), Reading("none", "passkey", 256, 7, 2)
    one, other = library.samples(healthy), library.samples(healthy._replace(effect="E12"))
    assert [each.question for each in one] == [each.question for each in other]
    assert [each.scores["accuracy"] for each in one] == [1.0, 1.0]
    assert [each.scores["accuracy"] for each in other] == [0.0, 0.0]
    assert library.samples(healthy) is library.samples(healthy)


def test_the_list_is_whole() -> None:
    assert [*EFFECTS] == [f"E{number:02}" for number in range(1, 25)] + [f"X{number:02}" for number in range(1, 5)]
    assert all(len(rows) == 16 for rows in planted_faults.ROWS.values())
    assert all(len(kind(Library(Path())).ids) == 16 for kind in COMMANDS)


def test_an_assertion_finds_another_base() -> None:
    found = planted_faults.verdict_of_assertion("A02")
    assert found["found"] and "10,100" in found["said"]


def test_the_page_counts_what_was_found() -> None:
    told: dict[str, Any] = {"share": 0.5, "blend": 1.0, "verified": 0.05, "holds": True, "tried": 0.05, "alarms": 0}
    told |= {"drawn": [9, 10], "even": [10, 10]}
    sizes = {"0.5": {**told, "found": False}, "1.0": {**told, "found": True}, "2.0": None}
    row: dict[str, Any] = {
        "planted": "E01",
        "was": "exponent lost",
        "sign": "-",
        "place": "ntk, 512, nll",
        "metric": "nll",
    }
    row |= {"stated": 0.05, "full": 0.1, "sizes": sizes}
    real = {f"real {number}": False for number in range(8)}
    rows = {f"E{number:02}": row for number in range(1, 9)}
    page = planted_page.page({"compare": {**rows, **real, "nulls": {"runs": 1000, "alarms": 43}}})
    found = "0 of 8 | 8 of 8 | 0 of 8 | nll 72 of 80 | nll 80 of 80 | 43 of 1,000 | 0 of 8"
    assert f"| `compare` | 0.05 nats of nll | {found} |" in page
    assert "missed: cannot be planted" in page


def test_fewer_than_eight_rows_are_not_published() -> None:
    page = planted_page.page(
        {"verify": {f"V0{number}": {"was": "x", "found": True, "said": "y"} for number in range(7)}}
    )
    assert "7 of 7" not in page and "## `verify`" not in page
