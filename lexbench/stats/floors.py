"""Floors and ceilings: where a value says nothing of the model, and a difference nothing of two methods.

    floor of a score        its chance; 0 where that is not known
    floor of a likelihood   the best of uniform, unigram and bigram on the same targets (lexbench.taskkit.floors)
    ceiling of a score      1

A value is at its floor where its 95 % interval reaches the floor, or lies beyond it; without an interval, where the
value itself does. The same of the ceiling. Nothing at its floor is best, and a difference between two values at their
floor is not significant, whatever its p: both are what needs no model.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from lexbench.core.method_key import MethodKey
from lexbench.core.record import Record, Sample
from lexbench.metrics.guess import chance_of_samples
from lexbench.stats import metrics
from lexbench.stats.intervals import cluster_bootstrap, mean_interval
from lexbench.stats.notes import Note, NoteKind
from lexbench.stats.pairs import Outcome

NGRAM_FLOOR_NAMES = ("uniform", "unigram", "bigram")


class Reach(Enum):
    """Ways of values to reach a floor or a ceiling."""

    VALUES = 0
    INTERVALS = 1
    """Intervals contain it, and a value does not."""
    BEYOND = 2
    """Losses are worse than their floor."""


@dataclass(frozen=True, kw_only=True)
class OutcomesStanding:
    """The standing of outcomes that have no Record, as those of a baseline file."""

    metric: str
    value: float | None
    low: float | None
    high: float | None
    floor: float | None
    floor_of: str | None


Standing = Record | OutcomesStanding
"""A value with its interval and its floor."""


def standing_of_outcomes(found: Sequence[Outcome], metric: str, floors: Mapping[str, float]) -> OutcomesStanding:
    """Value and interval of outcomes as in their record; `floors` are those of `floors_of_samples`."""
    used = [each for each in found if each.amount is not None]
    amounts, units = [each.amount or 0.0 for each in used], [each.units for each in used]
    clusters = [each.cluster for each in used]
    value = math.fsum(amounts) / math.fsum(units) if sum(units) > 0 else None
    interval = None
    if value is not None:
        scored = metrics.is_score(metric)
        interval = mean_interval(amounts, clusters) if scored else cluster_bootstrap(amounts, units, clusters)
    # Of likelihoods the best floor is the lowest; a score has chance alone.
    name = min(floors, key=floors.__getitem__) if floors else None
    ends = (interval.low, interval.high) if interval else (None, None)
    floor = floors[name] if name else None
    return OutcomesStanding(metric=metric, value=value, low=ends[0], high=ends[1], floor=floor, floor_of=name)


def floors_of_samples(samples: Sequence[Sample], metric: str) -> dict[str, float]:
    """Floors of a cell by name: of `nll` in nats per target, weighted by targets; of an accuracy its chance; of a
    declared metric its guess.

    So, too, of a score that a cell has alone. Only floors that every sample with a value has.
    """
    # A benchmark's only score has a name of its own, such as accuracy_official; beside others, chance is accuracy's.
    alone = {name for sample in samples for name in sample.scores} == {metric}
    if guess := chance_of_samples if alone else metrics.facts_of(metric).guess:
        guessed = guess(samples)
        return {} if guessed is None else {"chance": guessed}
    used = [sample for sample in samples if sample.nll is not None and not sample.failed]
    if not metrics.is_token_loss(metric) or not used:
        return {}
    counts = [0 if sample.nll is None else len(sample.nll) for sample in used]
    return {
        name: math.fsum(count * sample.floors[name] for sample, count in zip(used, counts, strict=True)) / sum(counts)
        for name in NGRAM_FLOOR_NAMES
        if all(name in sample.floors for sample in used)
    }


def _floor(each: Standing) -> float | None:
    # A rate of false alarms has none: silence makes it 0.
    known = each.floor is not None or not metrics.is_score(each.metric) or metrics.better_direction(each.metric) < 0
    return each.floor if known else 0.0


def at_floor(each: Standing) -> bool:
    """Whether a value is at its floor, or worse; False where the floor is not known, or there is no value."""
    floor, side = _floor(each), metrics.better_direction(each.metric)
    if floor is None or each.value is None or not side:
        return False
    end = each.low if side > 0 else each.high
    return side * (each.value if end is None else end) <= side * floor


def at_ceiling(each: Standing) -> bool:
    """Whether a score's interval contains 1."""
    if not metrics.is_score(each.metric) or each.value is None:
        return False
    return (each.value if each.high is None else each.high) >= 1


def shared_limit(found: Iterable[Standing]) -> Note | None:
    """Floor or ceiling that all values are at, so that none can be told from another; None where one can.

    Standings without a value do not count; a value alone has no other.
    """
    valued = [each for each in found if each.value is not None]
    if len(valued) > 1 and all(map(at_floor, valued)):
        side = metrics.better_direction(valued[0].metric)
        above = [side * ((each.value or 0.0) - (_floor(each) or 0.0)) for each in valued]
        # A score below chance is a guess, too; a loss above that of counting is no guess, but worse.
        worse = side < 0 and all(each < 0 for each in above)
        reach = Reach.BEYOND if worse else Reach.INTERVALS if any(each > 0 for each in above) else Reach.VALUES
        return Note(NoteKind.FLOOR, (reach, valued[-1].floor, valued[-1].floor_of))
    if len(valued) > 1 and all(map(at_ceiling, valued)):
        below = any((each.value or 0.0) < 1 for each in valued)
        return Note(NoteKind.CEILING, (Reach.INTERVALS if below else Reach.VALUES,))
    return None


def language_not_learned(records: Sequence[Record]) -> Note | None:
    """Note that the model has not learned a text's language, or that nothing shows it; None where it has.

    Args:
        records: of NLL, of one method, preferably the unmodified model; the longest within the trained length counts.

    The NLL there, or the end of its interval, reaches what a uniform guess or a count of tokens has.
    """
    inside = [each for each in records if each.length <= each.trained_length and each.value is not None]
    if not inside or not metrics.is_token_loss(inside[-1].metric):
        return None
    each = inside[-1]
    levels = {name: level for name in NGRAM_FLOOR_NAMES if (level := getattr(each, name)) is not None}
    return _unspoken(each.model, each.method, each.length, each, levels, each.clusters)


def language_not_learned_by_outcomes(
    model: str, method: MethodKey, length: int, found: Sequence[Outcome], levels: Mapping[str, float]
) -> Note | None:
    """The note `language_not_learned`, of outcomes without a Record.

    Args:
        model: name of the model.
        method: preferably the unmodified model.
        length: of the texts, within the trained length.
        found: outcomes of NLL.
        levels: floors of NLL by name (`floors_of_samples`).
    """
    standing = standing_of_outcomes(found, "nll", levels)
    return _unspoken(model, method, length, standing, levels, len({each.cluster for each in found}))


def _unspoken(
    model: str, method: MethodKey, length: int, standing: Standing, levels: Mapping[str, float], clusters: int
) -> Note | None:
    known = {name: levels[name] for name in NGRAM_FLOOR_NAMES[:2] if name in levels}
    if not known or standing.value is None:
        return None
    name = min(known, key=known.__getitem__)
    about = model, method, length, standing.value, known[name], name
    if standing.value >= known[name]:
        return Note(NoteKind.UNSPOKEN, about)
    if standing.low is None or standing.high is None or standing.high < known[name]:
        return None
    return Note(NoteKind.PERHAPS_UNSPOKEN, (*about, standing.low, standing.high, clusters))
