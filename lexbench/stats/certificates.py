"""Certificates of non-inferiority: proof, by betting, that a loss is below a margin.

The loss x_c of cluster c (a document, a haystack) is how much worse the run is than the baseline on the same questions.
Against the hypothesis that the mean loss is the margin m or more, a bettor stakes a fraction on each cluster:

    wealth_n = sum_k w_k prod_{c <= n} (1 + l_k (m - min(x_c, cap))),    0 <= l_k < 1 / (cap - m)

Under the hypothesis no factor has an expectation above 1. So the chance that the wealth ever reaches 20, at any number
of clusters, is at most 1/20 (Ville's inequality; Waudby-Smith and Ramdas 2024, JRSS B 86:1). One may look after every
question, stop as soon as it is proven, and go on with a larger n where it is not. It takes no normal noise, and no
minimum of clusters.

- Scores lie in [0, 1], so no loss is above 1: cap = 1, and the claim is on the mean loss itself.
- Nats have no bound, and no test without one can prove a mean. Losses are counted up to cap = 4 margins for each
  document; how many lost more is stated beside it. Gains count in full, so noise of several margins would lower the
  mean that is counted: the 95 % interval of the mean loss itself (`cluster_bootstrap`, nothing capped) must end below
  the margin, too. That end holds at the clusters of the run, not at every number of them.
- Clusters of several questions count once, by the mean loss of the questions up to the first of another cluster, so
  that a larger n changes no earlier stake.
- Of several claims each has its own 5 %: a certificate of all is false only if one of them is.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lexbench.stats.intervals import SIGNIFICANCE_LEVEL, Floats, cluster_bootstrap, student_halfwidth
from lexbench.stats.metrics import better_direction, is_score
from lexbench.stats.pairs import Outcome, question_gaps

MAX_COUNTED_LOSS_MARGINS = 4.0
"""Largest loss of a document that counts, in margins; of nats."""
PLANNED_LEVEL = 0.8
"""Level of the interval of the variance whose upper end a plan takes."""
STAKE_FRACTIONS = np.array([0.95, 0.8, 0.6, 0.4, 0.25, 0.12])
"""Fractions of the largest stake: the first for losses that hardly ever come, the last for noise of several margins."""
WEALTH_SHARE_OF_STAKE = np.array([0.5, *[0.1] * 5])
"""Share of the starting wealth that is bet with each stake; they sum to 1."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Proof:
    """Result of a test on the paired losses of one comparison: whether the loss is proven to lie below a margin."""

    losses: Floats
    """[clusters] mean loss of each, in their order."""
    questions: int
    """Questions of these clusters that count: some of a cluster after the first question of another one do not."""
    margin: float
    """Largest allowed loss, in the metric's own unit, as all amounts below."""
    cap: float
    mean: float
    """Mean loss of the clusters, not capped."""
    end: float | None
    """Upper end of the 95 % interval of that mean, to lie below the margin; None: a score, whose loss has a bound."""
    above: int
    """Clusters that lost more than the cap."""
    wealth: float
    """Largest wealth of the bet so far: 1 / wealth is an anytime-valid p-value."""
    at: int | None
    """Clusters after which the wealth was 20; None: it was not, or the interval ends above the margin."""
    more: int | None
    """Clusters still needed if the next ones lose as these did; None: proven, or these lose too much."""

    @property
    def unseen_share(self) -> float | None:
        """Share of all clusters that may lose more than the cap, at 95 %; None: a score, none does.

        The end of Clopper and Pearson's one-sided interval: 1 - 0.05^(1/n) where none of n did.
        """
        from scipy.stats import beta

        if self.end is None:
            return None
        above, rest = self.above, self.clusters - self.above
        return float(beta.ppf(1 - SIGNIFICANCE_LEVEL, above + 1, rest)) if rest else 1.0

    @property
    def clusters(self) -> int:
        """Number of clusters with a loss."""
        return len(self.losses)


def prove_small_loss(baseline: Sequence[Outcome], other: Sequence[Outcome], metric: str, margin: float) -> Proof | None:
    """The proof that the other side loses less than the margin, in the metric's own unit; None without a pair."""
    counted = _drop_late_questions(question_gaps(baseline, other))
    losses = cluster_losses(counted, metric)
    if not len(losses) or not margin > 0:
        return None
    return prove_losses(losses, metric, margin, len(counted))


