"""Effect of the length on scores: relative to the same questions at the table's shortest length.

    effect(L) = score at L / score at the shortest length - 1

This is LongScore of 100-LongBench (Yang et al., arXiv 2505.19293), whose base is the mean over several short lengths:
base ability and length part, as a model that is weak at every length has no effect. Paired by question: only tasks
whose samples ask for the same at all lengths have one. Intervals are those of the paired difference
(`intervals.difference_interval`) in units of the score at the shortest length, so they have a width where all answers
agree. No effect is given from a score whose interval at the shortest length reaches chance.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lexbench.core.record import Sample
from lexbench.stats.intervals import difference_interval
from lexbench.stats.tables import Table


@dataclass(frozen=True)
class LengthEffect:
    """Effect of the length on a method's score."""

    method: str
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
            if not pairs or any(_asked(left) is None or _asked(left) != _asked(right) for left, right in pairs):
                return []
            scores = [[_score(each, table.metric) for each in side] for side in zip(*pairs, strict=True)]
            floored = base.low is None or base.low <= (base.chance or 0.0)
            value = None if floored else sum(scores[1]) / sum(scores[0]) - 1
            differences = [after - before for after, before in zip(scores[1], scores[0], strict=True)]
            interval = None if floored else difference_interval(differences, [left.cluster for left, _ in pairs])
            level = sum(scores[0]) / len(pairs)
            low, high = (interval.low / level, interval.high / level) if interval else (None, None)
            found.append(LengthEffect(row, length, value, low, high, len(pairs)))
    return found


def _asked(sample: Sample) -> Any:
    """What a sample asks for; None where its task does not tell."""
    return sample.facts.get("expected")


def _score(sample: Sample, metric: str) -> float:
    return 0.0 if sample.failed else sample.scores[metric]


def rows_of(table: Table, found: Sequence[LengthEffect]) -> list[dict[str, Any]]:
    """One row per method and length, in full precision."""
    shared = {"metric": table.metric, "from_length": table.lengths[0]}
    return [{**vars(each), "multiple": each.length / table.cell.trained_length, **shared} for each in found]
