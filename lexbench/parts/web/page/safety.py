"""Escape untrusted text: names, prompts, outputs and reasons come from models and from others' files.

HTML        jinja's autoescape, and in the page textContent: text is never parsed as markup
JSON        `<` is escaped, so that no text ends the script element that holds it
characters  those that reorder text, or show nothing, are written out: the reader sees that they are there
policy      a content security policy allows the scripts and styles of this package by their hashes, and no request
"""

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

from lexbench.report.formats import replace_infinities
from lexbench.store.format import plain_value

HIDDEN_CHARACTERS_PATTERN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
"""Control characters but tab and line feed, marks of direction (Unicode TR 9), and halves of surrogate pairs."""
JSON_ESCAPE_PATTERN = re.compile(r"\\(?:u(00[01][0-9a-f])|.)")
"""Escapes of JSON: of control characters (group 1), and all others, so that an escaped backslash begins none."""


def make_visible(text: str) -> str:
    """A text whose hidden characters are written out: `⟨U+202E⟩`."""
    return HIDDEN_CHARACTERS_PATTERN.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", text)


def script_json(value: Any) -> str:
    """JSON that may stand in a script element of HTML: no `<`, and nothing hidden; what is not finite is a text."""
    return _dump_json(value, separators=(",", ":")).replace("<", "\\u003c")


def indented_json(value: Any) -> str:
    """JSON to read, nothing hidden; not yet escaped."""
    return _dump_json(value, indent=1)


def _dump_json(value: Any, **form: Any) -> str:
    form |= {"ensure_ascii": False, "allow_nan": False, "default": plain_value}
    try:
        text = json.dumps(value, **form)
    except ValueError:  # a number that is not finite: rare, so values are not searched for one beforehand
        text = json.dumps(replace_infinities(value, str), **form)
    return make_visible(
        JSON_ESCAPE_PATTERN.sub(lambda found: f"⟨U+{found[1].upper()}⟩" if found[1] else found[0], text)
    )


def content_hash(content: str) -> str:
    """The hash by which a policy allows an inline script or style."""
    return "'sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() + "'"


def security_policy(scripts: Sequence[str], styles: Sequence[str], served: bool) -> str:
    """The strictest content security policy under which the page works; PNG files are made by a `data:` picture."""
    allowed = {
        "default-src": "'none'",
        "script-src": " ".join(map(content_hash, scripts)),
        "style-src": " ".join(map(content_hash, styles)),
        "img-src": "data:",
        "connect-src": "'self'" if served else "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{directive} {sources}" for directive, sources in allowed.items())
