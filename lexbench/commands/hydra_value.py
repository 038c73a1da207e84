"""Values in the grammar of hydra's command line."""

import re
from collections.abc import Mapping
from typing import Any


def hydra_value(value: Any) -> str:
    """A value in hydra's grammar."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{hydra_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(hydra_value, value)) + "]"
    if isinstance(value, str) and not re.fullmatch(r"[A-Za-z0-9_./-]+", value):
        # Hydra reads a quoted backslash as itself, but not in front of a quote or a line end: only there it is doubled.
        escaped = re.sub(r"(\\*)(['\n])", lambda m: m[1] * 2 + {"'": "\\'", "\n": "\n"}[m[2]], value)
        return f"'{escaped}'"
    return str(value)
