"""Tokens in place: how much of the key an answer has written, each character at its own place.

The answer's items are its numbers, where the key is a number, or else its words. The first item is compared with the
key from its first character on, character by character; of several keys the second item with the second key, and so on.
Items that equal a key are taken out first, so a key that is copied whole is all in place in any order. The share is
over the characters of all keys. So of a key of five one-digit tokens it is the share of tokens in place.
"""

import re
from collections.abc import Sequence

from lexbench.core.metric import Metric
from lexbench.core.record import Sample, expected_texts
from lexbench.metrics.guess import mismatched_score

NUMBER_PATTERN = r"\d+"
WORD_PATTERN = r"[^\s,;:.!?\"'`*“”‘’„«»()\[\]{}]+"
WORDS_BETWEEN_ITEMS = {"and", "or", "var"}


def share_in_place(text: str, keys: Sequence[str]) -> float:
    """Share of the characters of the keys that stand at their place in the items of a text, in any case."""
    wanted = [key.lower() for key in keys]
    pattern = NUMBER_PATTERN if all(key.isdecimal() for key in wanted) else WORD_PATTERN
    items = [each for each in re.findall(pattern, text.lower()) if each not in WORDS_BETWEEN_ITEMS]
    right = 0
    for key in list(wanted):
        if key in items[: len(keys)]:
            items.remove(key)
            wanted.remove(key)
            right += len(key)
    for key, item in zip(wanted, items, strict=False):
        right += sum(one == other for one, other in zip(key, item, strict=False))
    return right / sum(map(len, keys))


def judge(answer: Sample, key: Sample) -> float | None:
    """The score of a sample's answer by the key of a sample; None where it has none, or its text may lack the key."""
    keys = expected_texts(key.facts.get("expected"))
    if answer.output is None or not keys or "present" in key.facts:
        return None
    return share_in_place(answer.output, keys)


METRIC = Metric(
    "in_place",
    "tokens in place",
    of=lambda sample, _: judge(sample, sample),
    guess=lambda samples: mismatched_score(samples, judge),
)
