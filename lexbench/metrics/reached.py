"""Reached: whether an answer holds any key of its text, the right one or another, anywhere."""

from collections.abc import Sequence
from dataclasses import replace

from lexbench.core.metric import Metric
from lexbench.core.record import Sample, expected_texts
from lexbench.metrics.guess import mismatched_score

KEYS_FACT = "keys_in_text"
"""Fact of a sample: all keys that its text holds."""


def judge(answer: Sample, keys: Sequence[str]) -> float | None:
    """1 where an answer holds one of the keys, in any case; None where it was not written, or no key is known."""
    if answer.output is None or not keys or "present" in answer.facts:
        return None
    return float(any(key.lower() in answer.output.lower() for key in keys))


def _of(sample: Sample, cluster: Sequence[Sample]) -> float | None:
    return judge(sample, sample.facts.get(KEYS_FACT) or ())


def _of_asked(sample: Sample, cluster: Sequence[Sample]) -> float | None:
    asked = [key for each in cluster for key in expected_texts(each.facts.get("expected"))]
    return judge(sample, sample.facts.get(KEYS_FACT) or asked)


def _keys_of(sample: Sample) -> Sequence[str]:
    return sample.facts.get(KEYS_FACT) or expected_texts(sample.facts.get("expected"))


def _guess(samples: Sequence[Sample]) -> float | None:
    return mismatched_score(samples, lambda own, other: judge(own, _keys_of(other)))


METRIC = Metric("reached", "reached (any key of the text)", of=_of, guess=_guess)
WHERE_ALL_ARE_ASKED = replace(METRIC, of=_of_asked)
"""The same for texts each of whose keys is asked for: the questions of a text tell its keys."""