def prove_losses(losses: Floats, metric: str, margin: float, questions: int | None = None) -> Proof:
    """The proof of losses [clusters] against a margin; `questions` in all clusters, None: one in each."""
    cap = max_counted_loss(metric, margin)
    logs = log_wealth(losses[None], margin, cap)[0]
    reached = np.flatnonzero(logs >= math.log(1 / SIGNIFICANCE_LEVEL))
    mean, end = float(losses.mean()), None if is_score(metric) else _upper_end(losses)
    sure = bool(len(reached)) and (end is None or end < margin)
    return Proof(
        losses=losses,
        questions=len(losses) if questions is None else questions,
        margin=margin,
        cap=cap,
        mean=mean,
        end=end,
        above=int((losses > cap).sum()),
        wealth=math.exp(min(float(logs.max()), 700.0)),  # beyond 709 it is no float64
        at=int(reached[0]) + 1 if sure else None,
        more=None if sure else _more_clusters_needed(losses, margin, cap, mean, end),
    )


def _upper_end(losses: Floats) -> float:
    """Upper end of the 95 % interval of the mean of losses [clusters]; infinite for one cluster."""
    found = cluster_bootstrap(losses, np.ones(len(losses)), [str(place) for place in range(len(losses))])
    return math.inf if found is None else found.high


def _more_clusters_needed(losses: Floats, margin: float, cap: float, mean: float, end: float | None) -> int | None:
    """Clusters still needed if the next ones lose as these [clusters] did; None where no number proves it."""
    clusters = len(losses)
    grown = np.log(1 + _stakes(margin, cap)[:, None] * (margin - np.minimum(losses, cap))).sum(axis=1)
    # Further clusters until a stake's own share of the wealth is 20, if it grows on at its rate; the fastest decides.
    ways = (
        (math.log(1 / SIGNIFICANCE_LEVEL) - np.log(WEALTH_SHARE_OF_STAKE) - grown)[grown > 0]
        / grown[grown > 0]
        * clusters
    )
    if not len(ways):
        return None
    bets = max(1, math.ceil(float(ways.min())))
    if end is None or math.isinf(end):
        return bets
    if mean >= margin:
        return None
    # The interval's half width shrinks with the square root of the clusters.
    return max(bets, math.ceil(clusters * ((end - mean) / (margin - mean)) ** 2) - clusters)


def max_counted_loss(metric: str, margin: float) -> float:
    """Largest loss of a cluster that counts."""
    return 1.0 if is_score(metric) else MAX_COUNTED_LOSS_MARGINS * margin


def cluster_losses(counted: Sequence[Outcome], metric: str) -> Floats:
    """[clusters] mean losses of gaps, in the order of their first question."""
    sums: dict[str, list[float]] = {}
    for each in counted:
        total = sums.setdefault(each.cluster, [0.0, 0.0])
        total[0] -= better_direction(metric) * (each.amount or 0.0)
        total[1] += each.units
    return np.array([loss / units for loss, units in sums.values() if units > 0])


def _drop_late_questions(found: Sequence[Outcome]) -> list[Outcome]:
    """Gaps without later questions of a cluster that has ended: they would change a stake that is placed already."""
    kept, ended, last = list[Outcome](), set[str](), found[0].cluster if found else ""
    for each in found:
        if each.cluster != last:
            ended.add(last)
        last = each.cluster
        if each.cluster not in ended:
            kept.append(each)
    return kept


def log_wealth(losses: ArrayLike, margin: float, cap: float) -> Floats:
    """[series, clusters] log of the wealth after each cluster of losses [series, clusters]."""
    won = margin - np.minimum(np.asarray(losses, np.float64), cap)
    whole = np.full(won.shape, -np.inf)
    for stake, share in zip(_stakes(margin, cap), WEALTH_SHARE_OF_STAKE, strict=True):
        whole = np.logaddexp(whole, math.log(share) + np.cumsum(np.log(1 + stake * won), axis=-1))
    return whole


def _stakes(margin: float, cap: float) -> Floats:
    return np.asarray(STAKE_FRACTIONS / (cap - margin))


def clusters_to_prove(losses: ArrayLike, metric: str, margin: float, most: int, loss: float | None = None) -> Floats:
    """[3] clusters after which 50, 80 and 90 % of 500 deployments like a pilot are proven; inf beyond `most`.

    Deployments draw the pilot's clusters at random, moved so that their mean is `loss` (None: as it is), and spread so
    that their variance is `likely_variance`. Scores keep their values: clusters without a change become lost or gained
    ones instead, as many of both as that variance asks for, so that a pilot without any is not taken for proof.
    """
    return clusters_proven(_draw_deployments(np.asarray(losses, np.float64), metric, most, loss, 500), metric, margin)


