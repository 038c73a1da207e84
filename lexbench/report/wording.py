"""Wording of reports: labels, and numbers in the unit of their metric."""

import math

from lexbench.core.record import Record
from lexbench.metrics import metric_named
from lexbench.metrics.of_task import metric_of_task
from lexbench.stats import metrics
from lexbench.stats.differences import Differences
from lexbench.stats.metrics import display_factor, display_unit

DIRECTION_PHRASES = {1: " (\u2191 better)", -1: " (\u2193 better)", 0: ""}


def metric_label(metric: str | None, task: str | None = None) -> str:
    """The metric, with its unit, as its task states it (by the task's name), or as all tasks call it."""
    if declared := (task and metric_of_task(metric, task)) or metric_named(metric):
        return declared.words
    return metric or "nothing scored"


def direction_phrase(metric: str | None) -> str:
    """` (\u2191 better)`, ` (\u2193 better)`, or nothing where neither side is: said behind a metric's name."""
    return DIRECTION_PHRASES[metrics.better_direction(metric)]


def format_ratio(ratio: float) -> str:
    """`0.5x`, `3910x`: a ratio with three digits, without an exponent from 1000 on."""
    return f"{float(f'{ratio:.3g}'):.15g}x"


def short_unit(metric: str) -> str:
    """The unit behind a number."""
    return {"points": " points", "nats per token": " nats"}.get(display_unit(metric), "")


def format_metric_value(metric: str, number: float) -> str:
    """A value of the metric, in its unit."""
    return f"{display_factor(metric) * number:{metric_format(metric)}}"


def format_metric_change(metric: str, number: float) -> str:
    """A difference of the metric, in its unit, with its sign."""
    return format_signed(display_factor(metric) * number, metric_format(metric))


def format_signed(value: float, places: str = ".3f") -> str:
    """A number with its sign; without one where it rounds to zero."""
    text = f"{value:+{places}}"
    return text if float(text) else text[1:]


def format_p_value(p: float) -> str:
    """A p-value; a tiny one as `<0.0001`."""
    return f"{p:.2g}" if p >= 1e-4 else "<0.0001"


def metric_format(metric: str) -> str:
    """Decimals of a value of the metric, in its unit."""
    return _stated_format(metric) or (".1f" if metrics.is_score(metric) else ".4g")


def _stated_format(metric: str | None) -> str:
    digits = metrics.facts_of(metric).digits
    return "" if digits is None else f".{digits}f"


def format_share(count: int, of: int) -> str:
    """A share in whole percents; 0% and 100% only where exact."""
    return f"{0 if count == 0 else 100 if count == of else min(99, max(1, round(100 * count / of)))}%"


def format_record_value(record: Record, value: float) -> str:
    """A value with the digits of its metric."""
    facts = metrics.facts_of(record.metric)
    if facts.logarithmic:
        return f"{value:.2f}" if value < 100 else f"{value:.0f}" if value < 1e5 else f"{value:.1e}"
    if facts.measure:
        return f"{value:.4g}"
    return f"{value:.2f}" if metrics.is_score(record.metric) and record.n < 100 else f"{value:.3f}"


def found_words(size: float | None, metric: str, noun: str = "one") -> str:
    """`one of 12 points would have been found`: the smallest difference that comparisons find, in the metric's unit.

    Of a loss it holds where all texts share it: at n = 32 one that differs between texts by more than about one and a
    half times its mean is seldom found, however large it is.
    """
    if size is None:
        return "so few questions find none of any size"
    shared = "" if metrics.is_score(metric) else " shared by all texts"
    return f"{noun} of {display_factor(metric) * size:.2g}{short_unit(metric)}{shared} would have been found"


def difference_format(found: Differences) -> str:
    """Decimals of a difference; for a measure, enough to show four digits of its largest value."""
    if stated := _stated_format(found.table.metric) or (found.table.scored and ".1f"):
        return stated
    level = max((abs(record.value) for record in found.table.entries.values() if record.value), default=1.0)
    return f".{max(0, 3 - math.floor(math.log10(level)))}f"


def level_text(chance: float) -> str:
    """A chance with two digits."""
    return f"{chance:.2f}" if chance >= 0.01 or chance == 0 else "below 0.01"


def floor_text(floor: float | None, floor_of: str | None) -> str:
    """`chance (0.25)`, `the bigram floor (5.424)`, `0` where none is known."""
    if floor is None or floor_of is None:
        return "0"
    return f"chance ({level_text(floor)})" if floor_of == "chance" else f"the {floor_of} floor ({floor:.3f})"
