"""Verdicts that may stop: is a method better, worse, or equal within a margin, on as few questions as show it.

The gain d_c of cluster c (a document, a haystack) is how much better the method is than the baseline on the same
questions. Two bettors stake on each cluster against every centre m, one that the gains lie above it, one below:

    W_n(m) = sum_k w_k prod_{c <= n} (1 + f_k clip(d_c - m, -B, B) / B),    0 < f_k < 1, sum_k w_k = 1
    low = the largest m with W(m) >= 2 / level at some n;    high: the same of -d, times -1

If the mean of clip(d - m, -B, B) is 0, W(m) is a martingale that begins at 1: with a chance of at most level / 2 it
ever reaches 2 / level (Ville's inequality; Waudby-Smith and Ramdas 2024, JRSS B 86:1, section 4). So [low, high] holds
the centre with a chance of 1 - level at all n together, and one may look after each round and stop. Better is low > 0,
worse is high < 0, equal is an interval within the margin; all follow from the one interval, so that together they are
wrong with a chance of at most `level`.

- Scores: B = 1 + m below m, the farthest that a gain can lie, so that nothing is clipped: the centre is the mean.
- Nats have no bound. B is 4 margins: the centre is Huber's location (1964, Ann. Math. Stat. 35:73), which is the mean
  where gains are symmetric. Where few documents differ much it is not. So the interval of the mean itself
  (`cluster_bootstrap`, nothing clipped) must say the same before a verdict is given. That one holds at each n, and not
  at all n together.
- Rounds end at 8, 12, 16, 24, 32, ... questions. A cluster counts by its questions of the round in which it began, so
  that no later question changes an earlier stake.
- Of several comparisons each takes an equal part of the level (Bonferroni), which is fixed before the first question.
"""

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from lexbench.stats.certificates import MAX_COUNTED_LOSS_MARGINS
from lexbench.stats.intervals import Floats, cluster_bootstrap
from lexbench.stats.metrics import better_direction, is_score
from lexbench.stats.pairs import Outcome, question_gaps

ROUND_ENDS = [each << place for place in range(18) for each in (8, 12)]
"""Questions after which a run looks: 8, 12, 16, 24, 32, 48, ..., beyond a million."""
STAKE_FRACTIONS = np.geomspace(0.95, 0.03, 8)
"""f_k: the first for gains that all lie on one side, the last for a mean of a thirtieth of what the noise allows."""
WEALTH_SHARES = np.array([0.3, *[0.1] * 7])
"""w_k: more is bet as if all gains lay on one side, so that what is plain is decided in the first round."""
BISECTION_STEPS = 40


class StoppingVerdict(StrEnum):
    """What is shown of a method against its baseline."""

    BETTER = "better"
    WORSE = "worse"
    EQUAL = "equal"
    """Within the margin."""
    OPEN = "undecided"


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A comparison after a round, in the metric's own unit; gains are positive where the method is better."""

    verdict: StoppingVerdict
    gain: float | None
    """Mean gain of the clusters, nothing clipped; None without a pair."""
    low: float
    """Ends of the anytime-valid interval of the centre; infinite while nothing is known."""
    high: float
    clusters: int
    clipped: int
    """Clusters whose gain lies beyond the bound of a bet at a centre of 0."""


def round_ends(most: int) -> list[int]:
    """Questions after which a run of at most so many looks."""
    return ROUND_ENDS[: bisect.bisect_right(ROUND_ENDS, most)]


def decide(baseline: Sequence[Outcome], other: Sequence[Outcome], metric: str, margin: float, level: float) -> Decision:
    """The verdict on a method by outcomes of whole rounds.

    Args:
        baseline: outcomes of the baseline.
        other: those of the method, on the same questions.
        metric: nll in nats per token, or a score.
        margin: difference that does not matter, above 0, in the metric's own unit.
        level: chance of a wrong verdict, at any number of questions.
    """
    gains = cluster_gains(question_gaps(baseline, other), metric)
    return decide_gains(gains, metric, margin, level)


