"""One sample's result in a file of another program, and the checks of its numbers."""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lexbench.core.errors import ConfigError
from lexbench.stats.metrics import is_token_loss

ALL_SAMPLES = "all samples"
"""Task of samples whose file names none."""
MAX_NEGATIVE_NATS = 1e-3
"""What rounding may leave below 0 in a loss: no probability is above 1."""
MAX_NATS = 1e30
LOWER_IS_BETTER = re.compile(r"(?<![a-z])(?:brier|wer|cer|ter|mae|mse|errors?|loss|perplexity)(?![a-z])", re.IGNORECASE)
"""Words in names of measures whose lower values are better: a failed sample's 0 would be their best."""


@dataclass(frozen=True)
class Line:
    """Result of one sample under one metric.

    Args:
        task: what was asked; a file may hold several.
        metric: nll, or the name of a score in [0, 1].
        id: of the sample, the same in both files.
        cluster: samples of one cluster are not independent.
        amount: nats over all tokens, or the score; None: failed, without a value.
        tokens: of a loss; None: not known.
        question: hashes of what must be the same in both files, such as input and target, by name; those known.
        prompt: hash of the text that the model read, which may differ: examples in front, a chat template; None: not
            known.
    """

    task: str
    metric: str
    id: str
    cluster: str
    amount: float | None
    tokens: int | None = None
    question: tuple[tuple[str, str], ...] = ()
    prompt: str | None = None


def text_of(value: Any) -> str:
    """A value of JSON as a text."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def hashes_of(parts: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """The parts that a file states, each as a name and a hash."""
    return tuple(
        (name, hashlib.sha256(text_of(value).encode("utf-8", "surrogatepass")).hexdigest()[:16])
        for name, value in parts.items()
        if value is not None
    )


def amount_of(value: Any, metric: str, place: str) -> float | None:
    """A score or loss; None where it is null, or a loss is infinite.

    ConfigError for anything else than a number, NaN, a score outside [0, 1], and a loss below 0.
    """
    if value is None:
        return None
    if not isinstance(value, bool | int | float):
        raise ConfigError(f"{place} must be a number, got {str(value)[:60]!r}: write 0 and 1 for wrong and right")
    number = float(value)
    if math.isnan(number):
        raise ConfigError(f"{place} must be a number, got NaN: write null for a sample that failed")
    if not is_token_loss(metric) and not 0 <= number <= 1:
        raise ConfigError(
            f"{place} must be a score in [0, 1], got {number:g}: divide it by its maximum, or name it nll"
        )
    if not is_token_loss(metric) or number == math.inf:
        return number if math.isfinite(number) else None
    if not -MAX_NEGATIVE_NATS <= number <= MAX_NATS:
        raise ConfigError(
            f"{place} must be a loss of 0 to {MAX_NATS:g} nats, got {number:g}: no log-probability is above 0, and a "
            "loss has the other sign"
        )
    return number


def refuse_lower_is_better(metric: str, place: str) -> None:
    """ConfigError for the name of a measure whose lower values are better, where a score is wanted."""
    if LOWER_IS_BETTER.search(metric):
        raise ConfigError(
            f"{place} names {metric} as its score, and lower is better there: give 1 - {metric}, or another column"
        )
