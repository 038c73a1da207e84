"""Damaged files from outside are read all the same or refused in one line; nothing else in their folder changes."""

import os
import random
from pathlib import Path

import pytest

from tests.faults import mutations
from tests.faults.readers import (
    READERS,
    Reader,
    called,
    check_damaged,
    check_undamaged,
    check_without_permission,
    fresh,
    tried,
)

EVERY_DAY = [reader for reader in READERS if not reader.slow]


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_many_damaged_files_end_in_one_line(reader: Reader, root: Path) -> None:
    check_damaged(reader, root)


@pytest.mark.slow
@pytest.mark.parametrize("reader", EVERY_DAY, ids=lambda reader: reader.name)
def test_an_undamaged_file_is_read(reader: Reader, root: Path) -> None:
    check_undamaged(reader, root)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("reader", EVERY_DAY, ids=lambda reader: reader.name)
def test_a_file_without_permission_ends_in_one_line(reader: Reader, root: Path) -> None:
    check_without_permission(reader, root)


def test_a_traceback_a_hang_and_a_second_line_are_seen() -> None:
    """What the tests above look for, made on purpose."""

    def printed(text: str, code: int) -> int:
        import sys

        print(text, file=sys.stderr)
        return code

    def raised() -> int:
        raise KeyError("x")

    assert called(raised)[0].startswith("KeyError")
    assert called(lambda: printed("lexbench: a\nlexbench: b", 2))[0] == "2 lines"
    assert called(lambda: printed("", 2))[0] == "0 lines"
    assert called(lambda: printed("Traceback (most recent call last):", 0))[0] == "traceback printed"
    assert called(lambda: printed("lexbench: a", 2)) == ("refused", "lexbench: a")
    assert called(lambda: printed("lexbench: " + "x" * 2000, 2))[0] == "a line of 2010 characters"


def test_a_changed_folder_is_seen(root: Path) -> None:
    def read(folder: Path) -> int:
        (folder / "more").write_text("x")
        return 0

    reader = next(each for each in READERS if each.name == "corpus of files")
    meddling = Reader("meddling", reader.source, reader.files, read)
    assert tried(meddling, root, random.Random(1)).verdict == "changed more"


@pytest.mark.everyday("a.json", "a.jsonl", "a.safetensors")
@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.parquet", "a.safetensors", "a.txt"])
def test_damage_is_damage(name: str, root: Path) -> None:
    """Of a hundred changed files nearly all differ from the valid one."""
    holders = {".json": "question answering", ".parquet": "leaderboard", ".safetensors": "model's facts"}
    reader = next(each for each in READERS if each.name == holders.get(Path(name).suffix, "corpus of files"))
    content = next(iter(sorted(fresh(reader, root).rglob(f"*{Path(name).suffix}")))).read_bytes()
    changed = [mutations.damaged(content, name, random.Random(seed)) for seed in range(100)]
    assert sum(each != content for each in changed) > 85
    assert len(set(changed)) > 40
