"""Intervals hold what they promise: how often they hold the truth, over made-up runs whose truth is known.

Of 400 runs, an interval whose true coverage lies from 93 to 97 % holds the truth in 355 to 397, but for one case in a
thousand on either side (binomial quantiles); an interval a third too narrow covers 81 % and stays below 345. Intervals
that are conservative by construction have the lower limit alone. How wide they are beside the spread of what they are
intervals of is tested apart: their mean half width over 1.96 standard deviations of the estimates. The bootstrap's
percentiles are known to be some hundredths too narrow at 40 clusters.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy.stats import binom

from lexbench.core.method_key import parse_label
from lexbench.core.record import Sample
from lexbench.stats import pairs
from lexbench.stats.combine import combine_levels, group_levels, split_gains_and_losses
from lexbench.stats.intervals import cluster_bootstrap, wilson_interval
from lexbench.stats.pairs import Outcome, outcomes_of_samples, paired_difference
from lexbench.stats.summaries import SummaryValue, curve_summaries
from lexbench.stats.tables import Table, build_tables
from lexbench.store.format import FinishedCell
from tests.report.fake_run import cell

RUNS = 400
FEWEST = int(binom.ppf(0.001, RUNS, 0.93))
MOST = int(binom.ppf(0.999, RUNS, 0.97))
LENGTHS = (128, 256, 512, 1024, 2048)
DOCUMENTS = 40
Made = dict[tuple[str, int], list[Sample]]
Truth = Mapping[tuple[str, str], float]

NATS = {
    "none": (3.0, 2.95, 3.02, 3.3, 4.0),
    "pi": (3.06, 3.0, 3.05, 3.2, 3.5),  # 0.10 behind at 512: at the margin itself
}
NATS_TRUTH = {
    ("none", "effective_length"): 512,
    ("pi", "effective_length"): 512,
    ("none", "collapse"): 2048,
    ("pi", "collapse"): 2048,
    ("none", "area"): (3.0 / 2 + 2.95 + 3.02 + 3.3 + 4.0 / 2) / 4,
    ("pi", "area_beyond"): (3.0 / 2 + 3.05 + 3.2 + 3.5 / 2) / 3,
    ("pi", "price"): (0.06 + 0.05) / 2,
    ("none", "context_gain"): 2.95 - 4.0,
    ("pi", "context_gain"): 3.0 - 3.5,
}
SHARES = {  # right with the needle in the outer and in the inner half of depths
    "none": ((1.0, 0.98), (0.99, 0.97), (0.9, 0.7), (0.5, 0.3), (0.1, 0.0)),
    "pi": ((0.97, 0.95), (0.95, 0.95), (0.9, 0.74), (0.75, 0.6), (0.5, 0.4)),
}
MEANS = {method: [(outer + inner) / 2 for outer, inner in shares] for method, shares in SHARES.items()}
SHARES_TRUTH = {
    ("none", "effective_length"): 256,  # 0.8 of 0.99
    ("pi", "effective_length"): 256,  # 0.82 of 0.99
    ("none", "collapse"): 1024,
    ("pi", "collapse"): 2048,
    ("none", "area"): 100 * (MEANS["none"][0] / 2 + sum(MEANS["none"][1:4]) + MEANS["none"][4] / 2) / 4,
    ("pi", "area_beyond"): 100 * (MEANS["pi"][1] / 2 + sum(MEANS["pi"][2:4]) + MEANS["pi"][4] / 2) / 3,
    ("pi", "price"): 100 * (0.96 + 0.95 - 0.99 - 0.98) / 2,
    ("none", "position_bias"): 2.0,
    ("pi", "position_bias"): 1.0,
    ("none", "position_bias_beyond"): 100 * (0.2 + 0.2 + 0.1) / 3,
    ("pi", "position_bias_beyond"): 100 * (0.16 + 0.15 + 0.1) / 3,
}


def documents(rng: np.random.Generator) -> Made:
    """NLL of the same targets at every length: documents differ, and each differs a little from length to length."""
    own, sizes = rng.normal(0, 0.4, DOCUMENTS), rng.integers(20, 60, DOCUMENTS).tolist()
    facts = [{"document": str(k), "first_target": 100, "end": 100 + sizes[k]} for k in range(DOCUMENTS)]
    made = {}
    for method, curve in NATS.items():
        for length, mean in zip(LENGTHS, curve, strict=True):
            each = (mean + own + rng.normal(0, 0.1, DOCUMENTS)).tolist()
            made[method, length] = [
                Sample(
                    index=k,
                    cluster=str(k),
                    tokens=length,
                    nll=np.full(sizes[k], each[k], np.float32),
                    facts=facts[k],
                )
                for k in range(DOCUMENTS)
            ]
    return made


def haystacks(rng: np.random.Generator) -> Made:
    """Answers to other haystacks at every length, of the same names; a hard one is hard for both methods."""
    made = {}
    for place, length in enumerate(LENGTHS):
        hardness, depths = rng.random(DOCUMENTS), (np.arange(DOCUMENTS) + rng.random(DOCUMENTS)) / DOCUMENTS
        for method, shares in SHARES.items():
            outer, inner = shares[place]
            right = hardness < np.where((depths >= 0.25) & (depths < 0.75), inner, outer)
            made[method, length] = [
                Sample(
                    index=k,
                    cluster=str(k),
                    tokens=length,
                    depth=float(depths[k]),
                    scores={"accuracy": float(right[k])},
                )
                for k in range(DOCUMENTS)
            ]
    return made


@dataclass
class Simulated:
    """All runs' summaries, and what is true of them."""

    found: list[dict[tuple[str, str], SummaryValue]]
    truth: Truth

    def hits(self, place: tuple[str, str]) -> int:
        """Runs whose interval holds the truth."""
        every = [each[place] for each in self.found]
        assert all(each.low is not None and each.high is not None for each in every)
        return sum((each.low or 0.0) - 1e-9 <= self.truth[place] <= (each.high or 0.0) + 1e-9 for each in every)

    def width(self, place: tuple[str, str]) -> float:
        """Mean half width over 1.96 standard deviations of the estimates."""
        every = [each[place] for each in self.found]
        values = [each.value or 0.0 for each in every]
        return float(np.mean([(each.high or 0.0) - (each.low or 0.0) for each in every]) / (3.92 * np.std(values)))


