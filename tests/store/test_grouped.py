"""Files of cells that are closed closely behind one another are written together, and nothing is lost before."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lexbench.core.record import Cell
from lexbench.store import store as module
from lexbench.store.store import Store
from tests.report.fake_run import cell, likelihood_sample

SAMPLES = [likelihood_sample(index, 256, 0.0, targets=3) for index in range(3)]
FIRST, SECOND, THIRD = (cell("last_segment", method, 256) for method in ("none", "pi", "yarn"))


@pytest.fixture(autouse=True)
def slow_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """No group is written for its time, however slow the machine is."""
    monkeypatch.setattr(module, "MAX_GROUP_DELAY_SECONDS", 600.0)


def measure(store: Store, this: Cell) -> None:
    with store.claim(this) as mine:
        assert mine
        for sample in SAMPLES:
            store.append(this, sample)
        store.finish(this, range(3))


def names(folder: Path) -> set[str]:
    return {file.name for file in (folder / "cells").glob("[!.]*")}


def test_a_cell_that_waits_for_its_group_is_finished_here_and_claimed_and_resumable_elsewhere(tmp_path: Path) -> None:
    store, other = Store(tmp_path), Store(tmp_path)
    with store.group_writes():
        measure(store, FIRST)
        assert names(tmp_path) == {f"{FIRST.id}.parquet"}, "nothing was written a second before"
        measure(store, SECOND)
        assert names(tmp_path) == {f"{FIRST.id}.parquet", f"{SECOND.id}.jsonl"}
        assert store.is_finished(SECOND) and not other.is_finished(SECOND)
        with other.claim(SECOND) as mine:
            assert not mine
        assert [sample.index for sample in other.resume(SECOND)] == [0, 1, 2]
    assert names(tmp_path) == {f"{FIRST.id}.parquet", f"{SECOND.id}.parquet"}
    with other.claim(SECOND) as mine:
        assert mine and other.is_finished(SECOND)
    assert names(tmp_path) == {f"{FIRST.id}.parquet", f"{SECOND.id}.parquet"}


@pytest.mark.slow
def test_a_group_holds_the_same_bytes_as_cells_written_alone(tmp_path: Path) -> None:
    cells = [cell("last_segment", "none", length) for length in range(100, 100 + 2 * module.MAX_GROUP_CELLS)]
    for folder in ("alone", "together"):
        store = Store(tmp_path / folder)
        if folder == "alone":
            for this in cells:
                measure(store, this)
        else:
            with store.group_writes():
                for this in cells:
                    measure(store, this)
    alone, together = (
        {file.name: file.read_bytes() for file in (tmp_path / folder / "cells").glob("[!.]*")}
        for folder in ("alone", "together")
    )
    assert alone == together and len(alone) == len(cells)


def test_a_group_is_written_in_time_without_another_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    with store.group_writes():
        measure(store, FIRST)
        store._flushed = time.monotonic() + 600  # as if just now, on a slow machine
        monkeypatch.setattr(module, "MAX_GROUP_DELAY_SECONDS", 0.1)
        measure(store, SECOND)
        until = time.monotonic() + 300
        while f"{SECOND.id}.parquet" not in names(tmp_path):
            assert time.monotonic() < until
            time.sleep(0.01)


def test_a_twin_that_waits_for_its_group_is_adopted(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.group_writes():
        measure(store, FIRST)
        measure(store, SECOND)
        with store.claim(THIRD):
            assert store.adopt_twin(THIRD, SECOND.id)
    assert names(tmp_path) == {f"{each.id}.parquet" for each in (FIRST, SECOND, THIRD)}
    assert [len(each.samples) for each in store.load()] == [3, 3, 3]


def test_a_group_that_cannot_be_written_keeps_its_samples_and_gives_its_claims_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = Store(tmp_path)

    def group() -> None:
        with monkeypatch.context() as patch, store.group_writes():
            measure(store, FIRST)
            patch.setattr(os, "fsync", full)
            measure(store, SECOND)
            measure(store, THIRD)

    with pytest.raises(OSError, match="No space left"):
        group()
    assert names(tmp_path) == {f"{FIRST.id}.parquet", f"{SECOND.id}.jsonl", f"{THIRD.id}.jsonl"}
    for this in (SECOND, THIRD):
        with store.claim(this) as mine:
            assert mine and not store.is_finished(this)
            store.finish(this, range(3))
    assert names(tmp_path) == {f"{each.id}.parquet" for each in (FIRST, SECOND, THIRD)}


def test_a_group_whose_time_has_come_and_cannot_be_written_fails_at_the_next_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, fsync, failed = Store(tmp_path), os.fsync, list[int]()

    def once(handle: int) -> None:
        if not failed:
            failed.append(handle)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(handle)

    def group() -> None:
        with store.group_writes():
            measure(store, FIRST)
            monkeypatch.setattr(os, "fsync", once)
            measure(store, SECOND)
            store._flush_in_time()
            measure(store, THIRD)

    with pytest.raises(OSError, match="Input/output error"):
        group()
    assert store.is_finished(THIRD) and not store.is_finished(SECOND)
    assert [sample.index for sample in store.resume(SECOND)] == [0, 1, 2]


@pytest.mark.slow
def test_a_process_that_is_killed_before_its_group_is_written_loses_no_sample(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from tests.store.test_grouped import FIRST, SECOND, Store, measure, module\n"
        "module.MAX_GROUP_DELAY_SECONDS, store = 600.0, Store(Path(sys.argv[1]))\n"
        "with store.group_writes():\n"
        "    measure(store, FIRST); measure(store, SECOND); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    root = Path(__file__).parent.parent.parent
    environment = {**os.environ, "PYTHONPATH": str(root)}
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path / "killed")], env=environment, cwd=root)
    assert killed.returncode == -signal.SIGKILL
    assert names(tmp_path / "killed") == {f"{FIRST.id}.parquet", f"{SECOND.id}.jsonl"}
    store = Store(tmp_path / "killed")
    with store.claim(SECOND) as mine:
        assert mine and [sample.index for sample in store.resume(SECOND)] == [0, 1, 2]
        store.finish(SECOND, range(3))
    measure(Store(tmp_path / "whole"), SECOND)
    file = f"cells/{SECOND.id}.parquet"
    assert (tmp_path / "killed" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