def decide_gains(gains: Floats, metric: str, margin: float, level: float) -> Decision:
    """The verdict on gains [clusters], in the order in which the clusters were asked."""
    bound = None if is_score(metric) else MAX_COUNTED_LOSS_MARGINS * margin
    low, high = confidence_sequence(gains, bound, level)
    ends = [(low, high)]
    if bound is not None:
        found = cluster_bootstrap(gains, np.ones(len(gains)), [str(place) for place in range(len(gains))])
        ends.append((found.low, found.high) if found else (-math.inf, math.inf))
    verdict = StoppingVerdict.OPEN
    if all(lower > 0 for lower, _ in ends):
        verdict = StoppingVerdict.BETTER
    elif all(upper < 0 for _, upper in ends):
        verdict = StoppingVerdict.WORSE
    elif all(-margin < lower and upper < margin for lower, upper in ends):
        verdict = StoppingVerdict.EQUAL
    return Decision(
        verdict=verdict,
        gain=float(gains.mean()) if len(gains) else None,
        low=low,
        high=high,
        clusters=len(gains),
        clipped=0 if bound is None else int((np.abs(gains) > bound).sum()),
    )


def cluster_gains(gaps: Sequence[Outcome], metric: str) -> Floats:
    """[clusters] mean gain of each, by its questions of the round in which it began, in the order of their first."""
    sums: dict[str, list[float]] = {}
    began: dict[str, int] = {}
    for each in sorted(gaps, key=lambda gap: gap.index):
        if began.setdefault(each.cluster, _round_of(each.index)) == _round_of(each.index):
            total = sums.setdefault(each.cluster, [0.0, 0.0])
            total[0] += better_direction(metric) * (each.amount or 0.0)
            total[1] += each.units
    return np.array([gain / units for gain, units in sums.values() if units > 0])


def _round_of(index: int) -> int:
    """Round in which a question is asked: 0 of the first eight, then 1, 2, ..."""
    return bisect.bisect_right(ROUND_ENDS, index)


def confidence_sequence(gains: Floats, bound: float | None, level: float) -> tuple[float, float]:
    """Ends of the interval that holds the centre of gains [clusters] at all numbers of clusters, with 1 - level.

    Args:
        gains: in their order.
        bound: B, beyond which a distance to the centre is clipped; None: gains lie in [-1, 1], and nothing is.
        level: chance that the interval ever misses.
    """
    needed = math.log(2 / level)
    return _lower_end(gains, bound, needed), -_lower_end(-gains, bound, needed)


def _lower_end(gains: Floats, bound: float | None, needed: float) -> float:
    """The largest centre that is excluded from above, to 40 halvings; the wealth against a centre falls as it rises."""
    least = -1.0 if bound is None else -math.inf
    if not len(gains):
        return least
    # Of an excluded centre every greater bet at a lower one is won, too; none is at the greatest gain.
    low = -1 + 1e-9 if bound is None else float(gains.min()) - bound
    high = float(gains.max())
    if high <= low or log_wealth(gains, low, bound).max() < needed:
        return least
    for _ in range(BISECTION_STEPS):
        middle = (low + high) / 2
        if log_wealth(gains, middle, bound).max() >= needed:
            low = middle
        else:
            high = middle
    return low


def log_wealth(gains: Floats, centre: float, bound: float | None) -> Floats:
    """[clusters] log of the wealth of the bet that gains lie above a centre, after each cluster."""
    farthest = 1.0 + centre if bound is None else bound
    far = gains - centre if bound is None else np.clip(gains - centre, -bound, bound)
    grown = np.cumsum(np.log1p(STAKE_FRACTIONS[:, None] * (far / farthest)), axis=1)
    return np.asarray(np.logaddexp.reduce(np.log(WEALTH_SHARES)[:, None] + grown, axis=0))
