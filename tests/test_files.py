"""Files are replaced whole or not at all."""

import errno
import os
from pathlib import Path

import pytest

from lexbench.files import write_bytes, write_text


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
