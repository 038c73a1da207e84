"""Writing files so that a reader sees the old one or the new one, never a part; and reading what must be an object."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any


def read_object(file: Path, remedy: str) -> dict[str, Any]:
    """The object that a JSON file holds; ValueError in one line, with the remedy, where it holds anything else."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # neither JSON nor, perhaps, text; or nested without end
        raise ValueError(f"{file} must be JSON ({error}): {remedy}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{file} must be a JSON object, got {type(value).__name__}: {remedy}")
    return value


def write_bytes(file: Path, content: bytes | memoryview) -> None:
    """Replace a file atomically; on any failure the old one stays and nothing else is left behind."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(file)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_text(file: Path, content: str) -> None:
    """Replace a text file atomically."""
    write_bytes(file, content.encode())
