"""How written answers are judged: strictly, by what they begin with; and officially, by what they contain."""

import re
import string
from collections import Counter
from collections.abc import Sequence

SEPARATORS = r"[ \t,;:\"'`*()\[\]-]*(?:and\b[ \t\"'`*]*)?"
"""What may stand between the items of a list; a full stop or a new line ends it."""
WHOLE = r"({item})(?!\w|-\w|\.\d)"
"""An item that does not go on as a longer word or number, nor behind a hyphen, nor as a decimal."""


def leading_items(text: str, item: str) -> list[str]:
    """The list that a text begins with, in lower case.

    Args:
        text: what was written.
        item: regular expression of one item; it is matched as a whole word or number.
    """
    pattern = re.compile(SEPARATORS + WHOLE.format(item=item), re.IGNORECASE)
    place = len(text) - len(text.lstrip())
    found = []
    while (match := pattern.match(text, place)) and match[1]:
        found.append(match[1].lower())
        place = match.end()
    return found


def strict(text: str, expected: Sequence[str], item: str) -> float:
    """1 where the text begins with a list of exactly the expected items, in any order; a longer list is wrong."""
    return float(Counter(leading_items(text, item)) == Counter(each.lower() for each in expected))


def contains_all(text: str, expected: Sequence[str]) -> float:
    """Share of the expected strings that occur anywhere, in any case: RULER's string_match_all."""
    return sum(each.lower() in text.lower() for each in expected) / len(expected)


def contains_any(text: str, expected: Sequence[str]) -> float:
    """Whether any of the expected strings occurs anywhere, in any case: RULER's string_match_part."""
    return float(any(each.lower() in text.lower() for each in expected))


def normalised(text: str) -> str:
    """Lower case, without punctuation and English articles, blanks made one (SQuAD's rule, Rajpurkar et al. 2016)."""
    bare = "".join(character for character in text.lower() if character not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())
