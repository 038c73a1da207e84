"""Files are replaced atomically."""

import errno
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from lexbench.core.errors import ConfigError
from lexbench.core.files import clear_leftovers, read_utf8, sha256, why_not_a_folder, write_bytes, write_text


def test_the_new_content_replaces_the_old(tmp_path: Path) -> None:
    file = tmp_path / "deep/er/file"
    write_text(file, "old")
    write_bytes(file, b"new")
    assert file.read_bytes() == b"new"
    assert [entry.name for entry in file.parent.iterdir()] == ["file"]


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    write_text(file, "old")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="full"):
        write_text(file, "new")
    assert file.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.slow
def test_what_is_being_written_is_no_leftover(tmp_path: Path) -> None:
    write = "import sys; from pathlib import Path; from lexbench.core.files import *\nplace = Path(sys.argv[1])\n"
    write += "for number in range(150): write_bytes(place / f'{sys.argv[2]}-{number % 5}.parquet', b'whole')"
    writers = [subprocess.Popen([sys.executable, "-c", write, str(tmp_path), name]) for name in "ab"]
    while any(writer.poll() is None for writer in writers):
        clear_leftovers(tmp_path)
    assert [writer.returncode for writer in writers] == [0, 0]
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {
        f"{name}-{number}.parquet": b"whole" for name in "ab" for number in range(5)
    }


# hashes


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the hashed files, one per hashing, with a separate cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    names, digest = list[str](), hashlib.file_digest

    def counted(stream: Any, kind: str) -> Any:
        names.append(Path(stream.name).name)
        return digest(stream, kind)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    return names


def test_a_file_is_hashed_once_for_as_long_as_it_stays_the_same(tmp_path: Path, read: list[str]) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"first")
    assert sha256(file) == sha256(file) == hashlib.sha256(b"first").hexdigest()
    assert len(read) == 1
    state = file.stat()
    file.write_bytes(b"later")  # of the same size
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    assert sha256(file) == sha256(file) == hashlib.sha256(b"later").hexdigest()
    file.write_bytes(b"longer")  # of the same time
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    assert sha256(file) == sha256(file) == hashlib.sha256(b"longer").hexdigest()
    (tmp_path / "new").write_bytes(b"others")  # of the same size and time
    (tmp_path / "new").replace(file)
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    assert sha256(file) == sha256(file) == hashlib.sha256(b"others").hexdigest()
    assert len(read) == 4


def test_hashes_of_several_files_are_kept_side_by_side(tmp_path: Path, read: list[str]) -> None:
    for name in "abab":
        if not (tmp_path / name).exists():
            (tmp_path / name).write_text(name)
        assert sha256(tmp_path / name) == hashlib.sha256(name.encode()).hexdigest()
    assert read == ["a", "b"]


@pytest.mark.parametrize("content", ["", "[]", "{", '{"PATH": 3}', '{"PATH": []}', '{"PATH": [1, 2, 3, 4, "5"]}'])
def test_a_damaged_cache_of_hashes_is_made_anew(tmp_path: Path, read: list[str], content: str) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x")
    first = sha256(file)
    [cache] = (tmp_path / "cache/lexbench").iterdir()
    cache.write_text(content.replace("PATH", str(file.resolve())))
    assert [sha256(file), sha256(file)] == [first, first]
    assert len(read) == 2


def test_a_cache_of_hashes_that_cannot_be_written_is_no_error(tmp_path: Path, read: list[str]) -> None:
    (tmp_path / "cache").write_text("no folder")
    assert sha256(tmp_path / "cache") == sha256(tmp_path / "cache") == hashlib.sha256(b"no folder").hexdigest()
    assert len(read) == 2


def test_what_a_path_is_instead_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert [why_not_a_folder(each) for each in (tmp_path, tmp_path / "file", tmp_path / "none")] == [
        "is a folder",
        "is a file",
        "does not exist",
    ]


def test_a_place_that_cannot_be_written_is_named_as_it_was_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(**given: object) -> tuple[int, str]:
        raise FileNotFoundError(2, "No such file or directory", "/proc/.x.md.6qj7o5su")

    monkeypatch.setattr(tempfile, "mkstemp", full)
    with pytest.raises(FileNotFoundError) as error:
        write_text(tmp_path / "x.md", "")
    assert error.value.filename == str(tmp_path / "x.md")


def test_a_file_that_is_no_text_is_one_line_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes("naïve".encode())
    assert read_utf8(tmp_path / "text", "mend it") == "naïve"
    (tmp_path / "latin").write_bytes("naïve".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"latin must be text in UTF-8: mend it$"):
        read_utf8(tmp_path / "latin", "mend it")
