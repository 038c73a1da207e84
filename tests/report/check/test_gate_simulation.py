"""T12: how often the gate cries wolf, and how often it finds a planted loss, by simulated runs (pytest -s prints).

A check is 5 lengths of one method with a baseline. It is alarmed where any of them is regressed: after Holm's
correction that may happen in at most 5 % of checks in which no loss is beyond the tolerance, even where every loss is
the tolerance exactly. Rates are held against the binomial distribution of as many checks, seeds are fixed.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from scipy.stats import binom

from lexbench.stats import intervals, regressions
from lexbench.stats.cell_outcomes import CellOutcomes, outcomes_of_cell
from lexbench.stats.intervals import SIGNIFICANCE_LEVEL
from lexbench.stats.pairs import Outcome
from lexbench.stats.regressions import judge_cells
from tests.report.outcomes import answers, texts

LENGTHS = (256, 512, 1024, 2048, 4096)
TARGETS = 64
Generator = np.random.Generator
Draw = Callable[[Generator, int], tuple[np.ndarray, np.ndarray]]
"""What n questions of one length gave in the baseline and in the run: mean NLL, or a score."""


@functools.cache
def shell(metric: str, length: int, seed: int) -> CellOutcomes:
    """A cell of one question."""
    return outcomes_of_cell(
        texts("yarn", [3.0], length, seed=seed) if metric == "nll" else answers("yarn", [1.0], length, seed=seed)
    )


def side(metric: str, length: int, values: np.ndarray, per_cluster: int = 1, seed: int = 0) -> CellOutcomes:
    """A cell whose questions gave these values."""
    targets = TARGETS if metric == "nll" else None
    found = [
        Outcome(index=index, cluster=str(index // per_cluster), amount=float(value) * (targets or 1), targets=targets)
        for index, value in enumerate(values)
    ]
    return replace(shell(metric, length, seed), outcomes={metric: found})


def alarms(
    checks: int,
    draw: Draw,
    *,
    n: int = 12,
    metric: str = "nll",
    tolerances: Mapping[str, float] | None = None,
    lost_at: tuple[int, ...] = LENGTHS,
    per_cluster: int = 1,
    new_seed: int = 0,
) -> tuple[int, int]:
    """Alarmed checks, and those in which a length beside those of `lost_at` was called regressed.

    At lengths that are not in `lost_at` the run gives what the baseline gave.
    """
    alarmed = wrong = 0
    for number in range(checks):
        rng = np.random.default_rng([number, n, len(lost_at)])
        old, new = [], []
        for length in LENGTHS:
            before, after = draw(rng, n)
            after = after if length in lost_at else before
            old.append(side(metric, length, before, per_cluster))
            new.append(side(metric, length, after, per_cluster, new_seed))
        with mock.patch.object(regressions, "smallest_found_loss", return_value=None):  # nine tenths of the time
            verdicts, _ = judge_cells(old, new, tolerances or {})
        regressed = {each.cell.length for each in verdicts if each.status.value == "regressed"}
        alarmed += bool(regressed)
        wrong += bool(regressed - set(lost_at))
    return alarmed, wrong


def nats(loss: float, spread: float = 0.05, noise: str = "normal") -> Draw:
    """Texts of differing difficulty; the run's NLL is higher by the loss on average, and scatters around that."""

    def draw(rng: Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        before = rng.normal(3.0, 0.4, n)
        scatter = rng.normal(0, 1, n)
        if noise == "heavy":
            scatter = rng.standard_t(3, n) / np.sqrt(3)
        elif noise == "documents":
            scatter = (np.repeat(rng.normal(0, 1, n // 4), 4) + scatter) / np.sqrt(2)
        elif noise == "few gain much":
            scatter = 1 - rng.exponential(1, n)
        return before, before + loss + spread * scatter

    return draw


def fresh_nats(loss: float) -> Draw:
    """Other texts on each side."""
    return lambda rng, n: (rng.normal(3.0, 0.1, n), rng.normal(3.0 + loss, 0.1, n))


def rights(level: float, loss: float) -> Draw:
    """Answers that are right by chance on each side anew: sampled decoding of a model that lost so much accuracy."""
    return lambda rng, n: ((rng.random(n) < level).astype(float), (rng.random(n) < level - loss).astype(float))


def flips(to_wrong: float, to_right: float) -> Draw:
    """Greedy answers, of which a change of the model turns a few."""

    def draw(rng: Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        before = (rng.random(n) < 0.9).astype(float)
        turned = np.where(before == 1, rng.random(n) < to_wrong / 0.9, rng.random(n) < to_right / 0.1)
        return before, np.where(turned, 1 - before, before)

    return draw


def at_most(rate: float, alarmed: int, checks: int, what: str) -> None:
    """A true rate of `rate` gives more alarms than this in 1 of 1000 simulations."""
    print(f"{what}: {alarmed} of {checks} checks alarmed ({100 * alarmed / checks:.1f} %)")
    assert alarmed <= binom.ppf(0.999, checks, rate), what


def at_least(rate: float, alarmed: int, checks: int, what: str) -> None:
    """A true rate of `rate` gives fewer finds than this in 1 of 1000 simulations."""
    print(f"{what}: found in {alarmed} of {checks} checks ({100 * alarmed / checks:.1f} %)")
    assert alarmed >= binom.ppf(0.001, checks, rate), what


QUIET: dict[str, tuple[Draw, dict[str, object]]] = {
    "no loss, noise in the nats": (nats(0.0), {}),
    "a loss of the tolerance, 0.02 nats": (nats(0.02), {}),
    "the same with heavy tails": (nats(0.02, noise="heavy"), {}),
    "the same in documents of 4 texts": (nats(0.02, noise="documents"), {"n": 48, "per_cluster": 4}),
    "no loss, answers drawn anew": (rights(0.8, 0.0), {"metric": "accuracy"}),
    "a loss of the tolerance, 2 points": (rights(0.8, 0.02), {"metric": "accuracy"}),
    "other texts, a loss of the tolerance": (fresh_nats(0.02), {"new_seed": 1}),
    "other questions, a loss of 2 points": (rights(0.8, 0.02), {"metric": "accuracy", "new_seed": 1}),
    "other questions near all right": (rights(0.99, 0.02), {"metric": "accuracy", "new_seed": 1}),
}


@pytest.mark.everyday("a loss of the tolerance, 2 points")
@pytest.mark.parametrize("what", ["a loss of the tolerance, 0.02 nats", "a loss of the tolerance, 2 points"])
def test_false_alarms_are_rare(what: str) -> None:
    draw, settings = QUIET[what]
    alarmed, _ = alarms(60, draw, **settings)  # type: ignore[arg-type]
    at_most(SIGNIFICANCE_LEVEL, alarmed, 60, what)


def test_a_planted_loss_is_found_where_it_is() -> None:
    alarmed, wrong = alarms(20, nats(0.1), n=16, lost_at=(2048,))
    at_least(0.95, alarmed, 20, "0.1 nats at one of 5 lengths, 16 texts, tolerance 0.02")
    assert wrong == 0


@pytest.mark.slow
@pytest.mark.parametrize("what", sorted(QUIET))
def test_false_alarms_stay_below_the_level(what: str) -> None:
    draw, settings = QUIET[what]
    alarmed, _ = alarms(300, draw, **settings)  # type: ignore[arg-type]
    at_most(SIGNIFICANCE_LEVEL, alarmed, 300, f"{what}, n {settings.get('n', 12)}")


@pytest.mark.slow
def test_false_alarms_stay_below_the_level_at_the_usual_n() -> None:
    alarmed, _ = alarms(150, nats(0.02), n=32)
    at_most(SIGNIFICANCE_LEVEL, alarmed, 150, "a loss of the tolerance, 0.02 nats, n 32")


@pytest.mark.slow
def test_skewed_losses_of_just_the_tolerance_stay_below_it_too() -> None:
    alarmed, _ = alarms(150, nats(0.02, noise="few gain much"), n=32)
    at_most(0.07, alarmed, 150, "a loss of the tolerance where most lose a little and few gain much, n 32")


@pytest.mark.slow
def test_power_for_nats() -> None:
    alarmed, wrong = alarms(100, nats(0.08), n=32, lost_at=(2048,))
    at_least(0.8, alarmed, 100, "0.08 nats at one of 5 lengths, 32 texts that scatter by 0.05, tolerance 0.02")
    assert wrong == 0


@pytest.mark.slow
def test_power_for_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        intervals, "MAX_CACHED_DRAW_CLUSTERS", 1000
    )  # draws are the same for every check, and most of the time
    settings = {"n": 1000, "metric": "accuracy", "tolerances": {"accuracy": 0.0}, "lost_at": (2048,)}
    alarmed, wrong = alarms(60, flips(0.025, 0.005), **settings)  # type: ignore[arg-type]
    at_least(0.8, alarmed, 60, "2 points at one of 5 lengths, 1000 questions of which 3 % turn, tolerance 0")
    assert wrong == 0
    settings = {"n": 32, "metric": "accuracy", "lost_at": (2048,)}
    alarmed, wrong = alarms(60, flips(0.4, 0.0), **settings)  # type: ignore[arg-type]
    at_least(0.8, alarmed, 60, "40 points at one of 5 lengths, 32 questions, tolerance 2")
    assert wrong == 0
