"""Weighted sums of several cells' values with intervals, from which summaries of curves are built.

A level is the value of a group of outcomes, a cell or a part of it: sum of amounts / sum of units. Levels whose groups
share clusters (documents) vary together, so their common part cancels in a difference; others independently.
A combination is sum of weight * level. Its 95 % interval is

    likelihoods    the bootstrap-t of the combination over joint resamples of clusters
                   (`intervals.interval_halfwidths`)
    scores         value -+ sqrt(sum_ij r_ij d_i d_j), d_i the distance from weight_i level_i to that end of its own
                   interval (Wilson's), r_ij the correlation of both over clusters

The second has a width at accuracies of 0 and 1, unlike resampling. Of two levels it is method 10 of Newcombe
(1998, Statistics in Medicine 17:873 of independent and 17:2635 of paired proportions); of more, Zou, Huang and Zhang
(2009, Computational Statistics and Data Analysis 53:1080).
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from lexbench.core.groups import group_by_key
from lexbench.core.method_key import BASELINE_METHOD, MethodKey
from lexbench.core.record import Sample
from lexbench.stats.intervals import (
    Floats,
    Interval,
    influence_correlations,
    interval_halfwidths,
    mean_interval,
    ratio_with_influences,
    recover_interval,
)
from lexbench.stats.notes import Note, NoteKind
from lexbench.stats.pairs import Outcome, outcomes_of_samples
from lexbench.stats.tables import Place, Table

Key = TypeVar("Key", bound=Hashable)
CONTRASTS_PER_BLOCK = 256
"""Contrasts that are resampled at once: some megabytes each hundred."""


@dataclass(frozen=True)
class Estimate:
    """A value and its 95 % interval; None where missing."""

    value: float
    low: float | None = None
    high: float | None = None
    kind: str | None = None
    """cluster_bootstrap, or mover: variances recovered from the intervals of the terms."""

    @property
    def ends(self) -> tuple[float, float]:
        """Both ends of the interval; the value itself without one."""
        return self.value if self.low is None else self.low, self.value if self.high is None else self.high


@dataclass(frozen=True, eq=False)
class Level:
    """The value of one group of outcomes."""

    value: float
    own: Interval | None
    """Interval of a score alone; likelihoods need none."""
    influence: Floats | None
    """[clusters of the family] of each cluster on the value (`intervals.ratio`); None for one cluster of its own."""
    family: int = 0
    """Levels of one number share clusters; those of others vary independently."""


def group_levels(groups: Mapping[Key, Sequence[Outcome]], scored: bool) -> dict[Key, Level]:
    """Level of each group with a unit; failures without an amount are left out."""
    used = {key: [each for each in group if each.amount is not None] for key, group in groups.items()}
    used = {key: group for key, group in used.items() if sum(each.units for each in group) > 0}
    found = {}
    for number, keys in enumerate(_families({key: {each.cluster for each in used[key]} for key in used})):
        names = dict.fromkeys(each.cluster for key in keys for each in used[key])
        places = {name: place for place, name in enumerate(names)}
        for key in keys:
            group = used[key]
            clusters = [each.cluster for each in group]
            amounts = [each.amount or 0.0 for each in group]
            sums = np.zeros((len(places), 2))
            np.add.at(sums, [places[name] for name in clusters], np.array([amounts, [e.units for e in group]]).T)
            value, influence = ratio_with_influences(
                sums
            )  # one place for each cluster of the family: 0 where this group lacks it
            found[key] = Level(
                value=value,
                own=mean_interval(amounts, clusters) if scored else None,
                influence=influence if len(set(clusters)) > 1 else None,
                family=number,
            )
    return found


def _families(clusters: Mapping[Key, set[str]]) -> list[list[Key]]:
    """Groups of keys that share clusters, directly or through others, in the given order."""
    families: list[tuple[list[Key], set[str]]] = []
    for key, names in clusters.items():
        # A key that shares clusters with two families makes them one.
        joined = [family for family in families if family[1] & names]
        families = [family for family in families if not family[1] & names]
        keys = [each for family in joined for each in family[0]]
        families.append(([*keys, key], names.union(*(family[1] for family in joined))))
    return [keys for keys, _ in families]


def combine_levels(terms: Sequence[tuple[float, Level]], scored: bool) -> Estimate:
    """sum of weight * level; the weights of a level in several terms add up; a total of 0 removes it."""
    weights: dict[Level, float] = {}
    for weight, level in terms:
        weights[level] = weights.get(level, 0.0) + weight
    weights = {level: weight for level, weight in weights.items() if weight}
    value = math.fsum(weight * level.value for level, weight in weights.items())
    if not weights:  # a level against itself
        return Estimate(value, value, value, "mover" if scored else "cluster_bootstrap")
    if scored:
        return _recover_estimate(value, weights)
    if any(level.influence is None for level in weights):  # a single cluster has no spread to resample
        return Estimate(value)
    below, above = interval_halfwidths(_by_family(weights))
    return Estimate(value, value - float(below), value + float(above), "cluster_bootstrap")


def _by_family(weights: Mapping[Level, float]) -> list[Floats]:
    """[clusters] the influences on a combination, of each family."""
    found: dict[int, Floats] = {}
    for level, weight in weights.items():
        if level.influence is not None:
            found[level.family] = found.get(level.family, 0.0) + weight * level.influence
    return list(found.values())


def _recover_estimate(value: float, weights: Mapping[Level, float]) -> Estimate:
    """The interval of a combination of scores, from those of its levels."""
    if any(level.own is None for level in weights):
        return Estimate(value)
    values, lows, highs = [], [], []
    for level, weight in weights.items():
        assert level.own is not None
        low, high = sorted((weight * level.own.low, weight * level.own.high))  # a negative weight swaps the ends
        values.append(weight * level.value)
        lows.append(low)
        highs.append(high)
    return Estimate(value, *recover_interval(values, lows, highs, _correlations(weights)), "mover")


def _correlations(weights: Mapping[Level, float]) -> Floats:
    """[levels, levels] of the weighted levels; 0 between families, and beside a level that never varies."""
    every = list(weights)
    found = np.eye(len(every))
    varying = [place for place, level in enumerate(every) if level.influence is not None]
    for places in group_by_key(varying, lambda place: every[place].family).values():
        own = [weights[every[place]] * np.asarray(every[place].influence) for place in places]
        found[np.ix_(places, places)] = influence_correlations(np.stack(own, axis=1))
    return found


def combine_level_pairs(
    pairs: Sequence[tuple[Level, Level]], weights: tuple[float, float], scored: bool
) -> tuple[Floats, Floats, Floats]:
    """The `combine_levels` of the levels of each pair with these weights, all at once.

    Returns [pairs] values, lower ends and upper ends; NaN where a value has no interval.
    """
    every = list(dict.fromkeys(level for pair in pairs for level in pair))
    number = {level: place for place, level in enumerate(every)}
    one, other = np.array([[number[left], number[right]] for left, right in pairs], np.int64).reshape(-1, 2).T
    same = one == other  # a level with both weights
    factors = np.where(same, sum(weights), weights[0]), np.where(same, 0.0, weights[1])
    values = np.array([level.value for level in every])
    middle = factors[0] * values[one] + factors[1] * values[other]
    find = _recovered_halfwidths if scored else _resampled_halfwidths
    down, up = find(every, (one, other), factors)
    nothing = same & (factors[0] == 0)  # a level against itself
    return middle, np.where(nothing, middle, middle - down), np.where(nothing, middle, middle + up)


Numbers = tuple[NDArray[np.int64], NDArray[np.int64]]
"""[pairs] of each side, the numbers of their levels."""


def _recovered_halfwidths(every: Sequence[Level], sides: Numbers, factors: tuple[Floats, Floats]) -> Floats:
    """[2, pairs] distances to the lower and to the upper end, as `_recover_estimate`."""
    nothing = Interval(math.nan, math.nan, "")
    own = [level.own or nothing for level in every]
    below = np.array([level.value - each.low for level, each in zip(every, own, strict=True)])
    above = np.array([each.high - level.value for level, each in zip(every, own, strict=True)])
    alike = _correlations(dict.fromkeys(every, 1.0))[sides]
    found = []
    for down, up in ((below, above), (above, below)):  # a negative weight swaps the ends
        near, far = (
            np.abs(factor) * np.where(factor < 0, up[side], down[side])
            for factor, side in zip(factors, sides, strict=True)
        )
        cross = 2 * np.sign(factors[0] * factors[1]) * alike * near * far
        found.append(np.sqrt(np.maximum(near**2 + far**2 + cross, 0.0)))
    return np.array(found)


def _resampled_halfwidths(every: Sequence[Level], sides: Numbers, factors: tuple[Floats, Floats]) -> Floats:
    """[2, pairs] distances to the lower and to the upper end, by `interval_halfwidths`."""
    found = np.full((2, len(sides[0])), math.nan)
    families = np.array([-1 if level.influence is None else level.family for level in every])
    places = np.zeros(len(every), np.int64)
    influences = {}
    for family in set(families.tolist()) - {-1}:
        members = np.flatnonzero(families == family)
        places[members] = np.arange(len(members))
        influences[family] = np.stack([np.asarray(every[member].influence) for member in members.tolist()], axis=1)
    of = np.stack([families[side] for side in sides])
    for left, right in np.unique(of[:, of.min(axis=0) >= 0], axis=1).T.tolist():
        chosen = np.flatnonzero((of == [[left], [right]]).all(axis=0))
        for some in np.array_split(chosen, -(-len(chosen) // CONTRASTS_PER_BLOCK)):
            one, other = (
                factor[some] * influences[family][:, places[side[some]]]
                for factor, side, family in zip(factors, sides, (left, right), strict=True)
            )
            found[:, some] = interval_halfwidths([one + other] if left == right else [one, other])
    return found


def split_gains_and_losses(outcomes: Sequence[Outcome]) -> tuple[list[Outcome], list[Outcome]]:
    """Split gaps into gained and lost amounts: gap = gained - lost.

    For right and wrong answers both are shares, with Wilson's intervals. So a difference has a width even where no pair
    differs; resampling has none there, and covers the truth in half of all cases for 32 pairs with 2 in 100 lost.
    """
    gained, lost = (
        [replace(each, amount=max(0.0, sign * (each.amount or 0.0))) for each in outcomes] for sign in (1.0, -1.0)
    )
    return gained, lost


@dataclass(frozen=True, kw_only=True)
class SummaryValue:
    """One number that summarizes a method's curve, its 95 % interval, and the lengths it covers."""

    method: MethodKey
    """Row of the table."""
    name: str
    value: float | None
    """Value in `unit`; None: not measurable, reason in `notes`; inf: never, or beyond every measured length."""
    low: float | None = None
    high: float | None = None
    interval: str | None = None
    """cluster_bootstrap, mover (see combine) or inversion."""
    unit: str
    notes: tuple[Note, ...]
    p: float | None = None
    """p-value of a difference to the baseline: two-sided, by sign flips, uncorrected."""
    limit: int | None = None
    """The longest judged length, which inf exceeds."""
    floor: float | None = None
    """The value that needs no model, in the same unit; None: not known."""


