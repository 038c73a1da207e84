"""Effect of the length on scores: relative to the same questions at the table's shortest length.

    effect(L) = score at L / score at the shortest length - 1

This is LongScore of 100-LongBench (Yang et al., arXiv 2505.19293), whose base is the mean over several short lengths:
base ability and length part, as a model that is weak at every length has no effect. Paired by question: only tasks
whose samples ask for the same at all lengths have one. Its interval holds the effects e that the difference of both
scores less e times the score at the shortest length allows (`effect_interval`). No effect is given from a score whose
interval at the shortest length reaches chance.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lexbench.core.method_key import MethodKey
from lexbench.core.record import Sample
from lexbench.stats.floors import at_floor
from lexbench.stats.intervals import (
    cluster_sums,
    difference_interval,
    influence_correlations,
    mean_interval,
    ratio_with_influences,
    recover_interval,
)
from lexbench.stats.tables import Table


@dataclass(frozen=True)
class LengthEffect:
    """Effect of the length on a method's score."""

    method: MethodKey
    length: int
    value: float | None
    """None: the score at the shortest length is at its floor."""
    low: float | None
    high: float | None
    pairs: int


def length_effects(table: Table, samples: Mapping[str, Sequence[Sample]]) -> list[LengthEffect]:
    """Effects of every method at every length beyond the shortest; empty where samples ask for other things."""
    if not table.scored or table.metric is None:
        return []
    found = []
    for row in table.methods:
        base = table.entries.get((row, table.lengths[0]))
        for length in table.lengths[1:]:
            record = table.entries.get((row, length))
            if base is None or record is None or base.value is None or record.value is None:
                continue
            short, long = ({each.index: each for each in samples.get(r.cell, ())} for r in (base, record))
            pairs = [(short[index], long[index]) for index in short if index in long]
            # One pair that asks for other things: questions of this task are drawn anew for each length.
            if not pairs or any(
                _asked_fact(left) is None or _asked_fact(left) != _asked_fact(right) for left, right in pairs
            ):
                return []
            scores = [[_score(each, table.metric) for each in side] for side in zip(*pairs, strict=True)]
            floored = at_floor(base) or not any(scores[0])
            value = None if floored else sum(scores[1]) / sum(scores[0]) - 1
            clusters = [left.cluster for left, _ in pairs]
            low, high = (None, None) if floored else effect_interval(scores[0], scores[1], clusters)
            found.append(LengthEffect(row, length, value, low, high, len(pairs)))
    return found


def effect_interval(
    short: ArrayLike, long: ArrayLike, clusters: Sequence[str]
) -> tuple[float, float] | tuple[None, None]:
    """Ends of the 95 % interval of the effect, mean of `long` / mean of `short` - 1; None twice for one cluster.

    With d the difference of the means and s the mean of `short`, d - e s has an interval recovered from those of d
    (`intervals.difference_interval`, with a width where all answers agree) and s (Wilson's). The effects e for which it
    holds 0 are the interval: from -1 to 1 / l - 1 at most, l the lower end of s (Fieller's theorem with recovered
    variances: Donner and Zou 2012, Statistical Methods in Medical Research 21:347).

    Args:
        short: [questions] scores in [0, 1] at the shortest length, not all 0.
        long: [questions] the same questions at another length.
        clusters: [questions] of each question.
    """
    from scipy.optimize import brentq

    base, change = np.asarray(short, np.float64), np.asarray(long, np.float64) - np.asarray(short, np.float64)
    wide, own = difference_interval(change, clusters), mean_interval(base.tolist(), clusters)
    if wide is None or own is None or not own.low > 0:
        return None, None
    parts = [ratio_with_influences(cluster_sums(each, np.ones(len(base)), clusters))[1] for each in (change, base)]
    alike = influence_correlations(np.stack(parts, axis=1))

    def end(effect: float, side: int) -> float:
        """The lower (0) or upper (1) end of the interval of d - effect s."""
        signs = np.array([1.0, -np.sign(effect)])
        low, high = sorted((-effect * own.low, -effect * own.high))
        middle = [float(change.mean()), -effect * float(base.mean())]
        return recover_interval(middle, [wide.low, low], [wide.high, high], alike * np.outer(signs, signs))[side]

    least, most = -1.0, 1 / own.low - 1
    # Both ends sink as the effect rises.
    ends = [
        least if end(least, side) <= 0 else most if end(most, side) >= 0 else float(brentq(end, least, most, (side,)))
        for side in (0, 1)
    ]
    return ends[0], ends[1]


def _asked_fact(sample: Sample) -> Any:
    """Right answer of a sample; None where its task does not store it."""
    return sample.facts.get("expected")


def _score(sample: Sample, metric: str) -> float:
    return 0.0 if sample.failed else sample.scores[metric]


def rows_of(table: Table, found: Sequence[LengthEffect]) -> list[dict[str, Any]]:
    """One row per method and length, in full precision."""
    shared = {"metric": table.metric, "from_length": table.lengths[0]}
    return [
        {**vars(each), "method": str(each.method), "multiple": each.length / table.cell.trained_length, **shared}
        for each in found
    ]
