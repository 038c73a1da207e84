"""Match written answers: strictly, by how they begin, and as the official tasks do, by what they contain."""

import re
import string
from collections import Counter
from collections.abc import Sequence

QUOTATION_MARKS = r"\"'`*“”‘’„«»()\[\]"
LIST_NUMBER_PATTERN = r"\d{1,3}[.)](?=[ \t])"
BULLET_PATTERN = r"[*•—]|[-–](?!\d)"
"""Bullet of a list; a dash that touches a number is its sign, and none."""
BEFORE_FIRST_ITEM_PATTERN = rf"(?:\s*:)?\s*+(?:{BULLET_PATTERN}|1[.)](?=[ \t]))?[ \t:{QUOTATION_MARKS}]*"
"""Text that may stand before the first item of a list: a colon, a bullet or the number 1, quotation marks."""
BETWEEN_ITEMS_PATTERN = rf"[ \t\xa0,;:/&|、，；{QUOTATION_MARKS}-]*(?:(?:and|or)\b[ \t{QUOTATION_MARKS}]*)?"
"""Text that may stand between two items of one line; a full stop ends the list."""
LIST_LINE_START_PATTERN = rf"\n\s*+(?:{BULLET_PATTERN}|{LIST_NUMBER_PATTERN})?[ \t{QUOTATION_MARKS}]*"
"""Text that may stand at the start of a line of a list."""
LIST_LINE_END_PATTERN = rf"[ \t,;.{QUOTATION_MARKS}]*"
"""Text that may stand between an item and the end of its line."""
WHOLE_ITEM_PATTERN = r"({item})(?!\w|-\w|\.\d)"
"""An item that does not continue as a longer word or number, with a hyphen or as a decimal."""
CONTRADICTING_ANSWERS = {"yes": "no", "no": "yes"}
"""Answers that contradict each other."""
JOINING_WORDS = ("and", "or", "&", "/", "|", "-", "–")
"""Joins another answer."""


def one_of_pattern(words: Sequence[str]) -> str:
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
    whole = WHOLE_ITEM_PATTERN.format(item=item)
    first, following = (
        re.compile(before + whole, re.IGNORECASE) for before in (BEFORE_FIRST_ITEM_PATTERN, BETWEEN_ITEMS_PATTERN)
    )
    alone = re.compile(
        rf"{LIST_LINE_END_PATTERN}{LIST_LINE_START_PATTERN}{whole}(?={LIST_LINE_END_PATTERN}(?:\n|$))", re.IGNORECASE
    )
    found, match = [], first.match(text)
    while match and match[1]:
        found.append(match[1].lower())
        # In the same line first: an item alone on the next line belongs to the list only if the line has nothing else.
        match = following.match(text, match.end()) or alone.match(text, match.end())
    return found


def remove_list_numbers(text: str) -> str:
    """Remove the numbers from a list in one line, "1. amber 2. violet"; any other text is unchanged.

    Only for items that are not numbers.
    """
    return re.sub(r"[ \t]*\b\d{1,3}[.)][ \t]+", " ", text) if re.match(r"\s*1[.)]", text) else text


def strict_list_score(text: str, expected: Sequence[str], item: str) -> float:
    """1 if the text begins with a list of exactly the expected items, in any order; a longer list is wrong."""
    # As counts, not as sets: an item named twice makes the list longer, and wrong.
    return float(Counter(leading_items(text, item)) == Counter(each.lower() for each in expected))


def strict_phrase_score(text: str, references: Sequence[str], others: Sequence[str] | None = None) -> float:
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
    return float(any(_gives_one_answer(words, reference, others) for reference in references))


def contains_all(text: str, expected: Sequence[str]) -> float:
    """Share of the expected strings that occur anywhere, in any case: RULER's string_match_all."""
    return sum(each.lower() in text.lower() for each in expected) / len(expected)


def contains_any(text: str, expected: Sequence[str]) -> float:
    """Whether any of the expected strings occurs anywhere, in any case: RULER's string_match_part."""
    return float(any(each.lower() in text.lower() for each in expected))


def normalise_as_squad(text: str) -> str:
    """Lower case, without punctuation and English articles, with single blanks (SQuAD, Rajpurkar et al. 2016)."""
    # SQuAD's order: punctuation goes before articles, so "a.b" is one word "ab".
    bare = "".join(character for character in text.lower() if character not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


def _gives_one_answer(words: Sequence[str], reference: str, others: Sequence[str] | None) -> bool:
    wanted = _bare(reference)
    # The shortest beginning that equals the reference: articles and punctuation may make it longer than the reference.
    bare = ""
    for end, word in enumerate(words, 1):
        bare = " ".join(filter(None, (bare, normalise_as_squad(word))))
        if (bare or " ".join(words[:end]).lower()) == wanted:
            break
        if len(bare) > len(wanted):
            return False
    else:
        return False
    last, rest = words[end - 1][-1], words[end:]
    # "yes and no" names both; "yes indeed" goes on without a mark: neither is a plain yes.
    if wanted in CONTRADICTING_ANSWERS:
        return not (rest and last.isalnum()) and CONTRADICTING_ANSWERS[wanted] not in map(_bare, rest)
    if others is not None:
        more = _spaced_words(" ".join(rest))
        return not any(_spaced_words(other) in more for other in others)
    return not rest or (last not in ",;" and _bare(rest[0]) not in JOINING_WORDS)


def _spaced_words(text: str) -> str:
    """The words of a text in lower case, with a blank on both sides of each."""
    return " ".join(["", *re.findall(r"\w+", text.lower()), ""])


def _bare(text: str) -> str:
    """Normalised as in SQuAD; in lower case only if that rule leaves nothing."""
    return normalise_as_squad(text) or " ".join(text.lower().split())
