"""The score of a guess that knows nothing of the text: as samples state it, or by the keys of other texts."""

import math
from collections.abc import Callable, Sequence

from lexbench.core.record import Sample

MAX_PARTNERS = 31
"""Other samples by whose key an answer is judged."""


def mismatched_score(samples: Sequence[Sample], score: Callable[[Sample, Sample], float | None]) -> float | None:
    """Mean score of samples, each judged by the keys of the next ones of other texts; None without such a pair.

    Args:
        samples: of a cell; failed ones are left out.
        score: of an answer, the first sample's, by the key of another sample; None: they do not tell.
    """
    known = [each for each in samples if each.failed is None]
    found = list[float]()
    for shift in range(1, min(MAX_PARTNERS, len(known) - 1) + 1):
        for place, own in enumerate(known):
            other = known[(place + shift) % len(known)]
            if own.cluster != other.cluster and (value := score(own, other)) is not None:
                found.append(value)
    return sum(found) / len(found) if found else None


def chance_of_samples(samples: Sequence[Sample]) -> float | None:
    """Mean of the chances that samples state; None where none does."""
    chances = [sample.chance for sample in samples if sample.chance is not None]
    return math.fsum(chances) / len(chances) if chances else None
