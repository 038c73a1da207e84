"""Find the class that a file of code names, without importing it: torch and mistakes of other files stay away."""

import functools
import re
from pathlib import Path

CLASS_PATTERN = re.compile(r"^(@dataclass\b[^\n]*\n)?class ([A-Za-z]\w*)", re.MULTILINE)
TOP_LEVEL = re.compile(r"^[^\s#)]", re.MULTILINE)
"""Beginning of a statement that is not part of the class above."""


def only_class(file: Path, method: str | None) -> str | None:
    """The only public dataclass of a file that defines a method of this name, or None.

    Args:
        file: Python code.
        method: `attention` or `questions`; None: the only public class, a dataclass or not.
    """
    return _only_class(file, file.stat().st_mtime_ns, method)


@functools.lru_cache(maxsize=1024)
def _only_class(file: Path, changed: int, method: str | None) -> str | None:
    text = file.read_text(encoding="utf-8", errors="replace")
    found = []
    for match in CLASS_PATTERN.finditer(text):
        following = TOP_LEVEL.search(text, match.end())
        body = text[match.end() : following.start() if following else len(text)]
        if method is None or (match[1] and re.search(rf"^    def {method}\(", body, re.MULTILINE)):
            found.append(match[2])
    return found[0] if len(found) == 1 else None
