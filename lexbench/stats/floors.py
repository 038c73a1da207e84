"""Floors and ceilings: where a value says nothing of the model, and a difference nothing of two methods.

    floor of a score        its chance; 0 where that is not known
    floor of a likelihood   the best of uniform, unigram and bigram on the same targets (lexbench.taskkit.floors)
    ceiling of a score      1

A value is at its floor where its 95 % interval reaches the floor, or lies beyond it; without an interval, where the
value itself does. The same of the ceiling. Nothing at its floor is best, and a difference between two values at their
floor is not significant, whatever its p: both are what needs no model.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lexbench.core.method_key import MethodKey
from lexbench.core.record import Record, Sample
from lexbench.stats import metrics
from lexbench.stats.intervals import cluster_bootstrap, mean_interval
from lexbench.stats.pairs import Limit, LimitKind, Outcome
from lexbench.stats.wording import count_with_noun

NGRAM_FLOOR_NAMES = ("uniform", "unigram", "bigram")
CEILING_WORDS = "the ceiling (1.00)"
BOTH_AT_LIMIT_WORDS = "both at", "the intervals of both reach", "both are worse than"
ALL_AT_LIMIT_WORDS = "every {} is at", "the intervals of all {}s reach", "every {} is worse than"
"""Words for values at a limit, for values whose intervals reach it, and for losses beyond it."""


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
    """Floors of a cell by name: of `nll` in nats per target, weighted by targets; of an accuracy its chance.

    So, too, of a score that a cell has alone. Only floors that every sample with a value has.
    """
    # A benchmark's only score has a name of its own, such as accuracy_official; beside others, chance is accuracy's.
    # Of questions half of which have no answer it is 0.5 for whoever knows nothing (lexbench.stats.detection).
    if metric in ("accuracy", "balance", "area") or {name for sample in samples for name in sample.scores} == {metric}:
        chances = [sample.chance for sample in samples if sample.chance is not None]
        return {"chance": math.fsum(chances) / len(chances)} if chances else {}
    if metric == "d_prime":
        return {"chance": 0.0}
    used = [sample for sample in samples if sample.nll is not None and not sample.failed]
    if metric != "nll" or not used:
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


def floor_text(each: Standing) -> str:
    """`chance (0.25)`, `the bigram floor (5.424)`, `0`."""
    if each.floor is None or each.floor_of is None:
        return "0"
    if each.floor_of == "chance":
        return f"chance ({level_text(each.floor)})"
    return f"the {each.floor_of} floor ({each.floor:.3f})"


def level_text(chance: float) -> str:
    """A chance with two digits."""
    return f"{chance:.2f}" if chance >= 0.01 or chance == 0 else "below 0.01"


def both_at_floor(one: Standing, other: Standing) -> Limit | None:
    """`both at chance (0.25)`, or that the intervals of both reach it; None where one of two is above its floor."""
    if not (at_floor(one) and at_floor(other)):
        return None
    return Limit(LimitKind.FLOOR, _why_all_at_floor((one, other), BOTH_AT_LIMIT_WORDS))


def both_at_ceiling(one: Standing, other: Standing) -> Limit | None:
    """`both at the ceiling (1.00)`, or that their intervals reach it; None where one of two values is below it."""
    if not (at_ceiling(one) and at_ceiling(other)):
        return None
    return Limit(LimitKind.CEILING, _why_all_at_ceiling((one, other), BOTH_AT_LIMIT_WORDS))


def why_all_alike(records: Sequence[Record], subject: str = "row") -> str | None:
    """Why no row of a column can be told from another: `every row is at chance (0.25)`; None where one can.

    `subject` names a row in these words.
    """
    valued = [record for record in records if record.value is not None]
    if len(valued) < 2:
        return None
    words = (
        ALL_AT_LIMIT_WORDS[0].format(subject),
        ALL_AT_LIMIT_WORDS[1].format(subject),
        ALL_AT_LIMIT_WORDS[2].format(subject),
    )
    if all(map(at_floor, valued)):
        return _why_all_at_floor(valued, words)
    return _why_all_at_ceiling(valued, words) if all(map(at_ceiling, valued)) else None


def _why_all_at_floor(found: Sequence[Standing], words: tuple[str, str, str]) -> str:
    side = metrics.better_direction(found[0].metric)
    above = [side * ((each.value or 0.0) - (_floor(each) or 0.0)) for each in found]
    # A score below chance is a guess, too; a loss above that of counting is no guess, but worse.
    worse = side < 0 and all(each < 0 for each in above)
    return f"{words[2 if worse else any(each > 0 for each in above)]} {floor_text(found[-1])}"


def _why_all_at_ceiling(found: Sequence[Standing], words: tuple[str, str, str]) -> str:
    return f"{words[any((each.value or 0.0) < 1 for each in found)]} {CEILING_WORDS}"


def language_not_learned(records: Sequence[Record]) -> str | None:
    """Line which says that the model has not learned a text's language, or that nothing shows it; None where it has.

    Args:
        records: of NLL, of one method, preferably the unmodified model; the longest within the trained length counts.

    The NLL there, or the end of its interval, reaches what a uniform guess or a count of tokens has.
    """
    inside = [each for each in records if each.length <= each.trained_length and each.value is not None]
    if not inside or inside[-1].metric != "nll":
        return None
    each = inside[-1]
    known = {name: level for name in NGRAM_FLOOR_NAMES if (level := getattr(each, name)) is not None}
    said = _language_sentences(each.model, each.method, each.length, each, known, each.clusters)
    if said is None:
        return None
    return " ".join(f"{part}." for part in said)


def language_not_learned_by_outcomes(
    model: str, method: MethodKey, length: int, found: Sequence[Outcome], levels: Mapping[str, float]
) -> str | None:
    """First sentence of `language_not_learned`, of outcomes without a Record.

    Args:
        model: name of the model.
        method: preferably the unmodified model.
        length: of the texts, within the trained length.
        found: outcomes of NLL.
        levels: floors of NLL by name (`floors_of_samples`).
    """
    said = _language_sentences(
        model, method, length, standing_of_outcomes(found, "nll", levels), levels, len({each.cluster for each in found})
    )
    return said and said[0]


def _language_sentences(
    model: str, method: MethodKey, length: int, standing: Standing, levels: Mapping[str, float], clusters: int
) -> tuple[str, str] | None:
    """Sentences that a model has not, or may not have, learned a text's language, and the consequence; else None."""
    known = {name: levels[name] for name in NGRAM_FLOOR_NAMES[:2] if name in levels}
    if not known or standing.value is None:
        return None
    name = min(known, key=known.__getitem__)
    value, floor, ends = standing.value, known[name], ""
    says, rest = "does not speak this text", "No difference between methods tells anything here"
    if value < floor:
        if standing.low is None or standing.high is None or standing.high < floor:
            return None
        ends = f" [{standing.low:.3f}, {standing.high:.3f}]"
        says = f"may not speak this text, {count_with_noun(clusters, 'document')} cannot tell"
        rest = "No gain is claimed"
    rival = "a uniform guess" if name == "uniform" else "counting tokens"
    return (
        f"{model} {says}: {method} has {value:.3f}{ends} nats per token at {length} tokens, within its trained length, "
        f"where {rival} has {floor:.3f}",
        rest,
    )
