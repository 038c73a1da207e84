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

from lexbench.parts.exchange.lm_eval.results.examples import Example
from lexbench.parts.exchange.lm_eval.results.setup import MOST, said
from lexbench.stats.metrics import is_score
from lexbench.stats.wording import plain, several

ROUNDING = 1e-9
"""Tolerance for means summed in another order."""
OTHER_SCALES = re.compile(r"bleu|chrf\W*|ter|rouge\w*|likelihood|brier|mcc|diff|bypass", re.IGNORECASE)
"""Words in names of metrics that are not on a scale from 0 to 1, whatever values they have."""


@dataclass(frozen=True, eq=False)
class Metric:
    """One metric under one filter."""

    key: str
    """The harness's key: `exact_match,strict`."""
    label: str
    """Name in tables."""
    members: Sequence[Example]
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


def metrics(every: Sequence[Example], keys: Sequence[str]) -> Iterator[Metric]:
    """The metrics of any example."""
    lengths = {str(example.made_for): example.made_for for example in every if example.made_for is not None}
    for key in keys:
        name, _, by = key.partition(",")
        if name in lengths:
            members = [example for example in every if example.made_for == lengths[name]]
            yield Metric(key, _label("string_match", by), members)
        elif not (lengths and name.isdecimal()):  # a length without examples
            renamed = name == "acc" and f"accuracy,{by}" not in keys
            yield Metric(key, _label("accuracy" if renamed else name, by), every)


def _label(name: str, by: str) -> str:
    return plain(name if by == "none" else f"{name} ({by})")[:MOST]


def unfit(metric: Metric, aggregate: Any, higher_is_better: Any) -> str | None:
    """Why a metric cannot be a score of samples; None if it can.

    Args:
        metric: with its examples.
        aggregate: its value in the results file.
        higher_is_better: as in the results file; None if it does not say.
    """
    if "perplexity" in metric.name or metric.name.startswith("bits_per"):
        return "a sum over a text, without its tokens (lexbench run task=sliding has likelihoods per token)"
    words = metric.name.split("_")
    if (words[-1] != "acc" and any(map(OTHER_SCALES.fullmatch, words))) or not is_score(metric.label):
        return "not on a scale from 0 to 1"
    if higher_is_better is False:
        return "lower is better"
    values = [number(example.values.get(metric.key)) for example in metric.members]
    known = [value for value in values if value is not None and 0 <= value <= 1]
    if len(known) < len(values):
        return f"no value in [0, 1] for {len(values) - len(known)} of {several(len(values), 'example')}"
    # A mean over examples can be paired; other aggregates (a median, a mean over groups) cannot.
    mean, whole = math.fsum(known) / len(known), number(aggregate)
    if whole is None or abs(mean - whole) > ROUNDING:
        return f"not a mean over examples (the results say {said(aggregate)}, the mean is {mean:.6g})"
    return None


def number(value: Any) -> float | None:
    """The value as a float (True is 1, False is 0); None if it is not a finite number."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def scores(example: Example, fit: Sequence[Metric]) -> Mapping[str, float]:
    """Scores of one example by label; it must have all the metrics."""
    return {metric.label: float(example.values[metric.key]) for metric in fit}
