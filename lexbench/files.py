"""Writing files so that a reader sees the old one or the new one, never a part."""

import os
import tempfile
from pathlib import Path


def write_bytes(file: Path, content: bytes) -> None:
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