@dataclass(frozen=True)
class Summary:
    """A number that sums up a curve, and a column of leaderboards: what it means, and how it is made."""

    name: str
    definition: str
    """What it is, exactly; T is the trained length."""
    remark: str
    """The same in a few words, which notes on the covered lengths follow."""
    of: Callable[..., SummaryValue | None]
    """Makes the value of a method; None where the metric has none."""
    better: str = "neither"
    """higher; metric: as of the metric; or neither."""
    signed: bool = True
    """Whether it is a difference, shown with its sign."""
    digits: str = ""
    """Format of its values where they are not in the metric's unit."""
    sorting: int = 0
    """Place among the summaries that rows are sorted by; 0: none of them."""

    def direction(self, metric: int) -> int:
        """1 where higher is better, -1 where lower, 0 where neither; `metric`: the same of the curve's metric."""
        return {"higher": 1, "metric": metric}.get(self.better, 0)

    @property
    def label(self) -> str:
        """Head of its column."""
        return self.name.replace("_", " ")


@dataclass(frozen=True, eq=False)
class MethodCurves:
    """The curves of a table of NLL or of a score."""

    table: Table
    outcomes: dict[Place, list[Outcome]]
    levels: dict[Place, Level]
    shared: list[int]
    base: MethodKey | None
    """Method whose level is the reference; None: each method's own."""

    @property
    def trained(self) -> int:
        """The trained length."""
        return self.table.cell.trained_length

    @property
    def scored(self) -> bool:
        """Whether the metric is a score."""
        return self.table.scored

    @cached_property
    def right_or_wrong(self) -> bool:
        """Whether the score of every answer is 0 or 1."""
        return self.scored and all(each.amount in (0.0, 1.0) for group in self.outcomes.values() for each in group)

    @property
    def inside(self) -> list[int]:
        """Shared lengths up to the trained length."""
        return [length for length in self.shared if length <= self.trained]

    def has_value(self, row: MethodKey) -> bool:
        """Whether a method has a value at any length."""
        return any(name == row for name, _ in self.levels)

    def reference_cells(self, row: MethodKey, length: int) -> list[Place]:
        """Cells whose best value is the level at a length."""
        name, end = self.base or row, min(length, self.trained)
        return [(name, each) for each in self.table.lengths if each <= end and (name, each) in self.levels]

    @cached_property
    def answered(self) -> dict[Place, tuple[int, ...]]:
        """Indices of the questions with an amount."""
        return {
            at: tuple([each.index for each in group if each.amount is not None]) for at, group in self.outcomes.items()
        }

    def pair(self, one: Place, other: Place) -> tuple[Level, Level] | None:
        """Levels of two cells over questions with an amount in both; None where they share none.

        Where the documents differ, each level covers all questions of its own cell.
        """
        if self.answered[one] == self.answered[other]:
            return self.levels[one], self.levels[other]
        known = [{each.index: each for each in self.outcomes[at] if each.amount is not None} for at in (one, other)]
        both = sorted(known[0].keys() & known[1].keys())
        alike = all(known[0][index].cluster == known[1][index].cluster for index in both)
        if not alike or len(both) == len(known[0]) == len(known[1]):
            return self.levels[one], self.levels[other]
        found = group_levels({side: [known[side][index] for index in both] for side in (0, 1)}, self.scored)
        return (found[0], found[1]) if len(found) == 2 else None

    @cached_property
    def paired(self) -> dict[Place, list[tuple[Level, Level]]]:
        """Levels of each of a cell's references and of the cell (`pair`); cells without any are left out."""
        found = {at: [self.pair(each, at) for each in self.reference_cells(*at)] for at in self.levels}
        return {at: known for at, each in found.items() if (known := [pair for pair in each if pair])}

    def floor(self, row: MethodKey, length: int) -> float | None:
        """The value that needs no model: chance, or the best of counting n-grams; 0 of a score of unknown chance."""
        known = self.table.entries[row, length].floor
        return 0.0 if known is None and self.scored else known

    def chance(self, length: int) -> float:
        """Score of guessing; 0 where unknown."""
        return max((record.chance or 0.0 for record in self.table.at(length)), default=0.0)

    def summary(
        self,
        row: MethodKey,
        name: str,
        estimate: Estimate | Note,
        notes: Sequence[Note] = (),
        p: float | None = None,
    ) -> SummaryValue:
        """A summary in nats or points; a note in place of the estimate is the reason for no value."""
        unit = "points" if self.scored else "nats per token"
        if isinstance(estimate, Note):
            return SummaryValue(method=row, name=name, value=None, unit=unit, notes=(estimate,))
        factor = 100.0 if self.scored else 1.0
        low, high = (None if end is None else factor * end for end in (estimate.low, estimate.high))
        told = (*notes, *(() if low is not None else (Note(NoteKind.TOO_FEW_CLUSTERS),)))
        kind, value = estimate.kind, factor * estimate.value + 0.0  # no -0.0
        ends: dict[str, Any] = {"value": value, "low": low, "high": high, "interval": kind}
        return SummaryValue(method=row, name=name, unit=unit, notes=told, p=p, **ends)


def shared_lengths(table: Table) -> list[int]:
    """Lengths at which all methods have a value, for averages; methods without any value are ignored."""
    valued = {
        (row, length)
        for (row, length), record in table.entries.items()
        if record.metric == table.metric and record.value is not None
    }
    rows = {row for row, _ in valued}
    return [length for length in table.lengths if rows and all((row, length) in valued for row in rows)]


def curves_of(table: Table, samples: Mapping[str, Sequence[Sample]]) -> MethodCurves:
    """Curves of a table; `samples` are those of each cell id."""
    metric = table.metric or ""
    places = [(row, length) for length in table.lengths for row in table.methods if (row, length) in table.entries]
    valued = [at for at in places if table.entries[at].metric == table.metric and table.entries[at].value is not None]
    # A cell of which every sample failed has no value: its zeros are no answers.
    found = {
        at: outcomes_of_samples(samples.get(table.entries[at].cell, ()) if at in valued else (), metric)
        for at in places
    }
    known = group_levels(found, table.scored)
    inside = any((BASELINE_METHOD, length) in known for length in table.lengths if length <= table.cell.trained_length)
    return MethodCurves(table, found, known, shared_lengths(table), BASELINE_METHOD if inside else None)
