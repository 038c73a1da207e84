"""An API key in texts that a server sends: whole or in part, as it is or encoded."""

import base64
import html
import json
import urllib.parse

MIN_SECRET_CHARACTERS = 8
"""Characters of the shortest key that is a secret; a shorter one, such as EMPTY, is a placeholder."""
SECRET_MASK = "***"


class Secret:
    """A key, found again in texts.

    A part counts from a third of the key on, and from `MIN_SECRET_CHARACTERS` characters: an answer may have been cut
    inside. The encoded forms are those of URLs, JSON, HTML and base64, there at each of its three alignments.

    Args:
        key: the key; None: there is none.
    """

    def __init__(self, key: str | None) -> None:
        self._key = key or ""
        self._forms = _key_spellings(self._key) if len(self._key) >= MIN_SECRET_CHARACTERS else []

    def is_in(self, text: str) -> bool:
        """Whether a text contains the key or a part of it, in any form; never for a placeholder."""
        return any(piece in text for form in self._forms for _, piece in _pieces(form))

    def mask(self, text: str) -> str:
        """The text with stars for the key and parts of it, in any form; of a placeholder, for the whole only."""
        if self._key:
            text = text.replace(self._key, SECRET_MASK)
        for form in self._forms:
            for start, piece in _pieces(form):
                while (place := text.find(piece)) >= 0:
                    text = _star_out(text, place, form, start, len(piece))
        return text


def _key_spellings(key: str) -> list[str]:
    """The spellings of a key, the longest first."""
    content, quoted = key.encode(), urllib.parse.quote(key, safe="")
    found = {key, quoted, _lower_case(quoted), json.dumps(key)[1:-1], html.escape(key)}
    # Behind one or two other bytes, base64 has other characters; the first and the last ones depend on the neighbours.
    for before in range(3):
        coded = base64.b64encode(b"\0" * before + content).decode().rstrip("=")
        inner = coded[-(-8 * before // 6) : 8 * (before + len(content)) // 6]
        found |= {inner, inner.replace("+", "-").replace("/", "_"), urllib.parse.quote(inner, safe="")}
    return sorted(found, key=lambda form: (-len(form), form))


def _lower_case(quoted: str) -> str:
    """A quoted text with its escapes in lower case: %2F as %2f."""
    first, *escaped = quoted.split("%")
    return "%".join([first, *(each[:2].lower() + each[2:] for each in escaped)])


def _pieces(form: str) -> list[tuple[int, str]]:
    """Places and texts of overlapping pieces, so that every part of a third of the form holds one of them whole."""
    least = max(MIN_SECRET_CHARACTERS, len(form) // 3)
    step = max(1, (least - MIN_SECRET_CHARACTERS) // 2)
    size = least - step + 1
    starts = [*range(0, len(form) - size, step), len(form) - size]
    return [(start, form[start : start + size]) for start in starts]


def _star_out(text: str, place: int, form: str, start: int, size: int) -> str:
    """The text with stars for the longest part of the form around a piece of it."""
    left = 0
    while left < min(place, start) and text[place - left - 1] == form[start - left - 1]:
        left += 1
    end, behind = place + size, start + size
    while end < len(text) and behind < len(form) and text[end] == form[behind]:
        end, behind = end + 1, behind + 1
    return text[: place - left] + SECRET_MASK + text[end:]
