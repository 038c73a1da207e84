"""Damages of cells beside one another, by cells made by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lexbench.core.record import Cell, Sample
from lexbench.stats.damages import damages_by_cell, sample_damages
from lexbench.store.format import FinishedCell
from tests.report.fake_run import cell


def smaller_and_greater(**changed: Any) -> list[FinishedCell]:
    """Two cells of one identity but for n; a sample of the greater one is changed."""
    few, many = cell("own_task", "none", 256, n=2), cell("own_task", "none", 256, n=4)
    samples = [
        Sample(index=index, cluster=str(index), tokens=200, scores={"accuracy": 1.0}, output="a", question=f"q{index}")
        for index in range(4)
    ]
    return [
        FinishedCell(few, samples[:2]),
        FinishedCell(many, [samples[0], replace(samples[1], **changed), *samples[2:]]),
    ]


@pytest.mark.parametrize(
    "changed", [{"question": "q9"}, {"cluster": "x"}, {"facts": {"expected": "9"}}, {"chance": 0.5}, {"prompt": "b"}]
)
def test_a_cell_with_another_question_than_the_smaller_one_whose_answers_it_took_is_named(
    changed: dict[str, Any],
) -> None:
    sound = smaller_and_greater()
    assert damages_by_cell(sound) == {}
    [(name, said)] = damages_by_cell(smaller_and_greater(**changed)).items()
    assert name == sound[1].cell.id
    assert said == ["sample 1 of another question than in the cell of n=2"]


def likelihoods(method: str, make: Any) -> FinishedCell:
    """Four texts of 64 targets, as hard as the same ones are for every method."""
    rng = np.random.default_rng(5)
    rows = [rng.gamma(2.0, 1.5, 64).astype(np.float32) for _ in range(4)]
    this: Cell = cell("prefix", method, 256, n=4)
    return FinishedCell(
        this,
        [Sample(index=i, cluster=str(i), tokens=256, nll=make(row), bytes=200, words=30) for i, row in enumerate(rows)],
    )


def test_likelihoods_of_other_places_and_of_another_base_are_seen_beside_two_methods() -> None:
    noise = np.random.default_rng(1)

    def near(row: Any) -> Any:
        return (row + noise.normal(0, 0.1, 64).clip(-0.01)).astype(np.float32)

    sound = [likelihoods("none", near), likelihoods("yarn", near)]
    assert damages_by_cell([*sound, likelihoods("pi", near)]) == {}
    rolled = likelihoods("pi", lambda row: np.roll(near(row), 3))
    assert damages_by_cell([*sound, rolled]) == {
        rolled.cell.id: ["likelihoods that are those of the same targets, 3 places away"]
    }
    other_base = likelihoods("pi", lambda row: (near(row) / np.log(10)).astype(np.float32))
    [(name, [said])] = damages_by_cell([*sound, other_base]).items()
    assert name == other_base.cell.id and "times" in said
    worse = likelihoods("pi", lambda row: (near(row) + noise.gamma(2.0, 2.0, 64)).astype(np.float32))
    assert damages_by_cell([*sound, worse]) == {}, "a method that is bad is not damaged"


@pytest.mark.parametrize(("nats", "odd"), [(np.log(2048), False), (np.log(50257), False), (3.2, True), (0.0, True)])
def test_equal_likelihoods_are_a_guess_among_a_whole_number_of_tokens(nats: float, odd: bool) -> None:
    sample = Sample(index=0, cluster="", tokens=99, nll=np.full(64, nats, np.float32))
    assert bool(list(sample_damages(sample))) == odd
