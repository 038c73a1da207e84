"""Which of the harness's metrics may stand as scores of samples, and what they are called.

acc                    accuracy: the same thing under our word, of choices with its chance level
exact_match,strict     exact_match (strict): the filter in parentheses, `none` left out
4096, 8192, ...        string_match: RULER's tasks name a metric by the length, which is the cell's instead
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lexbench.integrations.lm_eval.results.examples import Example
from lexbench.integrations.lm_eval.results.setup import MOST, said
from lexbench.stats.metrics import is_score
from lexbench.stats.wording import plain, several

ROUNDING = 1e-9
"""By which a mean in another order of summation may differ."""
OTHER_SCALES = re.compile(r"bleu|chrf\W*|ter|rouge\w*|likelihood|brier|mcc|diff|bypass", re.IGNORECASE)
"""Words in names of metrics that are no share of 1, whatever values a run happens to have."""


@dataclass(frozen=True, eq=False)
class Metric:
    """One metric under one filter."""

    key: str
    """As the harness writes it: `exact_match,strict`."""
    label: str
    """As tables show it."""
    members: Sequence[Example]
    """That it is about: all, or those of one length."""

    @property
    def name(self) -> str:
        """Without the filter."""
        return self.key.partition(",")[0]

    @property
    def renamed(self) -> bool:
        """Whether tables show it under our word."""
        return self.name == "acc" and self.label.startswith("accuracy")

    def of(self, asked: int | None) -> bool:
        """Whether it is about the examples of a length."""
        return any(example.asked == asked for example in self.members)


def metrics(every: Sequence[Example], keys: Sequence[str]) -> Iterator[Metric]:
    """The metrics by which any example was measured."""
    lengths = {str(example.asked): example.asked for example in every if example.asked is not None}
    for key in keys:
        name, _, by = key.partition(",")
        if name in lengths:
            members = [example for example in every if example.asked == lengths[name]]
            yield Metric(key, _label("string_match", by), members)
        elif not (lengths and name.isdecimal()):  # a length that nobody was asked at
            renamed = name == "acc" and f"accuracy,{by}" not in keys
            yield Metric(key, _label("accuracy" if renamed else name, by), every)


def _label(name: str, by: str) -> str:
    return plain(name if by == "none" else f"{name} ({by})")[:MOST]


def unfit(metric: Metric, aggregate: Any, higher_is_better: Any) -> str | None:
    """Why a metric cannot be a score of samples; None where it can.

    Args:
        metric: with its examples.
        aggregate: what the results say of it.
        higher_is_better: likewise; None: nothing.
    """
    if "perplexity" in metric.name or metric.name.startswith("bits_per"):
        return "a sum over a text, without its tokens (lexbench run task=sliding has likelihoods per token)"
    words = metric.name.split("_")
    if (words[-1] != "acc" and any(map(OTHER_SCALES.fullmatch, words))) or not is_score(metric.label):
        return "no share of 1"
    if higher_is_better is False:
        return "lower is better"
    values = [number(example.values.get(metric.key)) for example in metric.members]
    known = [value for value in values if value is not None and 0 <= value <= 1]
    if len(known) < len(values):
        return f"no value in [0, 1] for {len(values) - len(known)} of {several(len(values), 'example')}"
    mean, whole = math.fsum(known) / len(known), number(aggregate)
    if whole is None or abs(mean - whole) > ROUNDING:
        return f"no mean over examples (the results say {said(aggregate)}, their mean is {mean:.6g})"
    return None


def number(value: Any) -> float | None:
    """A finite number, right or wrong as 1 or 0; None where it is none."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def scores(example: Example, fit: Sequence[Metric]) -> Mapping[str, float]:
    """Of one example, by label; the metrics must be about it."""
    return {metric.label: float(example.values[metric.key]) for metric in fit}
