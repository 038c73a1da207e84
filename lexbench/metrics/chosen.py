"""Chosen: whether the right key is the likeliest of the options behind the prompt. Nothing is written, no form needed.

Ties share the point. Chance is one of the options.
"""

from collections.abc import Sequence

import numpy as np

from lexbench.core.metric import Metric
from lexbench.core.record import Sample

NLL_STATISTIC = "option_nll"
"""Statistic of a sample: [options] nats of each."""
EXPECTED_FACT = "expected_option"
"""Fact of a sample: the place of the right option."""


def options_of(sample: Sample) -> np.ndarray | None:
    """[options] nats of each option beside a written answer; None where none were measured."""
    return sample.statistics.get(NLL_STATISTIC) if sample.output is not None and "present" not in sample.facts else None


def _of(sample: Sample, cluster: Sequence[Sample]) -> float | None:
    nll, right = options_of(sample), sample.facts.get(EXPECTED_FACT)
    if nll is None or not isinstance(right, int):
        return None
    best = np.flatnonzero(nll == nll.min())  # none where one is NaN
    return 1 / len(best) if right in best else 0.0


def _guess(samples: Sequence[Sample]) -> float | None:
    counts = [len(nll) for each in samples if (nll := options_of(each)) is not None]
    return sum(1 / count for count in counts) / len(counts) if counts else None


METRIC = Metric("chosen", "chosen (likeliest of the options)", of=_of, guess=_guess)
