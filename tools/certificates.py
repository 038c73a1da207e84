"""How often `lexbench check --certify` certifies what is not so, and how many questions it takes.

    python -m tools.certificates

Simulations with fixed seeds, 1,000 deployments for each row. False certificates: the true mean loss is just the margin
(of nats, with losses counted up to the cap), the proof is looked at after every cluster up to 2,000, and it stops at
the first that proves. Beside it stand two tests of usual practice: Student's test after every cluster from the fifth
on, and once, after 64 clusters. Questions: the true loss is 0; the proof stops by itself, and a fixed test must be
planned, here for nine tenths of the deployments that lose half the margin, with the true variance.
"""

import argparse
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from lexbench.stats.certificates import CAP, cap_of, log_wealth
from lexbench.stats.intervals import LEVEL

Floats = NDArray[np.floating[Any]]
Draw = Callable[[np.random.Generator, tuple[int, int]], Floats]
POINTS, NATS = 0.02, 0.05
"""Margins: 2 points of a score, 0.05 nats."""
CLUSTERS = 2000
ONCE = 64


def answers(lost: float, gained: float) -> Draw:
    """Shares of questions that are lost and gained."""

    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
        drawn = rng.random(shape)
        return (drawn < lost) * 1.0 - (drawn > 1 - gained)

    return draw


def fours(lost: float) -> Draw:
    """Haystacks of four questions; one in ten haystacks loses each of its questions with ten times the chance."""

    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
        hard = rng.random(shape) < 0.1
        return rng.binomial(4, np.where(hard, 10 * lost, 0.0)) / 4

    return draw


def noise(kind: str, spread: float) -> Draw:
    """Nats of mean 0 and of so many margins as standard deviation."""
    shapes: dict[str, Draw] = {
        "normal": lambda rng, shape: rng.normal(size=shape),
        "exponential": lambda rng, shape: rng.exponential(size=shape) - 1,
        "lognormal": lambda rng, shape: (rng.lognormal(size=shape) - math.exp(0.5)) / math.sqrt(math.e * (math.e - 1)),
        "few gain much": lambda rng, shape: -shapes["lognormal"](rng, shape),
        "one in fifty breaks": lambda rng, shape: ((rng.random(shape) < 0.02) - 0.02) / math.sqrt(0.02 * 0.98),
    }
    return lambda rng, shape: spread * NATS * shapes[kind](rng, shape)


def at_margin(draw: Draw) -> Draw:
    """The same, moved so that its mean, counted up to the cap, is the margin."""
    sample = draw(np.random.default_rng(99), (1, 400_000))[0]
    low, high = -10 * NATS - abs(sample).max(), 10 * NATS
    for _ in range(60):
        middle = (low + high) / 2
        below = np.minimum(sample + middle, CAP * NATS).mean() < NATS
        low, high = (middle, high) if below else (low, middle)
    return lambda rng, shape: draw(rng, shape) + high


FALSE: dict[str, tuple[str, Draw]] = {
    "2 % lost": ("accuracy", answers(0.02, 0.0)),
    "4 % lost, 2 % gained": ("accuracy", answers(0.04, 0.02)),
    "12 % lost, 10 % gained": ("accuracy", answers(0.12, 0.10)),
    "haystacks of four": ("accuracy", fours(0.02)),
    **{
        f"nats, {kind}, {spread:g} margins": ("nll", at_margin(noise(kind, spread)))
        for kind in ("normal", "exponential", "lognormal", "few gain much", "one in fifty breaks")
        for spread in (0.5, 2.0)
    },
}
USUAL: dict[str, tuple[str, Draw, float]] = {
    "the same answers": ("accuracy", answers(0.0, 0.0), 0.01),
    "0.5 % lost and gained": ("accuracy", answers(0.005, 0.005), 0.01),
    "1 % lost and gained": ("accuracy", answers(0.01, 0.01), 0.02),
    "2 % lost and gained": ("accuracy", answers(0.02, 0.02), 0.04),
    "5 % lost and gained": ("accuracy", answers(0.05, 0.05), 0.10),
    **{
        f"nats, {kind}, {spread:g} margins": ("nll", noise(kind, spread), (spread * NATS) ** 2)
        for kind in ("normal", "lognormal")
        for spread in (0.1, 0.5, 1.0, 2.0)
    },
}
"""Metric, losses, and their variance; of the same answers that of a pilot with one change in a hundred."""


def stops(metric: str, losses: Floats) -> Floats:
    """[series] clusters after which it is proven; inf: never."""
    margin = POINTS if metric == "accuracy" else NATS
    reached = log_wealth(losses, margin, cap_of(metric, margin)) >= math.log(1 / LEVEL)
    return np.where(reached.any(axis=1), reached.argmax(axis=1) + 1.0, np.inf)


def students(metric: str, losses: Floats) -> tuple[Floats, Floats]:
    """[series] whether Student's test after any cluster from the fifth on, and the one after 64, finds a loss less."""
    margin = POINTS if metric == "accuracy" else NATS
    x = losses if metric == "accuracy" else np.minimum(losses, CAP * margin)
    n = np.arange(1.0, x.shape[1] + 1)
    mean = np.cumsum(x, axis=1) / n
    variance = np.maximum(np.cumsum(x**2, axis=1) / n - mean**2, 1e-12) * n / np.maximum(n - 1, 1)
    p = 1 - stdtr(np.maximum(n - 1, 1), (margin - mean) / np.sqrt(variance / n))
    found = p[:, 4:] <= LEVEL
    return found.any(axis=1), found[:, ONCE - 5]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deployments", type=int, default=1000, help="of each row")
    parser.add_argument("--only", default="", help="rows with this in their name")
    asked = parser.parse_args()
    count = asked.deployments
    heads = "| true loss: just the margin | certified | Student, every cluster | Student, once |"
    print(f"{heads}\n| --- | ---: | ---: | ---: |")
    for place, (name, (metric, draw)) in enumerate(FALSE.items()):
        if asked.only not in name:
            continue
        losses = draw(np.random.default_rng([1, place]), (count, CLUSTERS))
        often, once = students(metric, losses)
        shares = np.isfinite(stops(metric, losses)).mean(), often.mean(), once.mean()
        print(f"| {name} | {' | '.join(f'{100 * share:.1f} %' for share in shares)} |", flush=True)
    heads = "| true loss: none | median | nine tenths | fixed, planned | fixed / median | fixed / mean |"
    print(f"\n{heads}\n| --- | ---: | ---: | ---: | ---: | ---: |")
    for place, (name, (metric, draw, variance)) in enumerate(USUAL.items()):
        if asked.only not in name:
            continue
        margin = POINTS if metric == "accuracy" else NATS
        found = stops(metric, draw(np.random.default_rng([2, place]), (count, 3 * CLUSTERS)))
        half, most = (float(each) for each in np.quantile(found, [0.5, 0.9], method="higher"))
        planned = math.ceil((1.645 + 1.282) ** 2 * variance / (margin / 2) ** 2)
        mean = np.minimum(found, 3 * CLUSTERS).mean()
        print(
            f"| {name} | {half:.0f} | {most:.0f} | {planned} | {planned / half:.1f} | {planned / mean:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
