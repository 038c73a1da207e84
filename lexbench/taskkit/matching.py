"""How written answers are judged: strictly, by what they begin with; and officially, by what they contain."""

import re
import string
from collections import Counter
from collections.abc import Sequence

MARKS = r"\"'`*“”‘’„«»()\[\]"
NUMBERED = r"\d{1,3}[.)](?=[ \t])"
LEAD = rf"(?:\s*:)?\s*(?:[-*•–—]|1[.)](?=[ \t]))?[ \t:{MARKS}]*"
"""What may stand before a list's first item: a colon, a bullet or the number 1, marks of quoting."""
BETWEEN = rf"[ \t,;:/&|{MARKS}-]*(?:(?:and|or)\b[ \t{MARKS}]*)?"
"""What may stand between two items of one line; a full stop ends it."""
LINE = rf"\n\s*(?:[-*•–—]|{NUMBERED})?[ \t{MARKS}]*"
"""What a line of a list may begin with."""
TAIL = rf"[ \t,;.{MARKS}]*"
"""What may stand between an item and the end of its line."""
WHOLE = r"({item})(?!\w|-\w|\.\d)"
"""An item that does not go on as a longer word or number, nor behind a hyphen, nor as a decimal."""
OPPOSITES = {"yes": "no", "no": "yes"}
"""Answers that take each other back."""
JOINS = ("and", "or", "&", "/", "|", "-", "–")
"""What joins another answer."""


def leading_items(text: str, item: str) -> list[str]:
    """The list that a text begins with, in lower case: items of one line, or one a line.

    Items stand behind commas and the like, behind "and" and "or", or in lines that hold nothing but one of them, with
    bullets, numbers and quotes or without. So one who lists everything has a longer list, and one who goes on with
    other text has not.

    Args:
        text: what was written.
        item: regular expression of one item; it is matched as a whole word or number.
    """
    whole = WHOLE.format(item=item)
    first, following = (re.compile(before + whole, re.IGNORECASE) for before in (LEAD, BETWEEN))
    alone = re.compile(rf"{TAIL}{LINE}{whole}(?={TAIL}(?:\n|$))", re.IGNORECASE)
    found, match = [], first.match(text)
    while match and match[1]:
        found.append(match[1].lower())
        match = following.match(text, match.end()) or alone.match(text, match.end())
    return found


def unnumbered(text: str) -> str:
    """A list whose items are numbered in one line, "1. amber 2. violet", as a plain one; any other text as it is.

    For items that are no numbers themselves.
    """
    return re.sub(r"[ \t]*\b\d{1,3}[.)][ \t]+", " ", text) if re.match(r"\s*1[.)]", text) else text


def strict(text: str, expected: Sequence[str], item: str) -> float:
    """1 where the text begins with a list of exactly the expected items, in any order; a longer list is wrong."""
    return float(Counter(leading_items(text, item)) == Counter(each.lower() for each in expected))


def strict_phrase(text: str, references: Sequence[str], others: Sequence[str] | None = None) -> float:
    """1 where the first line begins with one of the references and does not take it back or go on listing.

    Compared are whole words, but for case, punctuation and articles. Behind yes or no must come the end or a
    punctuation mark, and nowhere in the line the other of the two; behind any other reference neither a comma or
    semicolon with more, nor another item joined by "and", "or", "&", "/", "|", "-" or "–".

    Args:
        text: what was written.
        references: right answers.
        others: where all that might be listed is known: any of it in the rest of the line is wrong, all else is not.
    """
    words = next(iter(text.strip().splitlines()), "").split()
    return float(any(_answered(words, reference, others) for reference in references))


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


def _answered(words: Sequence[str], reference: str, others: Sequence[str] | None) -> bool:
    wanted = _bare(reference)
    end = next((end for end in range(1, len(words) + 1) if _bare(" ".join(words[:end])) == wanted), None)
    if end is None:
        return False
    last, rest = words[end - 1][-1], words[end:]
    if wanted in OPPOSITES:
        return not (rest and last.isalnum()) and OPPOSITES[wanted] not in map(_bare, rest)
    if others is not None:
        said = _spelled(" ".join(rest))
        return not any(_spelled(other) in said for other in others)
    return not rest or (last not in ",;" and _bare(rest[0]) not in JOINS)


def _spelled(text: str) -> str:
    """The words of a text in lower case, a blank on either side of each."""
    return " ".join(["", *re.findall(r"\w+", text.lower()), ""])


def _bare(text: str) -> str:
    """As SQuAD compares answers; an answer of which nothing is left by that rule, as it is."""
    return normalised(text) or " ".join(text.lower().split())