def simulated(task: str, make: Callable[[np.random.Generator], Made], truth: Truth, seed: int) -> Simulated:
    rng = np.random.default_rng(seed)
    made = [FinishedCell(cell(task, *place, n=DOCUMENTS), samples) for place, samples in make(rng).items()]
    table: Table = next(each for each in build_tables(made) if each.metric in ("nll", "accuracy"))
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs, "sign_flip_p", lambda sums: 1.0)  # tested elsewhere, and most of the time
        for _ in range(RUNS):
            samples = {
                table.entries[parse_label(method), length].cell: each for (method, length), each in make(rng).items()
            }
            found.append({(str(each.method), each.name): each for each in curve_summaries(table, samples)})
    return Simulated(found, truth)


def wrong(run: Simulated, widest: float, *, above: bool) -> dict[tuple[str, str], tuple[int, float]]:
    """Summaries that hold the truth too rarely, or `above` too often, or that are too narrow or wide: hits, width."""
    odd = {}
    for place in run.truth:
        hits, inverted = run.hits(place), place[1] in ("effective_length", "collapse")
        width = 1.0 if inverted else run.width(place)
        if not FEWEST <= hits <= (MOST if above and not inverted else RUNS) or not 0.88 < width < widest:
            odd[place] = (hits, width)
    return odd


@pytest.mark.slow
def test_summaries_of_nll_cover_nominally() -> None:
    run = simulated("last_segment", documents, NATS_TRUTH, 20)
    # up to 32 clusters intervals have a nominal level of 97.5 %: Student's quantile is 1.2 times 1.96
    assert wrong(run, 1.2, above=True) == {}
    # 0.07 behind at 512, standard error 0.1 sqrt(2 / 40) = 0.0224: the worse end stays within the margin of 0.1 where
    # the estimate is below 0.1 - 2.25 * 0.0224, in norm.cdf((0.03 - 2.25 * 0.0224) / 0.0224) = 18 % of all runs; 2.25
    # is Student's quantile with 39 degrees of freedom at a tail of 0.025 (1 - 16 / 40)
    ends = [(each["none", "effective_length"].low, each["none", "effective_length"].high) for each in run.found]
    assert sum(end == (512, 512) for end in ends) / RUNS == pytest.approx(0.18, abs=3 * math.sqrt(0.18 * 0.82 / RUNS))
    assert set(ends) <= {(256, 512), (512, 512)}


@pytest.mark.slow
def test_summaries_of_scores_cover_nominally_or_more() -> None:
    # near shares of 0 and 1 Wilson's ends are lopsided, and those of several lengths and of gains and losses add up
    assert wrong(simulated("passkey", haystacks, SHARES_TRUTH, 21), 2.5, above=False) == {}


