"""Detection: whether a model tells questions with an answer in the text from questions without one.

    hit rate H           share of the questions with an answer to which it gives one (or says True), whichever it is
    false-alarm rate F   the same share of the questions without an answer
    d'                   z(H) - z(F), z the quantile of the normal distribution: 0 without any knowledge, whatever the
                         bias; of H = (hits + 1/2) / (questions + 1), so that 0 and 1 have a value (Hautus 1995,
                         Behavior Research Methods 27:46), and F alike
    area                 probability that True is likelier, compared with False, where there is an answer than where
                         there is none; ties count 1/2 (Mann-Whitney). It needs no threshold: 0.5 without any knowledge

A failed sample counts as a miss or as a false alarm. Samples state whether there is an answer in facts["present"], and
have the score `balance`, 1 where the model is right about that.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from lexbench.core.record import Sample
from lexbench.stats.intervals import (
    Floats,
    Interval,
    interval_halfwidths,
    mean_interval,
    recover_interval,
    wilson_interval,
)


@dataclass(frozen=True)
class Detected:
    """A metric of all samples of a cell."""

    metric: str
    value: float
    interval: Interval | None
    used: Sequence[Sample]


def detection(samples: Sequence[Sample]) -> Iterator[Detected]:
    """The metrics of a cell; nothing where no sample says whether it has an answer, or one kind is missing."""
    told = [sample for sample in samples if "present" in sample.facts and (sample.failed or "balance" in sample.scores)]
    kinds = [[sample for sample in told if bool(sample.facts["present"]) is present] for present in (True, False)]
    if not all(kinds):
        return
    # Right about an answer that is there: a hit; wrong about one that is not: a false alarm.
    named = [[_right(sample) for sample in kinds[0]], [1 - _right(sample) for sample in kinds[1]]]
    for metric, values, used in zip(("hit_rate", "false_alarm_rate"), named, kinds, strict=True):
        yield Detected(metric, float(np.mean(values)), mean_interval(values, [each.cluster for each in used]), used)
    yield Detected("d_prime", *_d_prime(named, len({sample.cluster for sample in told}) == len(told)), told)
    if all("option_nll" in sample.statistics for sample in told):
        yield Detected("area", *_area(*kinds), told)


def _right(sample: Sample) -> float:
    return 0.0 if sample.failed is not None else float(sample.scores["balance"])


def _d_prime(named: Sequence[Sequence[float]], independent: bool) -> tuple[float, Interval | None]:
    """d' of the shares named with and without an answer; its interval is recovered from Wilson's of both."""
    z = NormalDist().inv_cdf
    sides = [((sum(values) + 0.5), len(values) + 1) for values in named]
    signs = (1, -1)
    values = [sign * z(hits / n) for sign, (hits, n) in zip(signs, sides, strict=True)]
    if not independent:
        return sum(values), None
    ends = [sorted(sign * z(end) for end in _ends(*side)) for sign, side in zip(signs, sides, strict=True)]
    low, high = recover_interval(values, [low for low, _ in ends], [high for _, high in ends], np.eye(2))
    return sum(values), Interval(low, high, "mover")


def _ends(hits: float, n: int) -> tuple[float, float]:
    found = wilson_interval(hits, n)
    return found.low, found.high


def _area(present: Sequence[Sample], absent: Sequence[Sample]) -> tuple[float, Interval | None]:
    """The area, with the bootstrap of clusters by each sample's influence (DeLong 1988, Biometrics 44:837)."""
    with_answer, without = _ratings(present, -np.inf)[:, None], _ratings(absent, np.inf)[None, :]
    wins = (with_answer > without) + (with_answer == without) / 2
    area = float(wins.mean())
    shares = [(wins.mean(axis=1) - area) / len(present), (wins.mean(axis=0) - area) / len(absent)]
    names = [sample.cluster for sample in (*present, *absent)]
    order = {name: place for place, name in enumerate(dict.fromkeys(names))}
    influences = np.zeros(len(order))
    np.add.at(influences, [order[name] for name in names], np.concatenate(shares))
    if len(order) < 2 or not influences.any():
        return area, None
    below, above = (float(each) for each in interval_halfwidths([influences]))
    return area, Interval(max(0.0, area - below), min(1.0, area + above), "cluster_bootstrap")


def _ratings(samples: Sequence[Sample], failed: float) -> Floats:
    """[samples] nats by which True, the first option, is likelier than False; `failed` of a failed sample."""
    pairs = [sample.statistics["option_nll"].astype(np.float64) for sample in samples]
    return np.array(
        [failed if each.failed else second - first for each, (first, second) in zip(samples, pairs, strict=True)]
    )
