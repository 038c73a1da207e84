"""Match written answers: strictly, by how they begin, and as the official tasks do, by what they contain."""

import re
import string
from collections import Counter
from collections.abc import Sequence

MARKS = r"\"'`*“”‘’„«»()\[\]"
NUMBERED = r"\d{1,3}[.)](?=[ \t])"
BULLET = r"[*•—]|[-–](?!\d)"
"""A dash that touches a number is its sign."""
LEAD = rf"(?:\s*:)?\s*+(?:{BULLET}|1[.)](?=[ \t]))?[ \t:{MARKS}]*"
"""Allowed before the first item of a list: a colon, a bullet or the number 1, quotation marks."""
BETWEEN = rf"[ \t\xa0,;:/&|、，；{MARKS}-]*(?:(?:and|or)\b[ \t{MARKS}]*)?"
"""Allowed between two items of one line; a full stop ends the list."""
LINE = rf"\n\s*+(?:{BULLET}|{NUMBERED})?[ \t{MARKS}]*"
"""Allowed at the start of a line of a list."""
TAIL = rf"[ \t,;.{MARKS}]*"
"""Allowed between an item and the end of its line."""
WHOLE = r"({item})(?!\w|-\w|\.\d)"
"""An item that does not continue as a longer word or number, with a hyphen or as a decimal."""
OPPOSITES = {"yes": "no", "no": "yes"}
"""Answers that contradict each other."""
JOINS = ("and", "or", "&", "/", "|", "-", "–")
"""Joins another answer."""


def one_of(words: Sequence[str]) -> str:
    """Regular expression of an item that is one of these words."""
    return "|".join(map(re.escape, words))


def leading_items(text: str, item: str) -> list[str]:
    """The list at the start of a text, in lower case: items in one line, or one item per line.

    Commas and the like, "and" and "or" separate items; or each line has just one item, with or without bullet, number
    and quotes. So an answer that lists everything has a longer list, and an answer that continues with other text does
    not.

    Args:
        text: the written answer.
        item: regular expression of one item; it matches whole words or numbers only.
    """
    whole = WHOLE.format(item=item)
    first, following = (re.compile(before + whole, re.IGNORECASE) for before in (LEAD, BETWEEN))
    alone = re.compile(rf"{TAIL}{LINE}{whole}(?={TAIL}(?:\n|$))", re.IGNORECASE)
    found, match = [], first.match(text)
    while match and match[1]:
        found.append(match[1].lower())
        # In the same line first: an item alone on the next line belongs to the list only if the line has nothing else.
        match = following.match(text, match.end()) or alone.match(text, match.end())
    return found


def unnumbered(text: str) -> str:
    """Remove the numbers from a list in one line, "1. amber 2. violet"; any other text is unchanged.

    Only for items that are not numbers.
    """
    return re.sub(r"[ \t]*\b\d{1,3}[.)][ \t]+", " ", text) if re.match(r"\s*1[.)]", text) else text


def strict(text: str, expected: Sequence[str], item: str) -> float:
    """1 if the text begins with a list of exactly the expected items, in any order; a longer list is wrong."""
    # As counts, not as sets: an item named twice makes the list longer, and wrong.
    return float(Counter(leading_items(text, item)) == Counter(each.lower() for each in expected))


def strict_phrase(text: str, references: Sequence[str], others: Sequence[str] | None = None) -> float:
    """1 if the first line begins with a reference and neither contradicts it nor lists further answers.

    Whole words are compared, apart from case, punctuation and articles. Yes or no must be followed by the end or a
    punctuation mark, and the line must not contain the other of the two. Any other reference must not be followed by a
    comma or semicolon with more text, nor by an item joined with "and", "or", "&", "/", "|", "-" or "–".

    Args:
        text: the written answer.
        references: right answers.
        others: all possible wrong answers, if known: any of them in the rest of the line is wrong, other text is not.
    """
    # The first line alone: what follows may explain the answer.
    words = next(iter(text.strip().splitlines()), "").split()
    return float(any(_answered(words, reference, others) for reference in references))


def contains_all(text: str, expected: Sequence[str]) -> float:
    """Share of the expected strings that occur anywhere, in any case: RULER's string_match_all."""
    return sum(each.lower() in text.lower() for each in expected) / len(expected)


def contains_any(text: str, expected: Sequence[str]) -> float:
    """Whether any of the expected strings occurs anywhere, in any case: RULER's string_match_part."""
    return float(any(each.lower() in text.lower() for each in expected))


def normalised(text: str) -> str:
    """Lower case, without punctuation and English articles, with single blanks (SQuAD, Rajpurkar et al. 2016)."""
    # SQuAD's order: punctuation goes before articles, so "a.b" is one word "ab".
    bare = "".join(character for character in text.lower() if character not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


def _answered(words: Sequence[str], reference: str, others: Sequence[str] | None) -> bool:
    wanted = _bare(reference)
    # The shortest beginning that equals the reference: articles and punctuation may make it longer than the reference.
    bare = ""
    for end, word in enumerate(words, 1):
        bare = " ".join(filter(None, (bare, normalised(word))))
        if (bare or " ".join(words[:end]).lower()) == wanted:
            break
        if len(bare) > len(wanted):
            return False
    else:
        return False
    last, rest = words[end - 1][-1], words[end:]
    # "yes and no" names both; "yes indeed" goes on without a mark: neither is a plain yes.
    if wanted in OPPOSITES:
        return not (rest and last.isalnum()) and OPPOSITES[wanted] not in map(_bare, rest)
    if others is not None:
        more = _spelled(" ".join(rest))
        return not any(_spelled(other) in more for other in others)
    return not rest or (last not in ",;" and _bare(rest[0]) not in JOINS)


def _spelled(text: str) -> str:
    """The words of a text in lower case, with a blank on both sides of each."""
    return " ".join(["", *re.findall(r"\w+", text.lower()), ""])


def _bare(text: str) -> str:
    """Normalised as in SQuAD; in lower case only if that rule leaves nothing."""
    return normalised(text) or " ".join(text.lower().split())
