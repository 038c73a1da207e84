"""Damaged files from outside are read all the same or refused in one line; nothing else in their folder changes."""

import os
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.faults import mutations
from tests.faults.readers import READERS, Reader, called, fresh, tried

EVERY_DAY = [reader for reader in READERS if not reader.slow]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where valid folders lie, made once."""
    return tmp_path_factory.mktemp("readers")


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_many_damaged_files_end_in_one_line(reader: Reader, root: Path) -> None:
    @settings(
        max_examples=reader.tries,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.integers(0, 2**32 - 1))
    def checked(seed: int) -> None:
        found = tried(reader, root, random.Random(seed))
        assert found.verdict in ("read", "refused"), f"{found.verdict} after {found.what}:\n{found.said[-3000:]}"

    checked()


@pytest.mark.slow
@pytest.mark.parametrize("reader", EVERY_DAY, ids=lambda reader: reader.name)
def test_an_undamaged_file_is_read(reader: Reader, root: Path) -> None:
    folder = fresh(reader, root)
    verdict, said = called(lambda: reader.read(folder))
    assert verdict == "read", said


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("reader", EVERY_DAY, ids=lambda reader: reader.name)
def test_a_file_without_permission_ends_in_one_line(reader: Reader, root: Path) -> None:
    folder = fresh(reader, root)
    [file, *_] = sorted(file for pattern in reader.files for file in folder.glob(pattern))
    file.chmod(0)
    verdict, said = called(lambda: reader.read(folder))
    assert verdict in ("read", "refused"), said


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

    reader = next(each for each in READERS if each.name == "study's stamp")
    meddling = Reader("meddling", reader.source, reader.files, read)
    assert tried(meddling, root, random.Random(1)).verdict == "changed more"


@pytest.mark.everyday("a.json", "a.jsonl", "a.safetensors")
@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.parquet", "a.safetensors", "a.txt"])
def test_damage_is_damage(name: str, root: Path) -> None:
    """Of a hundred changed files nearly all differ from the valid one."""
    holders = {".json": "tune", ".jsonl": "key tokens", ".parquet": "study's page", ".safetensors": "model's facts"}
    reader = next(each for each in READERS if each.name == holders.get(Path(name).suffix, "corpus of files"))
    content = next(iter(sorted(fresh(reader, root).glob(f"*{Path(name).suffix}")))).read_bytes()
    changed = [mutations.damaged(content, name, random.Random(seed)) for seed in range(100)]
    assert sum(each != content for each in changed) > 85
    assert len(set(changed)) > 40
