"""A board's audit judges stored answers as doctor does, by the rules of their own version."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from lexbench.core.record import Cell, Sample
from lexbench.parts.web.board.audit import wrong_scores
from lexbench.store.format import FinishedCell
from tests.stats.test_rescored import cell_of, check_each_score, check_fewer_scores, check_version, copied_key


def audited_faults(of: Cell, sample: Sample) -> Iterator[str]:
    return wrong_scores(FinishedCell(of, [sample]))


@pytest.mark.parametrize("name", ["accuracy", "in_place", "reached", "chosen", "forced"])
def test_each_score_beside_an_answer_is_held_against_what_its_sample_keeps(name: str) -> None:
    check_each_score(audited_faults, name)


@pytest.mark.parametrize(("task", "before"), [("passkey", 2), ("niah_single_2", 2), ("variable_tracking", 1)])
def test_an_answer_is_judged_as_its_version_did(task: str, before: int) -> None:
    check_version(audited_faults, task, before)


def test_a_version_that_gave_fewer_scores_is_judged_by_those() -> None:
    check_fewer_scores(audited_faults)


def test_facts_that_are_not_those_of_a_score_are_refused() -> None:
    of, odd = cell_of("passkey", 3), replace(copied_key(), facts={**copied_key().facts, "taught_ranks": [0]})
    assert any("with accuracy" in said for said in audited_faults(of, odd))
