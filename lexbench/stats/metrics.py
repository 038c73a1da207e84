"""Metrics by name: unit, better direction, treatment of failed samples.

A metric that is not named here is a score: in [0, 1], higher is better, and a failed sample scores 0. Likelihoods and
measures of attention leave a failed sample out and count it.
"""

LIKELIHOOD_LABELS = {
    "nll": "NLL (nats per token)",
    "perplexity": "perplexity (per token)",
    "bits_per_byte": "bits per byte",
    "word_perplexity": "perplexity per word",
}
"""Made from the NLL of each token, and their labels; lower is better."""
DIVERGENCE_METRICS = {"kld": "KL divergence (nats per token)", "nll_rise": "rise of the NLL (nats per token)"}
"""Differences of a method's next-token distributions from another method's; lower is better."""
MEASURE_LABELS = {
    **DIVERGENCE_METRICS,
    "resolution": "attention resolution",
    "resolution_7_8": "attention resolution below 7/8 of the length",
    "resolution_all": "attention resolution over all distances",
    "attention_distance": "attention distance (tokens)",
    "entropy": "attention entropy (nats)",
    "first_mass": "share of attention on the first tokens",
}
"""Measures of attention and of differences, in their own units. Of attention's, only resolutions have a better side:
higher (xPos, arXiv 2212.10554)."""
RESOLUTION_METRICS = ("resolution", "resolution_7_8", "resolution_all")
DETECTION_METRICS = {
    "hit_rate": "hit rate (of questions with an answer)",
    "false_alarm_rate": "false-alarm rate (of questions without an answer)",
    "area": "area under the ROC curve of True and False",
    "d_prime": "d' (standard deviations)",
}
"""Made from all samples of a cell in which half of the questions have an answer (`lexbench.stats.detection`)."""
LABELS_OF_SCORES = {"same_top": "share of targets with the same likeliest token"}
"""Labels of scores whose names do not say enough."""
HEADLINE_METRICS = ("nll", "perplexity", "accuracy")


def is_score(metric: str | None) -> bool:
    """Whether a metric's values lie in [0, 1], higher being better."""
    return (
        metric is not None and metric not in LIKELIHOOD_LABELS and metric not in MEASURE_LABELS and metric != "d_prime"
    )


def better_direction(metric: str | None) -> int:
    """1 where higher is better, -1 where lower is, 0 where neither."""
    if metric in LIKELIHOOD_LABELS or metric in DIVERGENCE_METRICS or metric == "false_alarm_rate":
        return -1
    return int(is_score(metric) or metric in RESOLUTION_METRICS or metric == "d_prime")


def direction_phrase(metric: str | None) -> str:
    """` (\u2191 better)`, ` (\u2193 better)`, or nothing where neither side is: said behind a metric's name."""
    return {1: " (\u2191 better)", -1: " (\u2193 better)", 0: ""}[better_direction(metric)]


def metric_label(metric: str | None) -> str:
    """The metric, with its unit."""
    labels = {**LIKELIHOOD_LABELS, **MEASURE_LABELS, **DETECTION_METRICS, **LABELS_OF_SCORES}
    return labels.get(metric, metric) if metric else "nothing scored"


def metric_sort_key(metric: str | None) -> tuple[int, str]:
    """Sorts likelihoods first, then accuracy and resolutions, then the others by name."""
    first = [*LIKELIHOOD_LABELS, *DIVERGENCE_METRICS, "accuracy", *RESOLUTION_METRICS]
    return (first.index(metric) if metric in first else len(first), metric or "")
