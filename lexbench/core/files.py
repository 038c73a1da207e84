"""Write files atomically (a reader sees the old file or the new one, never a part), lock and hash them."""

import errno
import fcntl
import hashlib
import json
import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from lexbench.core.errors import ConfigError
from lexbench.core.text import plain_text

RECORD_FILE_SUFFIXES = (".jsonl", ".parquet")
"""Ends of files that hold records, answers or a ledger, which no page, table or certificate replaces."""


def why_not_a_folder(place: Path) -> str:
    """Middle of a message: the state of a path that should be a folder (`is a file`), or a file (`is a folder`)."""
    return "is a folder" if place.is_dir() else "is a file" if place.exists() else "does not exist"


def check_place(noun: str, place: Path, remedy: str) -> None:
    """ConfigError where a file stands in the way of a file or folder that is to be made; nothing is written."""
    above = next((each for each in place.parents if each.exists()), Path())
    if not above.is_dir():
        raise ConfigError(f"{noun} {place} cannot be made, {above} is a file where a folder is needed: {remedy}")


def check_folder(noun: str, place: Path, setting: str) -> None:
    """ConfigError where a folder neither is nor can be made, with its setting (`out=DIR`); nothing is written."""
    if place.exists() and not place.is_dir():
        raise ConfigError(f"{noun} {place} {why_not_a_folder(place)}: give {setting}, a folder or a new name")
    check_place(noun, place, f"give another {setting}")


def check_writable(noun: str, place: Path, remedy: str) -> None:
    """ConfigError where a file or folder cannot be made, found out by making a folder there and removing it."""
    check_place(noun, place, remedy)
    above = next(each for each in (place, *place.parents, Path()) if each.is_dir())
    try:
        with tempfile.TemporaryDirectory(dir=above, prefix=".lexbench."):
            pass
    except OSError as error:
        raise ConfigError(f"{noun} {place} cannot be made in {above} ({error.strerror}): {remedy}") from None


def refuse_record_file(option: str, file: Path) -> None:
    """ConfigError where an option would replace a file of records, of a ledger or of answers."""
    if file.suffix.lower() in RECORD_FILE_SUFFIXES:
        raise ConfigError(
            f"{option} must not be a {file.suffix} file, got {plain_text(file.name)}: records, answers and ledgers are "
            "such files, give another name"
        )


def check_regular(file: Path) -> None:
    """OSError where a path is no file but something else: opening a pipe would wait for ever."""
    if file.exists() and not file.is_file():
        raise OSError(errno.EINVAL, "Not a regular file", str(file))


def read_bytes(file: Path) -> bytes:
    """Content of a file; OSError as by `check_regular`."""
    check_regular(file)
    return file.read_bytes()


def read_utf8(file: Path, remedy: str) -> str:
    """Text of a file; OSError as by `check_regular`, ConfigError in one line, with the remedy, where it is no UTF-8."""
    check_regular(file)
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{file} must be text in UTF-8: {remedy}") from None


def read_object(file: Path, remedy: str) -> dict[str, Any]:
    """Read a JSON file that must hold an object; otherwise ConfigError in one line, with the remedy."""
    if file.exists() and not file.is_file():  # reading a pipe would wait for ever
        raise ConfigError(f"{file} must be a file: {remedy}")
    return parse_object(file.read_bytes(), file, remedy)


PACKED_BEGINNINGS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ": "xz", b"BZh": "bzip2"}
"""First bytes of packed files."""
LONG_NUMBER = re.compile(r"\d{309}")
"""Digits of a whole number that no float holds."""