@pytest.mark.slow
def test_wilson_covers_nominally_on_average_over_shares() -> None:
    for n in (16, 32, 64):
        shares = np.linspace(0.02, 0.98, 193)
        ends = [wilson_interval(k, n) for k in range(n + 1)]
        covered = [sum(binom.pmf(k, n, p) for k, each in enumerate(ends) if each.low <= p <= each.high) for p in shares]
        assert 0.94 < np.mean(covered) < 0.965
        assert min(covered) > 0.83  # near 0 and 1, as is known of it (Brown, Cai and DasGupta 2001)


def test_the_cluster_bootstrap_of_a_ratio_covers_nearly_nominally() -> None:
    rng, hits = np.random.default_rng(22), 0
    for _ in range(RUNS):
        own, tokens = np.repeat(rng.normal(0, 0.4, DOCUMENTS), 2), rng.integers(20, 60, 2 * DOCUMENTS)
        amounts = tokens * (3.0 + own + rng.gamma(1.0, 0.2, 2 * DOCUMENTS) - 0.2)
        each = cluster_bootstrap(amounts, tokens, [str(k // 2) for k in range(2 * DOCUMENTS)])
        hits += each is not None and each.low <= 3.0 <= each.high
    assert FEWEST <= hits <= MOST


@pytest.mark.slow
def test_differences_of_answers_cover_where_the_bootstrap_does_not() -> None:
    # 2 of 100 answers are lost, of 32: in 52 % of all runs no pair differs, and resamples have no width
    rng, ours, theirs = np.random.default_rng(24), 0, 0
    for _ in range(RUNS):
        lost = [Outcome(index=k, cluster=str(k), amount=-float(each)) for k, each in enumerate(rng.random(32) < 0.02)]
        gained, gone = (group_levels({"": part}, True)[""] for part in split_gains_and_losses(lost))
        found = combine_levels([(1, gained), (-1, gone)], True)
        ours += found.low is not None and found.high is not None and found.low <= -0.02 <= found.high
        plain = cluster_bootstrap([each.amount or 0.0 for each in lost], [1.0] * 32, [each.cluster for each in lost])
        theirs += plain is not None and plain.low <= -0.02 <= plain.high
    assert ours >= FEWEST
    assert theirs <= binom.ppf(0.999, RUNS, 1 - 0.98**32)


def pair(rng: np.random.Generator, gain: float) -> list[list[Sample]]:
    """Two methods on the same 40 documents, which differ far more than the methods do."""
    own = rng.normal(3.0, 0.5, DOCUMENTS)
    return [
        [
            Sample(index=k, cluster=str(k), tokens=256, nll=np.full(32, value, np.float32))
            for k, value in enumerate((own - shift + rng.normal(0, 0.03, DOCUMENTS)).tolist())
        ]
        for shift in (0.0, gain)
    ]


def unpaired(sides: Sequence[Sequence[Sample]]) -> tuple[float, float]:
    """The interval of the same difference with the documents of either side drawn by themselves."""
    groups = {
        side: [replace(each, cluster=f"{side} {each.cluster}") for each in outcomes_of_samples(samples, "nll")]
        for side, samples in enumerate(sides)
    }
    known = group_levels(groups, False)
    found = combine_levels([(1, known[1]), (-1, known[0])], False)
    assert found.low is not None and found.high is not None
    return found.low, found.high


@pytest.mark.slow
def test_a_paired_comparison_detects_what_an_unpaired_one_misses() -> None:
    rng = np.random.default_rng(23)
    seen, missed, covered = 0, 0, 0
    for _ in range(60):
        sides = pair(rng, 0.03)
        found = paired_difference(outcomes_of_samples(sides[0], "nll"), outcomes_of_samples(sides[1], "nll"), "nll")
        assert found.interval is not None and found.p is not None
        seen += found.interval.high < 0 and found.p < 0.05
        covered += found.interval.low <= -0.03 <= found.interval.high
        low, high = unpaired(sides)
        missed += low < 0 < high
    # paired: standard error 0.03 sqrt(2 / 40) = 0.0067, 4.5 times in the gain; unpaired: 0.5 sqrt(2 / 40) = 0.11
    assert seen >= 58  # of 60, at a power of 0.99 or more
    assert missed >= 50  # of 60, at 0.95
    assert covered >= binom.ppf(0.001, 60, 0.93)


def test_the_limits_are_those_of_the_binomial() -> None:
    assert (FEWEST, MOST) == (355, 397)
    assert binom.cdf(FEWEST - 1, RUNS, 2 * 0.9043 - 1) > 0.9999  # a third too narrow: norm.cdf(1.96 * 2 / 3) = 0.9043
    assert math.isclose(binom.cdf(FEWEST - 1, RUNS, 0.93), 0.001, abs_tol=0.001)
