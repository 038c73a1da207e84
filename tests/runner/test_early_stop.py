"""Longer cells of a method that has collapsed are put off with the reason, and measured once that is not asked for."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lexbench
from lexbench.core.record import Cell, Sample
from lexbench.runner.early_stop import CollapseLengths
from lexbench.stats.cell_outcomes import headline_metric
from lexbench.store.format import FinishedCell
from lexbench.store.store import Store
from tests.report.fake_run import cell


def scored(accuracies: Sequence[float], chance: float) -> list[Sample]:
    return [
        Sample(index=i, cluster=str(i), tokens=9, scores={"accuracy": value}, chance=chance)
        for i, value in enumerate(accuracies)
    ]


def likelihood(nll: float) -> list[Sample]:
    losses = np.full(4, nll, np.float32)
    return [Sample(index=i, cluster=str(i), tokens=9, nll=losses, bytes=4, words=1) for i in range(3)]


def told(*cells: tuple[Cell, list[Sample]]) -> CollapseLengths:
    collapses = CollapseLengths()
    for one, samples in cells:
        collapses.learn(FinishedCell(one, samples))
    return collapses


@pytest.mark.parametrize(
    ("nll", "collapsed"), [(2.0 + math.log(10) - 0.01, False), (2.0 + math.log(10) + 0.01, True), (1.0, False)]
)
def test_ten_times_the_perplexity_is_a_collapse(nll: float, collapsed: bool) -> None:
    found = told(
        (cell("prefix", "none", 128), likelihood(9.0)),
        (cell("prefix", "none", 256), likelihood(2.0)),
        (cell("prefix", "none", 512), likelihood(nll)),
    )
    assert bool(found.reason(cell("prefix", "none", 1024))) is collapsed
    assert found.reason(cell("prefix", "ntk", 1024)) is None
    assert found.reason(cell("prefix", "none", 1024, seed=1)) is None


# 8 of 10 right within, by guessing 0.3: 0.5 above chance; a tenth of it is left at 0.35
@pytest.mark.parametrize(("right", "collapsed"), [(0, True), (3, True), (4, False), (8, False)])
def test_a_tenth_of_what_stood_above_chance_is_a_collapse(right: int, collapsed: bool) -> None:
    found = told(
        (cell("passkey", "none", 256), scored([1.0] * 8 + [0.0] * 2, 0.3)),
        (cell("passkey", "none", 512), scored([1.0] * right + [0.0] * (10 - right), 0.3)),
    )
    assert bool(found.reason(cell("passkey", "none", 1024))) is collapsed


def test_without_a_length_within_the_trained_one_nothing_is_known() -> None:
    found = told((cell("prefix", "none", 512), likelihood(2.0)), (cell("prefix", "none", 1024), likelihood(9.0)))
    assert found.reason(cell("prefix", "none", 2048)) is None


def test_what_a_model_never_could_does_not_collapse() -> None:
    found = told(
        (cell("passkey", "none", 256), scored([0.0] * 10, 0.0)), (cell("passkey", "none", 512), scored([0.0] * 10, 0.0))
    )
    assert found.reason(cell("passkey", "none", 1024)) is None


def test_the_longest_length_within_counts_in_whatever_order_it_is_learned() -> None:
    known = (cell("prefix", "none", 256), likelihood(3.0)), (cell("prefix", "none", 64), likelihood(5.0))
    beyond = (cell("prefix", "none", 512), likelihood(3.0 + math.log(10) + 0.1))
    for order in (known, known[::-1]):
        assert told(*order, beyond).reason(cell("prefix", "none", 1024))


def test_a_length_below_the_collapse_is_measured() -> None:
    found = told((cell("prefix", "none", 256), likelihood(2.0)), (cell("prefix", "none", 1024), likelihood(9.0)))
    assert found.reason(cell("prefix", "none", 512)) is None
    assert found.reason(cell("prefix", "none", 1024)) is None
    assert found.reason(cell("prefix", "none", 2048))


def test_of_several_scores_the_one_that_check_judges_by_counts() -> None:
    def answers(recall: float, f1: float) -> list[Sample]:
        return [Sample(index=i, cluster=str(i), tokens=9, scores={"recall": recall, "f1": f1}) for i in range(4)]

    within = (cell("qa", "none", 256), answers(1.0, 1.0))
    fallen, kept = (cell("qa", "none", 512), answers(1.0, 0.0)), (cell("qa", "none", 512), answers(0.0, 1.0))
    assert headline_metric(["recall", "f1"]) == "f1"
    assert told(within, fallen).reason(cell("qa", "none", 1024))
    assert not told(within, kept).reason(cell("qa", "none", 1024))


@pytest.mark.slow
@pytest.mark.usefixtures("unverified")
def test_a_run_skips_says_so_and_measures_later(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"task": "passkey", "lengths": [256, 1024, 1100], "n": 6, "results": tmp_path}
    records = lexbench.run("lexlet", stop_after_collapse=True, **settings).records()
    shown = {length: list(rows.refused.dropna()) for length, rows in records.groupby("length")}
    assert not shown[256]
    assert not shown[1024], "the first length that fails is measured"
    assert [reason.partition(",")[0] for reason in shown[1100]] == ["collapsed at 1024 (accuracy 0)"]
    lexbench.run("lexlet", **settings)
    assert {each.cell.length for each in Store(tmp_path).load() if each.refused is None} == {256, 1024, 1100}