def _int_within_floats(digits: str) -> int:
    """The whole number; ValueError if no float holds it."""
    if len(digits.lstrip("-")) > 308:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def parse_object(content: bytes | str, place: object, remedy: str) -> dict[str, Any]:
    """Parse what must be a JSON object, in UTF-8; otherwise ConfigError in one line, with its place and the remedy.

    A byte order mark, which some editors put in front, is passed over. A whole number beyond all floats is refused.
    """
    if isinstance(content, bytes) and content.startswith(tuple(PACKED_BEGINNINGS)):
        packer = next(name for begin, name in PACKED_BEGINNINGS.items() if content.startswith(begin))
        raise ConfigError(f"{place} must be JSON, and is packed by {packer}: unpack it")
    try:
        text = content if isinstance(content, str) else content.decode("utf-8-sig")
        # Asked first, as it slows reading; such digits may as well stand in a text.
        value = json.loads(text, parse_int=_int_within_floats) if LONG_NUMBER.search(text) else json.loads(text)
    except (ValueError, RecursionError) as error:  # not JSON, not even text, or nested too deeply
        raise ConfigError(f"{place} must be JSON ({error}): {remedy}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{place} must be a JSON object, got {type(value).__name__}: {remedy}")
    return value


def write_bytes(file: Path, content: bytes | memoryview, durable: bool = True) -> None:
    """Replace a file atomically; on failure the old file stays and no other file is left.

    Without `durable` a power cut may leave an empty file: for what can be derived again.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    while not _try_replace(file, content, durable):
        pass


def _try_replace(file: Path, content: bytes | memoryview, durable: bool) -> bool:
    """Replace a file; False if another process removed our temporary file before we locked it."""
    try:
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    except OSError as error:
        error.filename = str(file)  # not the temporary name, which nobody has given
        raise
    temporary = Path(name)
    with os.fdopen(handle, "wb") as stream:
        # The lock says that its process lives: `clear_leftovers` removes what nobody has locked.
        lock_file(handle, wait=True)
        if not temporary.exists():
            return False
        try:
            stream.write(content)
            stream.flush()
            if durable:  # before the rename: after a power cut, the new name must not stand for an empty file
                os.fsync(handle)
            # mkstemp lets the owner alone read.
            temporary.chmod(0o644)
            temporary.replace(file)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    return True


def clear_leftovers(folder: Path) -> None:
    """Remove temporary files that killed processes have left of `*.parquet`."""
    for file in folder.glob(".*.parquet.*"):
        if file.is_dir():
            continue
        with suppress(FileNotFoundError), file.open("rb") as stream:
            if lock_file(stream.fileno(), wait=False, without=False):
                file.unlink(missing_ok=True)


def lock_file(handle: int, wait: bool, without: bool = True) -> bool:
    """Lock an open file until the process ends; returns whether we have the lock.

    Returns `without` if the file system does not support locks.
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
    """Hash of a file, cached in the user's cache folder while path, size, times and inode stay the same."""
    with file.open("rb") as stream:
        state = os.fstat(stream.fileno())
        known = [state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino]
        name, cache = str(file.resolve()), _cached_hashes()
        found = cache.get(name)
        if isinstance(found, list) and found[:-1] == known and isinstance(found[-1], str):
            return found[-1]
        made = hashlib.file_digest(stream, "sha256").hexdigest()
        same = os.fstat(stream.fileno()).st_mtime_ns == state.st_mtime_ns
    place = _cache_file()
    if same and place is not None:  # the file did not change while it was read
        with suppress(OSError):
            write_text(place, json.dumps({**_cached_hashes(), name: [*known, made]}))
    return made


def cache_folder() -> Path:
    """lexbench's folder in the user's cache; ConfigError if the user has no home folder."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    except RuntimeError:
        folder = Path()
    if not folder.is_absolute():
        raise ConfigError("the user has no cache folder: set XDG_CACHE_HOME to an absolute path")
    return folder / "lexbench"


def _cache_file() -> Path | None:
    """The file of cached hashes; None if the user has no cache folder."""
    try:
        return cache_folder() / "sha256.json"
    except ValueError:
        return None


def _cached_hashes() -> dict[str, Any]:
    """Cached hashes by path; empty if the cache is missing or unreadable."""
    place = _cache_file()
    try:
        return read_object(place, "delete it") if place is not None else {}
    except (OSError, ValueError):
        return {}


def write_text(file: Path, content: str, durable: bool = True) -> None:
    """Replace a text file atomically; `durable` as for bytes."""
    write_bytes(file, content.encode(), durable)
