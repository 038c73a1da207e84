"""Damaged files of parts are read all the same or refused in one line; nothing else in their folder changes."""

import os
from pathlib import Path

import pytest

from tests.faults.readers import Reader, check_damaged, check_undamaged, check_without_permission
from tests.parts.faults.readers import READERS_OF_PARTS

EVERY_DAY = [reader for reader in READERS_OF_PARTS if not reader.slow]


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("reader", READERS_OF_PARTS, ids=lambda reader: reader.name)
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
