"""Questions to a metric by its name: unit, better side, treatment of failed samples (`lexbench.metrics`).

A metric that nobody declares is a score: in [0, 1], higher is better, and a failed sample scores 0.
"""

from lexbench.core.metric import Metric
from lexbench.metrics import SHOWN_FIRST, metric_named

RANK_OF_METRIC = {each.name: rank for rank, each in enumerate(SHOWN_FIRST)}
UNDECLARED_METRIC = Metric("undeclared")


def facts_of(metric: str | None) -> Metric:
    """A metric by its name; of one that nobody declares the facts of a score."""
    return metric_named(metric) or UNDECLARED_METRIC


def is_score(metric: str | None) -> bool:
    """Whether a metric's values lie in [0, 1], shown in points; of samples higher is better."""
    return metric is not None and facts_of(metric).is_score


def is_token_loss(metric: str | None) -> bool:
    """Whether it is the mean loss per target token, of which samples store each."""
    return facts_of(metric).is_token_loss


def is_likelihood(metric: str | None) -> bool:
    """Whether it is made from the losses of target tokens: never below 0, lower is better."""
    return bool(facts_of(metric).per)


def follows_another(metric: str | None) -> bool:
    """Whether it is another form of a metric by which it is compared."""
    return bool(facts_of(metric).follows)


def is_measure(metric: str | None) -> bool:
    """Whether it measures a text or an attention, in its own unit."""
    return facts_of(metric).measure


def is_headline(metric: str | None) -> bool:
    """Whether reports show it before the other metrics of its task."""
    return facts_of(metric).headline


def is_headline_score(metric: str | None) -> bool:
    """Whether it is the score that reports show first."""
    return is_headline(metric) and is_score(metric)


def failed_value(metric: str | None) -> float | None:
    """Value of a sample that failed; None: it is left out and counted."""
    return facts_of(metric).failed_value if metric is not None else None


def better_direction(metric: str | None) -> int:
    """1 where higher is better, -1 where lower is, 0 where neither."""
    return 0 if metric is None else facts_of(metric).direction


def display_factor(metric: str) -> float:
    """Factor from a metric to its displayed unit: scores are shown in points."""
    return 100.0 if is_score(metric) else 1.0


def display_unit(metric: str) -> str:
    """Unit of displayed values and differences, as data name it."""
    unit = facts_of(metric).unit
    return "points" if is_score(metric) else "as measured" if unit == "points" else unit


def metric_sort_key(metric: str | None) -> tuple[int, str]:
    """Sorts likelihoods first, then accuracy and resolutions, then the others by name."""
    return (RANK_OF_METRIC.get(metric or "", len(RANK_OF_METRIC)), metric or "")
