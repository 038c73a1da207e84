"""Metrics: what each number means, and how it follows from stored samples.

`lexbench.stats.metrics` asks here. A task's own are declared when its class is loaded, and those of a task that is not
here when a cell is read that stores their facts.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from lexbench.core.errors import ConfigError
from lexbench.core.metric import Metric
from lexbench.metrics import (
    accuracy,
    attention,
    chosen,
    copied_whole,
    detection,
    divergences,
    forced,
    in_place,
    nll,
    reached,
)

KEY_METRICS = (copied_whole.METRIC, in_place.METRIC, reached.METRIC, chosen.METRIC, forced.METRIC)
"""Scores of tasks whose answer is a key of the text."""
SHOWN_FIRST = (
    *(
        nll.METRIC,
        nll.PERPLEXITY_METRIC,
        nll.BITS_PER_BYTE,
        nll.WORD_PERPLEXITY,
        divergences.KL_DIVERGENCE,
        divergences.NLL_RISE,
    ),
    *(accuracy.METRIC, attention.RESOLUTION_METRIC, attention.RESOLUTION_7_8, attention.RESOLUTION_ALL),
)
"""Metrics that stand before others, in this order."""
SHARED_METRICS = (
    *SHOWN_FIRST,
    *(
        attention.ATTENTION_DISTANCE,
        attention.ATTENTION_ENTROPY,
        attention.FIRST_MASS,
        divergences.SAME_TOP,
        detection.BALANCE_SCORE,
    ),
    *(detection.HIT_RATE, detection.FALSE_ALARM_RATE, detection.ROC_AREA, detection.D_PRIME),
)
"""Metrics that several tasks have."""

_known = {each.name: each for each in (*SHARED_METRICS, *KEY_METRICS[1:])}
_stored = dict[str, Metric]()


def declare_metrics(metrics: Iterable[Metric]) -> None:
    """Make metrics known by their names, whose labels a task may choose; ConfigError where one has other facts."""
    for each in metrics:
        if replace(_known.setdefault(each.name, each), label=each.label) != each:
            raise ConfigError(f"metric {each.name} is declared twice, with other facts: rename one of them")


def declare_stored(metrics: Iterable[Mapping[str, Any]]) -> None:
    """Make metrics known by the facts that a cell stores; those of a task that is here count more."""
    for facts in metrics:
        found = Metric.from_data(facts)
        _stored.setdefault(found.name, found)


def own_metrics(metrics: Iterable[Metric]) -> list[dict[str, Any]]:
    """Facts of the metrics that lexbench does not state itself, for a cell to store."""
    shared = {each.name for each in (*SHARED_METRICS, *KEY_METRICS)}
    return [each.as_data() for each in metrics if each.name not in shared]


def metric_named(name: str | None) -> Metric | None:
    """The declared metric of a name; None: none is declared."""
    return _known.get(name or "") or _stored.get(name or "")
