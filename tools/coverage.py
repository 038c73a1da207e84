"""How often intervals hold the truth, and how often families of tests find what is not there.

    python tools/coverage.py

Prints tables of simulations with fixed seeds: the coverage of 95 % intervals, and the share of families of 12
comparisons with a finding, each of a true difference of 0 (`stars`) or a true loss of just the tolerance (`check`).
Noise of mean 0: normal, exponential, lognormal (of one standard normal), and pairs, a lognormal value less 0.4 times
another; sparse, a gamma value of shape 0.3, and one in ten at 1 with the others near 0. Documents have three windows of
unlike numbers of targets, and half of the noise in common; those of unlike sizes a lognormal number of targets. Answers
are right or wrong, alone, in haystacks of 4, and as paired differences.
"""

import argparse
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from lexbench.stats.intervals import (
    SIGNIFICANCE_LEVEL,
    adjust_by_holm,
    cluster_bootstrap,
    difference_interval,
    difference_p,
    guard_against_skew,
    is_balanced,
    mean_interval,
    sign_flip_p,
    unpaired_p,
)

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Floats]
NOISE: dict[str, Draw] = {
    "normal": lambda rng, n: rng.normal(size=n),
    "exponential": lambda rng, n: rng.exponential(size=n) - 1,
    "lognormal": lambda rng, n: rng.lognormal(size=n) - math.exp(0.5),
    "pairs": lambda rng, n: NOISE["lognormal"](rng, n) - 0.4 * NOISE["lognormal"](rng, n),
    "gamma(0.3)": lambda rng, n: rng.gamma(0.3, size=n) - 0.3,
    "one in ten far away": lambda rng, n: (rng.random(n) < 0.1) - 0.1 + 0.01 * rng.normal(size=n),
}
SPARSE = ("gamma(0.3)", "one in ten far away")
"""Noise on one side, of which many samples show nothing."""
CLUSTERS = (8, 16, 32)
FAMILY = 12


def clustered(noise: str) -> Draw:
    """[n, 3, 2] nats and targets of three windows a document; half of the noise is the document's."""

    def draw(rng: np.random.Generator, n: int) -> Floats:
        targets = rng.integers(20, 90, (n, 3)).astype(float)
        values = (NOISE[noise](rng, n)[:, None] + NOISE[noise](rng, 3 * n).reshape(n, 3)) / 2
        return np.stack([values * targets, targets], axis=2)

    return draw


def covers(kind: str, n: int, rng: np.random.Generator) -> bool:
    """Whether an interval over n clusters holds the truth."""
    names = [str(place) for place in range(n)]
    truth = 0.0
    if kind in NOISE:
        interval = cluster_bootstrap(NOISE[kind](rng, n), np.ones(n), names)
    elif kind.startswith("documents, "):
        found = clustered(kind.removeprefix("documents, "))(rng, n).reshape(-1, 2)
        interval = cluster_bootstrap(found[:, 0], found[:, 1], [name for name in names for _ in range(3)])
    elif kind == UNLIKE:
        targets = np.ceil(rng.lognormal(4, 1, n))
        interval = cluster_bootstrap(NOISE["normal"](rng, n) * targets, targets, names)
    elif kind == "right or wrong, 0.9":
        truth, interval = 0.9, mean_interval((rng.random(n) < 0.9).astype(float).tolist(), names)
    elif kind == "right or wrong in fours":
        level = np.repeat(rng.beta(4, 1, n), 4)
        owners = [name for name in names for _ in range(4)]
        truth, interval = 0.8, mean_interval((rng.random(4 * n) < level).astype(float).tolist(), owners)
    elif kind == "F1":
        truth, interval = 0.2, mean_interval(rng.beta(0.3, 1.2, n).tolist(), names)
    else:
        gained, lost = {"pairs of answers, 5 % and 15 %": (0.05, 0.15), "pairs of answers, 10 % lost": (0.0, 0.1)}[kind]
        truth, drawn = gained - lost, rng.random(n)
        interval = difference_interval((drawn < gained) * 1.0 - (drawn > 1 - lost), names)
    assert interval is not None
    return interval.low <= truth <= interval.high


