"""Journals, which resume a study: a header with all that its numbers depend on, then a JSON line for each row."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lexbench.backends import Backend
from lexbench.core.errors import ConfigError
from lexbench.core.files import parse_object, read_bytes
from lexbench.core.moved_classes import with_present_paths

MAX_CHANGE_CHARACTERS = 60
"""Characters of a value that has changed, in an error."""


def measuring_conditions(backend: Backend) -> dict[str, Any]:
    """Everything about the model and the backend that numbers depend on."""
    return {
        "model": backend.model.name,
        "revision": backend.revision,
        "trained_length": backend.model.trained_length,
        "backend": f"{backend.name} ({backend.version})",
        "dtype": backend.dtype,
        "kernel": backend.kernel,
    }


def describe_changes(before: Mapping[str, Any], now: Mapping[str, Any], within: str = "") -> str:
    """`length 512, now 1024; space.pi.factor None, now [4, 8]`; empty where both say the same."""
    found = []
    for name in {**before, **now}:
        one, other = before.get(name), now.get(name)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            found.append(describe_changes(one, other, f"{within}{name}."))
        elif one != other:
            shown, later = (
                text if len(text) <= MAX_CHANGE_CHARACTERS else f"{text[:MAX_CHANGE_CHARACTERS]} ..."
                for text in (str(one), str(other))
            )
            found.append(f"{within}{name} {shown}, now {later}")
    return "; ".join(filter(None, found))


def resume_journal(file: Path, header: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of a journal; a new file gets the header.

    ConfigError for a malformed line, and, with the changes, for another header.
    """
    header = json.loads(json.dumps(header))
    content = read_bytes(file) if file.exists() else b""
    whole = content[: content.rfind(b"\n") + 1]
    if not whole:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(json.dumps(header).encode() + b"\n")
        return []
    place, remedy = f"a line of journal {file}", "remove it, or give another out="
    before, *rows = (parse_object(line, place, remedy) for line in whole.splitlines())
    if changed := describe_changes(with_present_paths(before), header):
        raise ConfigError(f"journal {file} has {changed}: give another out=, or remove it")
    # A killed process leaves at most one torn line, without its end. Appending to it would spoil the next row, too.
    os.truncate(file, len(whole))
    return rows
