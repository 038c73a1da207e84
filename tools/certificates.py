"""How often `lexbench check --certify` certifies what is not so, and how many questions it takes.

    python -m tools.certificates

Simulations with fixed seeds, 1,000 deployments for each row. False certificates: the true mean loss is just the margin.
Of scores the proof is looked at after every cluster up to 2,000, and it stops at the first that proves. Beside it stand
two tests of usual practice: Student's test after every cluster from the fifth on, and once, after 64 clusters. Of nats
the proof is made once, after 32, 64, 128 or 256 documents; the mean is that of the losses themselves, no loss is
capped. Questions: the true loss is 0; the proof of scores stops by itself, that of nats is planned as by
`lexbench power`; and a fixed test must be planned, here for nine tenths of the deployments that lose half the margin,
with the true variance.
"""

import argparse
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from lexbench.stats.certificates import losses_are_proven, prove_losses
from lexbench.stats.intervals import SIGNIFICANCE_LEVEL

Floats = NDArray[np.floating[Any]]
Draw = Callable[[np.random.Generator, tuple[int, int]], Floats]
POINTS, NATS = 0.02, 0.05
"""Margins: 2 points of a score, 0.05 nats."""
CLUSTERS = 2000
ONCE = 64
DOCUMENTS = (32, 64, 128, 256)
SPREADS = (0.5, 1, 2, 4, 6, 10)
"""Standard deviations of nats, in margins."""


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
        "Student's with 3 degrees": lambda rng, shape: rng.standard_t(3, size=shape) / math.sqrt(3),
        "exponential": lambda rng, shape: rng.exponential(size=shape) - 1,
        "lognormal": lambda rng, shape: (rng.lognormal(size=shape) - math.exp(0.5)) / math.sqrt(math.e * (math.e - 1)),
        "few gain much": lambda rng, shape: -shapes["lognormal"](rng, shape),
        "gamma(0.3)": lambda rng, shape: (rng.gamma(0.3, size=shape) - 0.3) / math.sqrt(0.3),
        "one in ten breaks": lambda rng, shape: ((rng.random(shape) < 0.1) - 0.1) / 0.3,
        "one in fifty breaks": lambda rng, shape: ((rng.random(shape) < 0.02) - 0.02) / math.sqrt(0.02 * 0.98),
    }
    return lambda rng, shape: spread * NATS * shapes[kind](rng, shape)


KINDS = (
    *("normal", "Student's with 3 degrees", "exponential", "lognormal", "few gain much"),
    *("gamma(0.3)", "one in ten breaks", "one in fifty breaks"),
)
"""Noise of nats."""
FALSE: dict[str, tuple[str, Draw]] = {
    "2 % lost": ("accuracy", answers(0.02, 0.0)),
    "4 % lost, 2 % gained": ("accuracy", answers(0.04, 0.02)),
    "12 % lost, 10 % gained": ("accuracy", answers(0.12, 0.10)),
    "haystacks of four": ("accuracy", fours(0.02)),
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
    found = losses_are_proven(losses, metric, margin)
    return np.where(found.any(axis=1), found.argmax(axis=1) + 1.0, np.inf)


def planned(metric: str, losses: Floats, share: float) -> float:
    """Clusters after which so large a share of series is proven; inf: never."""
    margin = POINTS if metric == "accuracy" else NATS
    enough = losses_are_proven(losses, metric, margin).mean(axis=0) >= share
    return enough.argmax() + 1.0 if enough.any() else math.inf


def students(losses: Floats) -> tuple[Floats, Floats]:
    """[series] whether Student's test after any cluster from the fifth on, and the one after 64, finds a loss less."""
    n = np.arange(1.0, losses.shape[1] + 1)
    mean = np.cumsum(losses, axis=1) / n
    variance = np.maximum(np.cumsum(losses**2, axis=1) / n - mean**2, 1e-12) * n / np.maximum(n - 1, 1)
    p = 1 - stdtr(np.maximum(n - 1, 1), (POINTS - mean) / np.sqrt(variance / n))
    found = p[:, 4:] <= SIGNIFICANCE_LEVEL
    return found.any(axis=1), found[:, ONCE - 5]


def certified(kind: str, spread: float, documents: int, count: int) -> float:
    """Share of deployments that are certified though they lose just the margin of nats."""
    rng = np.random.default_rng([3, KINDS.index(kind), SPREADS.index(spread), documents])
    losses = np.asarray(NATS + noise(kind, spread)(rng, (count, documents)), np.float64)
    return sum(prove_losses(each, "nll", NATS).at is not None for each in losses) / count


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
        often, once = students(losses)
        shares = np.isfinite(stops(metric, losses)).mean(), often.mean(), once.mean()
        print(f"| {name} | {' | '.join(f'{100 * share:.1f} %' for share in shares)} |", flush=True)
    heads = " | ".join(f"{each:g} margins" for each in SPREADS)
    print(f"\n| true loss of nats: just the margin | documents | {heads} |\n| --- |{' ---: |' * (len(SPREADS) + 1)}")
    for kind in KINDS:
        if asked.only not in f"nats, {kind}":
            continue
        for documents in DOCUMENTS:
            shown = [f"{100 * certified(kind, spread, documents, count):.1f} %" for spread in SPREADS]
            print(f"| {kind} | {documents} | {' | '.join(shown)} |", flush=True)
    heads = "| true loss: none | half | nine tenths | fixed, planned | fixed / half | fixed / mean |"
    print(f"\n{heads}\n| --- | ---: | ---: | ---: | ---: | ---: |")
    for place, (name, (metric, draw, variance)) in enumerate(USUAL.items()):
        if asked.only not in name:
            continue
        margin = POINTS if metric == "accuracy" else NATS
        losses = draw(np.random.default_rng([2, place]), (count, 3 * CLUSTERS))
        half, most = planned(metric, losses, 0.5), planned(metric, losses, 0.9)
        fixed = math.ceil((1.645 + 1.282) ** 2 * variance / (margin / 2) ** 2)
        # Nats are not looked at after each cluster: no mean of stops.
        mean = np.minimum(stops(metric, losses), 3 * CLUSTERS).mean() if metric == "accuracy" else None
        times = f"{fixed / half:.1f} | {fixed / mean:.1f}" if mean else f"{fixed / half:.1f} | "
        print(f"| {name} | {half:.0f} | {most:.0f} | {fixed} | {times} |", flush=True)


if __name__ == "__main__":
    main()
