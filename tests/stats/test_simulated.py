"""Intervals and tests hold what results/benchmarks/coverage.md promises, by short runs of tools/coverage.py."""

import pytest
from scipy.stats import binom

from tools.coverage import KINDS, UNLIKE, coverage, false_families

PROMISED = {UNLIKE: ((8, 0.85), (16, 0.88)), "one in ten far away": ((8, 0.57), (16, 0.82))}
"""Least coverage by clusters, where docs/statistics.md promises less than elsewhere."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_intervals_cover(kind: str) -> None:
    for clusters, promised in PROMISED.get(kind, ((8, 0.90), (16, 0.93))):
        held = round(300 * coverage(kind, clusters, 300))
        assert held >= binom.ppf(0.001, 300, promised), f"{held} of 300 at {clusters} clusters"


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["normal", "exponential", "lognormal"])
@pytest.mark.parametrize("test", ["stars", "check, few gain", "check, other questions"])
def test_families_of_twelve_rarely_find_what_is_not_there(test: str, noise: str) -> None:
    found = round(100 * false_families(test, noise, 16, 100))
    assert found <= binom.ppf(0.999, 100, 0.07), f"{found} of 100 families"
