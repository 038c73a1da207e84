"""Metrics of the harness that can be scores of samples, and their names here.

acc                    accuracy: our name; choices have a chance level
exact_match,strict     exact_match (strict): filter in parentheses, `none` is omitted
4096, 8192, ...        string_match: RULER names a metric by the length; here the length belongs to the cell
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lexbench.core.text import count_with_noun, plain_text
from lexbench.parts.exchange.lm_eval.results.examples import LoggedExample
from lexbench.parts.exchange.lm_eval.results.setup import MAX_NAME_CHARACTERS, one_line_value
from lexbench.stats.metrics import is_score

MEAN_TOLERANCE = 1e-9
"""Tolerance for means summed in another order."""
OTHER_SCALES_PATTERN = re.compile(r"bleu|chrf\W*|ter|rouge\w*|likelihood|brier|mcc|diff|bypass", re.IGNORECASE)
"""Words in names of metrics that are not on a scale from 0 to 1, whatever values they have."""


@dataclass(frozen=True, eq=False)
class LoggedMetric:
    """Metric of the harness under one of its filters."""

    key: str
    """The harness's key: `exact_match,strict`."""
    label: str
    """Name in tables."""
    members: Sequence[LoggedExample]
    """Examples that have the metric: all, or those of one length."""

    @property
    def name(self) -> str:
        """The name without the filter."""
        return self.key.partition(",")[0]

    @property
    def renamed(self) -> bool:
        """Whether tables use our own name."""
        return self.name == "acc" and self.label.startswith("accuracy")

    def of(self, made_for: int | None) -> bool:
        """Whether examples of a length have the metric."""
        return any(example.made_for == made_for for example in self.members)


def logged_metrics(every: Sequence[LoggedExample], keys: Sequence[str]) -> Iterator[LoggedMetric]:
    """The metrics of any example."""
    lengths = {str(example.made_for): example.made_for for example in every if example.made_for is not None}
    for key in keys:
        name, _, by = key.partition(",")
        if name in lengths:
            members = [example for example in every if example.made_for == lengths[name]]
            yield LoggedMetric(key, _metric_label("string_match", by), members)
        elif not (lengths and name.isdecimal()):  # a length without examples
            renamed = name == "acc" and f"accuracy,{by}" not in keys
            yield LoggedMetric(key, _metric_label("accuracy" if renamed else name, by), every)


def _metric_label(name: str, by: str) -> str:
    return plain_text(name if by == "none" else f"{name} ({by})")[:MAX_NAME_CHARACTERS]


def why_no_score(metric: LoggedMetric, aggregate: Any, higher_is_better: Any) -> str | None:
    """Why a metric cannot be a score of samples; None if it can.

    Args:
        metric: with its examples.
        aggregate: its value in the results file.
        higher_is_better: as in the results file; None if it does not say.
    """
    if "perplexity" in metric.name or metric.name.startswith("bits_per"):
        return "a sum over a text, without its tokens (lexbench run task=sliding has likelihoods per token)"
    words = metric.name.split("_")
    if (words[-1] != "acc" and any(map(OTHER_SCALES_PATTERN.fullmatch, words))) or not is_score(metric.label):
        return "not on a scale from 0 to 1"
    if higher_is_better is False:
        return "lower is better"
    values = [finite_number(example.values.get(metric.key)) for example in metric.members]
    known = [value for value in values if value is not None and 0 <= value <= 1]
    if len(known) < len(values):
        return f"no value in [0, 1] for {len(values) - len(known)} of {count_with_noun(len(values), 'example')}"
    # A mean over examples can be paired; other aggregates (a median, a mean over groups) cannot.
    mean, whole = math.fsum(known) / len(known), finite_number(aggregate)
    if whole is None or abs(mean - whole) > MEAN_TOLERANCE:
        return f"not a mean over examples (the results say {one_line_value(aggregate)}, the mean is {mean:.6g})"
    return None


def finite_number(value: Any) -> float | None:
    """The value as a float (True is 1, False is 0); None if it is not a finite number."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def example_scores(example: LoggedExample, fit: Sequence[LoggedMetric]) -> Mapping[str, float]:
    """Scores of one example by label; it must have all the metrics."""
    return {metric.label: float(example.values[metric.key]) for metric in fit}