UNLIKE = "documents of unlike sizes, normal"
KINDS = (
    *(noise for noise in NOISE if noise not in SPARSE),
    *(f"documents, {noise}" for noise in ("normal", "exponential", "lognormal")),
    *("right or wrong, 0.9", "right or wrong in fours", "F1"),
    *("pairs of answers, 5 % and 15 %", "pairs of answers, 10 % lost"),
    UNLIKE,
    *SPARSE,
)
"""The place of each is part of its seed."""


def coverage(kind: str, n: int, repeats: int) -> float:
    """Share of intervals over n clusters that hold the truth."""
    rng = np.random.default_rng([KINDS.index(kind), n])
    return sum(covers(kind, n, rng) for _ in range(repeats)) / repeats


def p_value(test: str, noise: str, n: int, rng: np.random.Generator) -> float:
    """Of a true difference of 0, two-sided; or of a true loss of just the tolerance, one-sided."""
    if test.startswith("stars"):
        found = clustered(noise)(rng, n)[..., 0].sum(axis=1) if "documents" in test else NOISE[noise](rng, n)
        return difference_p(found) if doubtful(found) else 1.0
    if test == "check, other questions":
        sides = [np.stack([NOISE[noise](rng, n), np.ones(n)], axis=1) for _ in range(2)]
        return unpaired_p(sides[0], sides[1], 0.0) or 1.0
    rest = -NOISE[noise](rng, n) if test == "check, few gain" else NOISE[noise](rng, n)
    if rest.sum() <= 0 or not doubtful(rest):  # no loss beyond the tolerance
        return 1.0
    flips = sign_flip_p(rest) / 2
    return flips if is_balanced(rest) else guard_against_skew(flips, rest)


def doubtful(sums: Floats) -> bool:
    """Whether a p of 0.05 / 12 is possible: Student's is below 0.1 (saves flips)."""
    return bool(abs(sums.mean()) > 1.6 * sums.std(ddof=1) / math.sqrt(len(sums)))


TESTS = ("stars", "stars, documents", "check, few lose", "check, few gain", "check, other questions")


def false_families(test: str, noise: str, n: int, repeats: int) -> float:
    """Share of families of 12 with a finding."""
    rng = np.random.default_rng([TESTS.index(test), list(NOISE).index(noise), n])
    found = (min(adjust_by_holm([p_value(test, noise, n, rng) for _ in range(FAMILY)])) for _ in range(repeats))
    return sum(p <= SIGNIFICANCE_LEVEL for p in found) / repeats


def power(n: int, loss: float, repeats: int) -> tuple[float, float]:
    """Share of differences of `loss` deviations of normal noise found, first of 12: by flips alone; by both."""
    rng = np.random.default_rng([n])
    drawn = [rng.normal(size=n) + loss for _ in range(repeats)]
    level = SIGNIFICANCE_LEVEL / FAMILY
    tests = (sign_flip_p, difference_p)
    return tuple(sum(test(each) <= level for each in drawn) / repeats for test in tests)  # type: ignore[return-value]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=2000, help="intervals for each number")
    parser.add_argument("--families", type=int, default=1000, help="families for each number")
    asked = parser.parse_args()
    heads = " | ".join(f"{n} clusters" for n in CLUSTERS)
    rule = f"| --- |{' ---: |' * len(CLUSTERS)}"
    print(f"| coverage of 95 % intervals | {heads} |\n{rule}")
    for kind in KINDS:
        print(f"| {kind} | {' | '.join(f'{coverage(kind, n, asked.repeats):.3f}' for n in CLUSTERS)} |", flush=True)
    print(f"\n| families of 12 with a false finding | {heads} |\n{rule}")
    for test in TESTS:
        for noise in NOISE:
            shares = [f"{100 * false_families(test, noise, n, asked.families):.1f} %" for n in CLUSTERS]
            print(f"| {test}: {noise} | {' | '.join(shares)} |", flush=True)
    print(f"\n| a true difference of so many standard deviations is starred | {heads} |\n{rule}")
    for loss in (1.0, 1.5, 2.0, 3.0):
        shares = ["{:.2f}, {:.2f}".format(*power(n, loss, asked.families)) for n in CLUSTERS]
        print(f"| {loss:g}: by sign flips alone, and with the test for skew | {' | '.join(shares)} |", flush=True)


if __name__ == "__main__":
    main()
