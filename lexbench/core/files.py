"""Writing files so that a reader sees the old one or the new one, never a part; and reading what must be an object."""

import errno
import fcntl
import hashlib
import json
import os
import tempfile
from contextlib import suppress
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
    while not _written(file, content):
        pass


def _written(file: Path, content: bytes | memoryview) -> bool:
    """Replace a file; False where somebody has cleared our half-written one away before we locked it."""
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    temporary = Path(name)
    with os.fdopen(handle, "wb") as stream:
        locked(handle, wait=True)
        if not temporary.exists():
            return False
        try:
            stream.write(content)
            stream.flush()
            os.fsync(handle)
            temporary.chmod(0o644)
            temporary.replace(file)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    return True


def clear_leftovers(folder: Path, name: str) -> None:
    """Remove what processes have left that were killed while they wrote files of such a name: `*.parquet`."""
    for file in folder.glob(f".{name}.*"):
        with suppress(FileNotFoundError), file.open("rb") as stream:
            if locked(stream.fileno(), wait=False, without=False):
                file.unlink(missing_ok=True)


def locked(handle: int, wait: bool, without: bool = True) -> bool:
    """Take the lock of an open file, which ends with the process; whether it is ours.

    Where the file system knows no locks it is, or as `without` says.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        return without
    return True


def sha256(file: Path) -> str:
    """Hash of a file, kept in the user's cache for as long as path, size, times and inode stay what they are."""
    with file.open("rb") as stream:
        state = os.fstat(stream.fileno())
        known = [state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino]
        name, cache = str(file.resolve()), _cached()
        found = cache.get(name)
        if isinstance(found, list) and found[:-1] == known and isinstance(found[-1], str):
            return found[-1]
        made = hashlib.file_digest(stream, "sha256").hexdigest()
        same = os.fstat(stream.fileno()).st_mtime_ns == state.st_mtime_ns
    place = _cache_file()
    if same and place is not None:  # nobody wrote to the file meanwhile
        with suppress(OSError):
            write_text(place, json.dumps({**_cached(), name: [*known, made]}))
    return made


def _cache_file() -> Path | None:
    """Where hashes of files are kept; None where the user has no home."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    except RuntimeError:
        return None
    return folder / "lexbench" / "sha256.json" if folder.is_absolute() else None


def _cached() -> dict[str, Any]:
    """Hashes by path; empty where there are none, or none that can be read."""
    place = _cache_file()
    try:
        return read_object(place, "delete it") if place is not None else {}
    except (OSError, ValueError):
        return {}


def write_text(file: Path, content: str) -> None:
    """Replace a text file atomically."""
    write_bytes(file, content.encode())
