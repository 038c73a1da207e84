"""How written answers are judged: strictly, by what they begin with; and officially, by what they contain."""

import re
import string
from collections import Counter
from collections.abc import Sequence

SEPARATORS = r"[ \t,;:\"'`*()\[\]-]*(?:and\b[ \t\"'`*]*)?"
"""What may stand between the items of a list; a full stop or a new line ends it."""
WHOLE = r"({item})(?!\w|-\w|\.\d)"
"""An item that does not go on as a longer word or number, nor behind a hyphen, nor as a decimal."""
OPPOSITES = {"yes": "no", "no": "yes"}
"""Answers that take each other back."""


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


def strict_phrase(text: str, references: Sequence[str]) -> float:
    """1 where the first line begins with one of the references and does not take it back or go on listing.

    Compared are whole words, but for case, punctuation and articles. Behind yes or no must come the end or a
    punctuation mark, and nowhere in the line the other of the two; behind any other reference neither a comma or
    semicolon with more, nor another item joined by "and", "or", "&" or "/".
    """
    line = next(iter(text.strip().splitlines()), "")
    return float(any(_begins(line.split(), reference) for reference in references))


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


def _begins(words: Sequence[str], reference: str) -> bool:
    wanted = _bare(reference)
    end = next((end for end in range(1, len(words) + 1) if _bare(" ".join(words[:end])) == wanted), None)
    if end is None:
        return False
    last, rest = words[end - 1][-1], words[end:]
    if wanted in OPPOSITES:
        return not (rest and last.isalnum()) and OPPOSITES[wanted] not in map(_bare, rest)
    return not rest or (last not in ",;" and _bare(rest[0]) not in ("and", "or", "&", "/"))


def _bare(text: str) -> str:
    """As SQuAD compares answers; an answer of which nothing is left by that rule, as it is."""
    return normalised(text) or " ".join(text.lower().split())
