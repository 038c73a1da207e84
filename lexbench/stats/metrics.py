"""Metrics by name: unit, better direction, treatment of failed samples. `lexbench.report.wording` labels them.

A metric that is not named here is a score: in [0, 1], higher is better, and a failed sample scores 0. Likelihoods and
measures of attention leave a failed sample out and count it. What `lexbench.metrics` declares says itself what it is.
"""

from lexbench.metrics import metric_named

LIKELIHOOD_METRICS = ("nll", "perplexity", "bits_per_byte", "word_perplexity")
"""Made from the NLL of each token; lower is better."""
DIVERGENCE_METRICS = ("kld", "nll_rise")
"""Differences of a method's next-token distributions from another method's, in nats per token; lower is better."""
RESOLUTION_METRICS = ("resolution", "resolution_7_8", "resolution_all")
MEASURE_METRICS = (*DIVERGENCE_METRICS, *RESOLUTION_METRICS, "attention_distance", "entropy", "first_mass")
"""Measures of attention and of differences, in their own units. Of attention's, only resolutions have a better side:
higher (xPos, arXiv 2212.10554)."""
DETECTION_METRICS = ("hit_rate", "false_alarm_rate", "area", "d_prime")
"""Made from all samples of a cell in which half of the questions have an answer (`lexbench.stats.detection`)."""
HEADLINE_METRICS = ("nll", "perplexity", "accuracy")


def is_score(metric: str | None) -> bool:
    """Whether a metric's values lie in [0, 1], higher being better."""
    if declared := metric_named(metric):
        return declared.is_score
    return metric is not None and metric not in (*LIKELIHOOD_METRICS, *MEASURE_METRICS, "d_prime")


def better_direction(metric: str | None) -> int:
    """1 where higher is better, -1 where lower is, 0 where neither."""
    if declared := metric_named(metric):
        return declared.direction
    if metric in (*LIKELIHOOD_METRICS, *DIVERGENCE_METRICS, "false_alarm_rate"):
        return -1
    return int(is_score(metric) or metric in RESOLUTION_METRICS or metric == "d_prime")


def display_factor(metric: str) -> float:
    """Factor from a metric to its displayed unit: scores are shown in points."""
    return 100.0 if is_score(metric) else 1.0


def display_unit(metric: str) -> str:
    """Unit of displayed values and differences, as data name it."""
    declared = metric_named(metric)
    if declared and not declared.is_score and declared.unit != "points":
        return declared.unit
    return "points" if is_score(metric) else "nats per token" if metric == "nll" else "as measured"


def metric_sort_key(metric: str | None) -> tuple[int, str]:
    """Sorts likelihoods first, then accuracy and resolutions, then the others by name."""
    first = [*LIKELIHOOD_METRICS, *DIVERGENCE_METRICS, "accuracy", *RESOLUTION_METRICS]
    return (first.index(metric) if metric in first else len(first), metric or "")
