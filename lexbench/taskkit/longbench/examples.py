"""The official data, one JSON line per example, from the user's folder or archive, or from the hub."""

import functools
import hashlib
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from lexbench.core.errors import ConfigError
from lexbench.core.files import parse_object
from lexbench.core.record import Refused

HUB_DATASET = "THUDM/LongBench"
ARCHIVE_FILE = "data.zip"
STRING_TYPE, STRING_LIST_TYPE, WHOLE_NUMBER_TYPE = "a string", "a list of strings", "a whole number"
REQUIRED_FIELDS = {
    "input": STRING_TYPE,
    "context": STRING_TYPE,
    "answers": STRING_LIST_TYPE,
    "length": WHOLE_NUMBER_TYPE,
    "_id": STRING_TYPE,
}
"""Needed fields of an example; classification also needs `all_classes`."""


@dataclass(frozen=True)
class Source:
    """A file of the user's, in a folder or an archive. Identities and labels depend on its content only."""

    place: Path = field(compare=False)
    """The file itself, or the archive."""
    member: str | None = field(compare=False)
    """Path inside the archive; None: `place` is the file itself."""
    sha256: str

    def __str__(self) -> str:
        return f"sha256:{self.sha256[:8]}"

    __repr__ = __str__

    @property
    def name(self) -> str:
        """Path of the file, for error messages."""
        return str(self.place if self.member is None else self.place / self.member)

    def read(self) -> bytes:
        """Content of the file, in bytes."""
        return _content(self.place, self.member)

    @classmethod
    def of(cls, place: Path, member: str | None = None) -> "Source":
        """Read and hash an existing file, or a member of an existing archive."""
        return cls(place, member, hashlib.sha256(_content(place, member)).hexdigest())

    @classmethod
    def find(cls, place: str | Path, stem: str, others: Iterable[str] = ()) -> "Source | Missing":
        """`stem`.jsonl in a folder, or anywhere in the official data.zip.

        Missing if there is none, but a file of `others`, the stems of the other data sets. ConfigError if there is no
        file of any.
        """
        folder, file = Path(place).expanduser(), f"{stem}.jsonl"
        if not folder.exists():
            raise ConfigError(f"data {place} does not exist: give task.data=DIR, a folder with {file}, or the data.zip")
        members = None if folder.is_dir() else _members(folder)
        known = {each.name for each in folder.iterdir()} if members is None else members.keys()
        if file in known:
            return cls.of(folder / file) if members is None else cls.of(folder, members[file])
        what = "folder" if members is None else "archive"
        if any(f"{other}.jsonl" in known for other in others):
            return Missing(f"data {what} has no {file}: add it, or leave the data set out")
        remedy = "a folder with the official files" if members is None else "the official one"
        raise ConfigError(f"data {what} {place} has no {file}: give {remedy}")


@dataclass(frozen=True)
class Missing:
    """A data set that the user's folder or archive lacks, while it has others."""

    reason: str

    def __str__(self) -> str:
        return "missing"

    __repr__ = __str__


def source_from_hub(stem: str) -> Source:
    """`stem`.jsonl in the hub's archive, from the cache or downloaded; Refused if it cannot be fetched."""
    archive, reason = _archive()
    if archive is None:
        raise Refused(f"longbench needs the official data ({reason}): give task.data=DIR or a network")
    found = Source.find(archive, stem)
    assert isinstance(found, Source), "without others, a file is found or an error"
    return found


@functools.lru_cache(maxsize=2)
def read_examples(source: Source, classes: bool) -> tuple[Mapping[str, Any], ...]:
    """All examples in the file's order; ConfigError with the line number if a line is wrong.

    Args:
        source: the file.
        classes: whether `all_classes` is needed.
    """
    needed = {**REQUIRED_FIELDS, "all_classes": STRING_LIST_TYPE} if classes else REQUIRED_FIELDS
    return tuple(row for _, row in read_rows(source.name, source.read(), needed))


def read_rows(name: str, content: bytes, needed: Mapping[str, str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number and content of each JSON line; ConfigError if one is not an object with the needed fields, or has
    the `_id` or `id` of an earlier one.

    Args:
        name: of the file.
        content: of the file, UTF-8; only line feeds end a line.
        needed: fields and their types.
    """
    empty, known = True, dict[str, int]()
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip():
            continue
        empty = False
        row = parse_object(line, f"{name}:{number}", "correct or remove the line")
        check_new_id(known, row.get("_id", row.get("id")), number, name)
        for key, wanted in needed.items():
            if key not in row:
                raise ConfigError(f"{name}:{number} has no field {key!r}: it must be {wanted}")
            if not _has_type(row[key], wanted):
                raise ConfigError(f"{name}:{number} has a wrong {key}: it must be {wanted}")
        yield number, row
    if empty:
        raise ConfigError(f"{name} is empty: give a file with one JSON object per line")


def check_new_id(known: dict[str, int], name: Any, number: int, file: str) -> None:
    """ConfigError for an id that an earlier line has, whose example would count twice; None is no id.

    Args:
        known: line of each id so far, to which this one is added.
        name: the id.
        number: of the line.
        file: its name.
    """
    if name is not None and known.setdefault(str(name), number) != number:
        raise ConfigError(
            f"{file}:{number} has the id {str(name)[:40]!r} of line {known[str(name)]}: remove one of them"
        )


def _has_type(value: Any, wanted: str) -> bool:
    if wanted == STRING_TYPE:
        return isinstance(value, str)
    if wanted == WHOLE_NUMBER_TYPE:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _content(place: Path, member: str | None) -> bytes:
    if member is None:
        return place.read_bytes()
    try:
        with zipfile.ZipFile(place) as archive:
            return archive.read(member)
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, RuntimeError) as error:  # RuntimeError: encrypted, ...
        reason = " ".join(str(error).split()) or "it ends too early"
        raise ConfigError(f"data archive {place} is damaged ({ascii(reason)[1:80]}): give the official one") from None


def _members(archive: Path) -> dict[str, str]:
    """File name to member of an archive, the first of several."""
    try:
        with zipfile.ZipFile(archive) as opened:
            # Reversed, so that of two members with one name the first stays. macOS adds hidden copies under __MACOSX.
            return {Path(name).name: name for name in reversed(opened.namelist()) if "__MACOSX" not in name}
    except zipfile.BadZipFile:
        raise ConfigError(f"data {archive} must be a folder or a zip archive: give the official one") from None


@functools.cache
def _archive() -> tuple[Path | None, str]:
    """The hub's archive, or None and the reason. Looked up once."""
    from huggingface_hub import errors, hf_hub_download

    transport = cast(type[Exception], vars(errors)["HTTPError"])  # its HTTP library depends on the hub's version
    try:
        return Path(hf_hub_download(HUB_DATASET, ARCHIVE_FILE, repo_type="dataset")), ""
    except (OSError, ValueError, errors.EntryNotFoundError, transport) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        return None, f"{HUB_DATASET} cannot be fetched: {reason.split('. ')[0].rstrip('.')}"
