"""Scores of stored answers by the rules of their own version."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lexbench.core.record import Cell, Sample
from lexbench.stats.rescored import score_faults
from tests.report.fake_run import cell

Check = Callable[[Cell, Sample], Iterator[str]]


def cell_of(task: str, version: int, **stated: Any) -> Cell:
    found = cell(task, "none", 512)
    return replace(found, identity={**found.identity, "task": {"name": task, "version": version, **stated}})


def copied_key(**scores: float) -> Sample:
    """A key copied whole, though of two options the wrong one is likelier, and one of two key tokens is not first."""
    return Sample(
        index=0,
        cluster="0",
        tokens=512,
        output=" 40213",
        hit_room=False,
        scores={"accuracy": 1, "contains": 1, "in_place": 1, "reached": 1, "chosen": 0, "forced": 0.5} | scores,
        facts={
            **{"expected": "40213", "keys_in_text": ["40213"], "expected_option": 1},
            **{"taught": [[402, 1], [13, 1]], "taught_ranks": [0, 3]},
        },
        statistics={"option_nll": np.array([1.0, 2.0], np.float32)},
    )


@pytest.mark.parametrize("name", ["accuracy", "in_place", "reached", "chosen", "forced"])
def test_each_score_beside_an_answer_is_held_against_what_its_sample_keeps(name: str) -> None:
    check_each_score(score_faults, name)


def check_each_score(check: Check, name: str) -> None:
    of, sound = cell_of("passkey", 3), copied_key()
    assert list(check(of, sound)) == []
    [said] = check(of, copied_key(**{name: 0.25}))
    assert f"{name} 0.25" in said


@pytest.mark.parametrize(("task", "before"), [("passkey", 2), ("niah_single_2", 2)])
def test_an_answer_is_judged_as_its_version_did(task: str, before: int) -> None:
    check_version(score_faults, task, before)


def check_version(check: Check, task: str, before: int) -> None:
    """Where the text has no answer, "There is none" was wrong before it became right: one version each."""
    said = Sample(
        index=0,
        cluster="0",
        tokens=512,
        output=" There is none.",
        hit_room=False,
        scores={"accuracy": 0.0, "balance": 1.0, "contains": 1.0},
        facts={"expected": ["none"], "present": False},
    )
    assert list(check(cell_of(task, before, absent="write"), said)) == []
    [fault] = check(cell_of(task, before + 1, absent="write"), said)
    assert "accuracy 0" in fault


def test_a_version_that_gave_fewer_scores_is_judged_by_those() -> None:
    check_fewer_scores(score_faults)


def check_fewer_scores(check: Check) -> None:
    old = replace(copied_key(), facts={"expected": "40213"}, statistics={}, scores={"accuracy": 1.0, "contains": 1.0})
    assert list(check(cell_of("passkey", 2), old)) == []
    [fault] = check(cell_of("passkey", 2), replace(old, scores={"accuracy": 0.0, "contains": 1.0}))
    assert "accuracy 0" in fault


def test_facts_that_are_not_those_of_a_score_stop_no_check() -> None:
    of, odd = cell_of("passkey", 3), replace(copied_key(), facts={**copied_key().facts, "taught_ranks": [0]})
    assert list(score_faults(of, odd)) == []  # the checksum of the sample tells
