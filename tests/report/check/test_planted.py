"""Random pairs of a baseline and a run with planted truth: a loss beyond the tolerance is never held.

python -m tests.report.check.test_planted 2000    prints the figures
"""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from lexbench.report.check.check import ALTERED_EXIT_CODE
from lexbench.stats import baseline
from lexbench.stats.cell_outcomes import CellOutcomes, outcomes_of_cell
from lexbench.stats.regressions import judge_cells
from lexbench.store.format import FinishedCell
from tests.report.outcomes import answers, refused, texts

KINDS = ("none", "noise", "gain", "loss", "missing", "fewer", "other seed", "nan", "refused", "renamed")
TOLERATED = ("none", "noise", "gain")
"""What exit code 0 may follow: nothing is lost beyond the tolerance."""


def cell(rng: np.random.Generator, kind: str, method: str) -> tuple[FinishedCell, list[FinishedCell], bool]:
    """A cell of a baseline, what the run has of it, and whether a loss beyond the tolerance was planted."""
    n, likelihood = int(rng.integers(5, 25)), bool(rng.integers(2))
    lost = kind == "loss" or (kind not in TOLERATED and bool(rng.integers(2)))
    if likelihood:
        before = rng.normal(3, 0.3, n)
        shift = 0.5 if lost else -0.3 if kind == "gain" else 0.0
        after = before + shift + rng.normal(0, 0.004 if kind == "noise" else 0.05 if lost else 0.0, n)
        make = texts
    else:
        before = np.ones(n)
        after = np.zeros(n) if lost else before.copy()
        if kind == "gain":
            before = np.zeros(n)
        make = answers  # type: ignore[assignment]
    old = make(method, before.tolist())
    if kind == "missing":
        return old, [], lost
    if kind == "fewer":
        return old, [make(method, after[: n - int(rng.integers(1, n - 1))].tolist())], lost
    if kind == "other seed":
        return old, [make(method, after.tolist(), seed=1)], lost
    if kind == "refused":
        new = make(method, after.tolist())
        return old, [FinishedCell(new.cell, [], "out of memory")], lost
    if kind == "renamed":
        return old, [make(f"{method}2", after.tolist())], lost
    if kind == "nan":
        after[int(rng.integers(n))] = np.nan
        if not likelihood:
            after[:] = 0.0  # a score that is not a number counts as wrong: all are lost
            lost = True
    return old, [make(method, after.tolist())], lost


def through_a_file(cells: Sequence[CellOutcomes], folder: Path) -> list[CellOutcomes]:
    """The cells as a baseline file gives them back."""
    file = folder / "baseline.json"
    file.write_text(baseline.baseline_text(cells, []))
    return baseline.read_baseline(file).cells


def planted(number: int, folder: Path) -> tuple[list[str], bool, int]:
    """Kinds of a random pair, whether it must not be held, and the exit code of the check."""
    rng = np.random.default_rng([22, number])
    kinds = [KINDS[int(rng.integers(len(KINDS)))] for _ in range(int(rng.integers(1, 7)))]
    made = [cell(rng, kind, f"m{place}") for place, kind in enumerate(kinds)]
    must = any(lost or kind not in (*TOLERATED, "other seed") for kind, (_, _, lost) in zip(kinds, made, strict=True))
    old = through_a_file([outcomes_of_cell(one) for one, _, _ in made], folder)
    new = [outcomes_of_cell(each) for _, after, _ in made for each in after]
    try:
        verdicts, _ = judge_cells(old, new, {})
    except ValueError:  # nothing to compare
        return kinds, must, 2
    statuses = {verdict.status.value for verdict in verdicts}
    codes = {"regressed": 1, "not comparable": 2, "changed": ALTERED_EXIT_CODE}
    return kinds, must, next((code for status, code in codes.items() if status in statuses), 0)


def simulate(count: int, folder: Path) -> Counter[tuple[bool, int]]:
    """How many pairs that must not be held, and others, have which exit code."""
    found: Counter[tuple[bool, int]] = Counter()
    for number in range(count):
        kinds, must, code = planted(number, folder)
        assert not (must and code == 0), f"pair {number} is held: {kinds}"
        found[must, code] += 1
    return found


@pytest.mark.slow
def test_a_planted_loss_is_never_held(tmp_path: Path) -> None:
    found = simulate(40, tmp_path)
    assert found[True, 1] > 5 and found[True, 2] > 5


@pytest.mark.slow
def test_no_loss_is_held_and_what_is_unchanged_is(tmp_path: Path) -> None:
    found = simulate(400, tmp_path)
    assert found[False, 0] > 20 and found[False, 1] == 0


def test_a_refused_cell_is_held_where_it_is_refused_again_and_missed_where_it_is_gone() -> None:
    verdicts, _ = judge_cells(
        [outcomes_of_cell(refused("yarn")), outcomes_of_cell(texts("pi", [3.0] * 8))],
        [outcomes_of_cell(texts("pi", [3.0] * 8))],
        {},
    )
    assert {verdict.status.value for verdict in verdicts} == {"held", "not comparable"}
    again = replace(refused("yarn"), refused="still out of memory")
    verdicts, _ = judge_cells(
        [outcomes_of_cell(refused("yarn")), outcomes_of_cell(texts("pi", [3.0] * 8))],
        [outcomes_of_cell(again), outcomes_of_cell(texts("pi", [3.0] * 8))],
        {},
    )
    assert {verdict.status.value for verdict in verdicts} == {"held"}


if __name__ == "__main__":
    with TemporaryDirectory() as root:
        for (must, code), count in sorted(simulate(int(sys.argv[1]), Path(root)).items()):
            print(f"{'planted' if must else 'nothing lost'}: exit code {code} of {count} pairs")
