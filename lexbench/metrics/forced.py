"""Forced: share of the key's tokens that are the likeliest ones, each given the prompt and the right tokens before it.

A token without a character of the key, such as a blank or a quotation mark, is no token of the key; its rank is stored
beside the others. Chance is the share of a key's tokens that another text's key has at the same place.
"""

from collections.abc import Sequence

from lexbench.core.metric import Metric
from lexbench.core.record import Sample
from lexbench.metrics.guess import mismatched_score

TAUGHT_FACT = "taught"
"""Fact of a sample: id of each token of the right answer, and 1 where it holds a character of the key, else 0."""
RANKS_FACT = "taught_ranks"
"""Fact of a sample: how many tokens are likelier than each of them."""


def _key_tokens(sample: Sample) -> list[int]:
    """Ids of the tokens of the key; empty where none was taught."""
    return [token for token, own in sample.facts.get(TAUGHT_FACT) or () if own and RANKS_FACT in sample.facts]


def _of(sample: Sample, cluster: Sequence[Sample]) -> float | None:
    taught, ranks = sample.facts.get(TAUGHT_FACT), sample.facts.get(RANKS_FACT)
    if not taught or not ranks:
        return None
    own = [bool(rank == 0) for (_, of_key), rank in zip(taught, ranks, strict=True) if of_key]
    return sum(own) / len(own)


def _judge(own: Sample, other: Sample) -> float | None:
    wanted, said = _key_tokens(own), _key_tokens(other)
    if not wanted or not said:
        return None
    return sum(one == two for one, two in zip(wanted, said, strict=False)) / len(wanted)


METRIC = Metric(
    "forced",
    "forced (key tokens likeliest when taught)",
    of=_of,
    guess=lambda samples: mismatched_score(samples, _judge),
)