def clusters_proven(drawn: Floats, metric: str, margin: float) -> Floats:
    """[3] clusters after which 50, 80 and 90 % of drawn losses [deployments, clusters] are proven; inf beyond them."""
    found = losses_are_proven(drawn, metric, margin).sum(axis=0)
    # Of 500 more than 250, 400 and 450.
    enough = [found > math.ceil(quantile * (len(drawn) - 1)) for quantile in (0.5, 0.8, 0.9)]
    return np.array([each.argmax() + 1.0 if each.any() else np.inf for each in enough])


def losses_are_proven(losses: ArrayLike, metric: str, margin: float) -> NDArray[np.bool_]:
    """[series, clusters] whether so many clusters of losses [series, clusters] prove a mean loss below the margin.

    Of losses without a bound the interval's end is Student's at the level of the bootstrap-t: thousands of bootstraps
    would take minutes.
    """
    values = np.asarray(losses, np.float64)
    reached = log_wealth(values, margin, max_counted_loss(metric, margin)) >= math.log(1 / SIGNIFICANCE_LEVEL)
    found = np.asarray(np.maximum.accumulate(reached, axis=-1))
    if is_score(metric):
        return found
    counts = np.arange(1, values.shape[-1] + 1)
    middle = values.mean(axis=-1, keepdims=True)
    means = np.cumsum(values - middle, axis=-1) / counts
    squares = np.maximum(np.cumsum((values - middle) ** 2, axis=-1) - counts * means**2, 0.0)
    ends = middle + means + student_halfwidth(counts) * np.sqrt(squares / counts)
    return np.asarray(found & (counts > 1) & (ends < margin))


def _draw_deployments(losses: Floats, metric: str, most: int, loss: float | None, count: int) -> Floats:
    rng = np.random.default_rng(0)
    wanted = float(losses.mean()) if loss is None else loss
    if not is_score(metric):
        spread = losses - losses.mean()
        if own := float(np.square(spread).mean()):
            spread = spread * math.sqrt(likely_variance(losses, metric) / own)
        return np.asarray((spread + wanted)[rng.integers(len(losses), size=(count, most))])
    square = float(np.square(losses).mean())
    # So many clusters more are lost or gained, half of each, that the mean square is the likely one.
    changed = (likely_variance(losses, metric) - square) / (1 - square) if square < 1 else 0.0
    pool = np.concatenate([losses, [1.0, -1.0]])
    chances = np.array([*[(1 - changed) / len(losses)] * len(losses), changed / 2, changed / 2])
    mean = float(chances @ pool)
    drawn = pool[rng.choice(len(pool), p=chances, size=(count, most))]
    turned = rng.random(drawn.shape)
    # Turned with chance q, the mean becomes mean + q (1 - mean), or mean - q (1 + mean).
    if wanted > mean:  # every cluster may be lost instead
        return np.where(turned < (wanted - mean) / (1 - mean), 1.0, drawn)
    return np.where(turned < (mean - wanted) / (1 + mean), -1.0, drawn)


def likely_variance(losses: ArrayLike, metric: str) -> float:
    """Upper end of the 80 % interval of the variance of losses [clusters], at least 2: what a plan allows for.

    Of normal losses (C - 1) s^2 / chi^2, with the 10 % quantile of C - 1 degrees of freedom. Of scores Wilson's end for
    the mean square, which is the share of changed clusters where these are lost or gained as a whole.
    """
    from scipy.stats import chi2

    values = np.asarray(losses, np.float64)
    if is_score(metric):
        square, n = float(np.square(values).mean()), len(values)
        z = NormalDist().inv_cdf((1 + PLANNED_LEVEL) / 2)
        spread = z * math.sqrt(square * (1 - square) / n + z**2 / (4 * n**2))
        return (square + z**2 / (2 * n) + spread) / (1 + z**2 / n)
    free = len(values) - 1
    return float(free * values.var(ddof=1) / chi2.ppf((1 - PLANNED_LEVEL) / 2, free))


def fixed_test_clusters(losses: ArrayLike, metric: str, margin: float, loss: float = 0.0) -> int:
    """Clusters of a test at one fixed number of them, 5 % one-sided, proven in 90 % if the true mean is `loss`.

    n = (1.645 + 1.282)^2 variance / (margin - loss)^2, for normal means, with `likely_variance`.
    """
    return fixed_test_size(likely_variance(losses, metric), margin, loss)


def fixed_test_size(variance: float, margin: float, loss: float = 0.0) -> int:
    """Clusters of a test at one fixed number, as `fixed_test_clusters`, of losses with a known variance."""
    quantiles = NormalDist().inv_cdf(1 - SIGNIFICANCE_LEVEL) + NormalDist().inv_cdf(0.9)
    return max(2, math.ceil(quantiles**2 * variance / (margin - loss) ** 2))
