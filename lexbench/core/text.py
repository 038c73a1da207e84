"""Text of a line for messages: names of unknown origin made plain, counts with their noun, the first few of many."""

from collections.abc import Sequence


def plain_text(text: object) -> str:
    """Text of unknown origin in one line: control characters become spaces, `##[` commands of CI logs are broken."""
    return " ".join(without_control_characters(str(text)).split()).replace("##[", "## [")


def without_control_characters(text: str) -> str:
    """The text in one line: a letter that prints nothing becomes a space."""
    return text if text.isprintable() else "".join(letter if letter.isprintable() else " " for letter in text)


def count_with_noun(count: int, noun: str) -> str:
    """`1 cell`, `2 cells`."""
    return f"{count} {noun}{'s' if count != 1 else ''}"


def join_first_few(names: Sequence[object], most: int = 6, between: str = ", ") -> str:
    """The first few of many names."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return plain_text(between.join(map(str, names[:most]))) + more if names else "nothing"


def join_lengths(lengths: Sequence[int]) -> str:
    """`512, 1024`, each once and in order."""
    return ", ".join(map(str, sorted(set(lengths))))
