"""Files are replaced whole or not at all."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lexbench.core.files import clear_leftovers, write_bytes, write_text


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


def test_what_is_being_written_is_no_leftover(tmp_path: Path) -> None:
    write = "import sys; from pathlib import Path; from lexbench.core.files import *\nplace = Path(sys.argv[1])\n"
    write += "for number in range(150): write_bytes(place / f'{sys.argv[2]}-{number % 5}.parquet', b'whole')"
    writers = [subprocess.Popen([sys.executable, "-c", write, str(tmp_path), name]) for name in "ab"]
    while any(writer.poll() is None for writer in writers):
        clear_leftovers(tmp_path, "*.parquet")
    assert [writer.returncode for writer in writers] == [0, 0]
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {
        f"{name}-{number}.parquet": b"whole" for name in "ab" for number in range(5)
    }
