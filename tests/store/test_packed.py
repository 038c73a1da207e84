"""Copies of many small cells in one file: equal to the cells' files, and ignored if these differ."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lexbench.core.record import Cell
from lexbench.stats.records import records_of
from lexbench.store import format, packed
from lexbench.store.format import FinishedCell
from lexbench.store.packed import CellPack, cell_file_states
from lexbench.store.store import MAX_CELLS_READ_SINGLY, Store
from tests.report.fake_run import cell
from tests.store.test_store import SAMPLES, plain

pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered")  # samples hold NaN and infinities


@pytest.fixture(autouse=True)
def _few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "MIN_NEW_CELLS_TO_PACK", 60)
    assert MAX_CELLS_READ_SINGLY < packed.MIN_NEW_CELLS_TO_PACK


def a_cell(seed: int) -> Cell:
    return cell("passkey", "none", 256, seed=seed)


def folder(path: Path, count: int = 100) -> Store:
    """Cells with every field of samples, a refusal, a deferred cell, and one too large to be packed."""
    store = Store(path)
    large = replace(SAMPLES[0], index=9, nll=np.random.default_rng(3).random(40000).astype(np.float32))
    for seed in range(count):
        this = a_cell(seed)
        if seed == 1:
            store.refuse(this, "no positions")
        elif seed == 2:
            store.defer(this, "the server is down")
        else:
            samples = [*SAMPLES[: 1 + seed % len(SAMPLES)], *([large] if seed == 3 else [])]
            for sample in samples:
                store.append(this, replace(sample, tokens=seed))
            store.finish(this, [sample.index for sample in samples])
    return store


def held(finished: FinishedCell) -> tuple[object, ...]:
    """The content of a finished cell as plain values."""
    return (
        finished.cell,
        finished.refused,
        finished.deferred,
        finished.asked,
        [plain(sample) for sample in finished.samples],
    )


@pytest.fixture(scope="module")
def hundred(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hundred cells, packed."""
    path = tmp_path_factory.mktemp("hundred")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed, "MIN_NEW_CELLS_TO_PACK", 60)
        folder(path).write_records(records_of)
    return path


@pytest.fixture
def store(hundred: Path, tmp_path: Path) -> Store:
    """A copy of them, with its files' times."""
    shutil.copytree(hundred, tmp_path, dirs_exist_ok=True)
    return Store(tmp_path)


def by_file(store: Store) -> dict[str, tuple[object, ...]]:
    """Cells read from their own files."""
    files = sorted((store.folder / "cells").glob("*.parquet"))
    return {file.stem: held(format.read_cell_file(file)) for file in files}


@pytest.mark.slow
def test_a_packed_folder_holds_what_its_files_do(store: Store, tmp_path: Path) -> None:
    assert pq.read_table(tmp_path / "packed.parquet").num_rows == 99, "all but the large one"
    there = cell_file_states(tmp_path / "cells")
    assert len(CellPack(tmp_path).load(there)) == 99
    assert {each.cell.id: held(each) for each in Store(tmp_path).load()} == by_file(store)
    some = set(list(there)[:70])
    assert {each.cell.id for each in Store(tmp_path).load(some)} == some
    again = Store(tmp_path)
    assert [again.is_finished(a_cell(seed)) for seed in range(5)] == [True, True, False, True, True]


@pytest.mark.slow
def test_a_store_reads_no_small_cell_back_that_it_has_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = folder(tmp_path, 70)
    large, put_off = a_cell(3).id, a_cell(2).id
    files, there = by_file(store), cell_file_states(tmp_path / "cells")
    read, table_of = list[Path](), format.read_cell_table

    def noted(file: Path) -> pa.Table:
        read.append(file)
        return table_of(file)

    monkeypatch.setattr(format, "read_cell_table", noted)
    store.write_records(records_of)
    assert len(CellPack(tmp_path).load(there)) == 69, "all but the large one"
    assert {file.stem for file in read} == {large, put_off}
    assert {each.cell.id: held(each) for each in store.load()} == files
    # Few cells are read without the pack.
    wanted = [each for each in files if each not in (large, put_off)][:MAX_CELLS_READ_SINGLY]
    read.clear()
    assert {each.cell.id: held(each) for each in store.load(wanted)} == {each: files[each] for each in wanted}
    assert read == []
    # Another content of a file counts, though this object has written the one before.
    shutil.copy(tmp_path / "cells" / f"{large}.parquet", tmp_path / "cells" / f"{wanted[0]}.parquet")
    store.load(wanted)
    assert [file.stem for file in read] == [wanted[0]] and len(store.problems) == 1


def test_records_are_the_same_with_and_without(store: Store, tmp_path: Path) -> None:
    made = (tmp_path / "records.jsonl").read_bytes()
    store.write_records(records_of, afresh=True)
    assert (tmp_path / "records.jsonl").read_bytes() == made
    (tmp_path / "packed.parquet").write_bytes(b"")
    Store(tmp_path).write_records(records_of, afresh=True)
    assert (tmp_path / "records.jsonl").read_bytes() == made


def test_a_file_that_changed_speaks_for_itself(store: Store, tmp_path: Path) -> None:
    lost, damaged, other = a_cell(10), a_cell(11), a_cell(12)
    place = {cell.id: tmp_path / "cells" / f"{cell.id}.parquet" for cell in (lost, damaged, other)}
    place[lost.id].unlink()
    place[damaged.id].write_bytes(place[damaged.id].read_bytes()[:-8] + b"damaged!")
    place[other.id].unlink()
    store.refuse(other, "asked anew")
    now = Store(tmp_path)
    loaded = {each.cell.id: each for each in now.load()}
    assert lost.id not in loaded and damaged.id not in loaded
    assert [str(place[damaged.id]) in problem for problem in now.problems] == [True]
    assert loaded[other.id].refused == "asked anew"
    assert [now.is_finished(cell) for cell in (lost, damaged, other)] == [False, False, True]


def test_a_file_of_the_same_size_and_another_time_is_read(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "cells" / f"{a_cell(20).id}.parquet"
    about = file.stat()
    file.write_bytes(b"x" * about.st_size)
    os.utime(file, ns=(about.st_atime_ns, about.st_mtime_ns + 1))
    assert file.stat().st_size == about.st_size
    assert a_cell(20).id not in CellPack(tmp_path).load(cell_file_states(tmp_path / "cells"))


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "text", "other columns", "a folder"])
def test_a_damaged_pack_counts_as_deleted(store: Store, tmp_path: Path, damage: str) -> None:
    expected = by_file(store)
    pack = tmp_path / "packed.parquet"
    content = pack.read_bytes()
    if damage == "cut":
        pack.write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        middle = len(content) // 3
        pack.write_bytes(
            content[:middle] + bytes(255 - byte for byte in content[middle : middle + 64]) + content[middle + 64 :]
        )
    elif damage == "empty":
        pack.write_bytes(b"")
    elif damage == "text":
        pack.write_text("no parquet at all")
    elif damage == "other columns":
        pq.write_table(pq.read_table(pack).drop_columns(["again"]), pack)
    else:
        pack.unlink()
        pack.mkdir()
    now = Store(tmp_path)
    assert {each.cell.id: held(each) for each in now.load()} == expected
    assert now.problems == []
    assert now.is_finished(a_cell(5)) and not now.is_finished(a_cell(2))


@pytest.mark.slow
def test_a_pack_grows_by_tenths_and_drops_what_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "MIN_NEW_CELLS_TO_PACK", 10)
    store = folder(tmp_path, 200)
    store.write_records(records_of)

    def rows() -> set[str]:
        return set(pq.read_table(tmp_path / "packed.parquet", columns=["name"])["name"].to_pylist())

    first = rows()
    assert len(first) == 199

    def more(seeds: range) -> None:
        for seed in seeds:
            store.refuse(a_cell(seed), "none")
        store.write_records(records_of)

    more(range(300, 319))
    assert rows() == first, "19 are fewer than a tenth of 199"
    gone = a_cell(50)
    (tmp_path / "cells" / f"{gone.id}.parquet").unlink()
    more(range(319, 320))
    new = {a_cell(seed).id for seed in range(300, 320)}
    assert rows() == first - {gone.id} | new
    assert {each.cell.id: held(each) for each in Store(tmp_path).load()} == by_file(store)


def test_a_small_folder_is_not_packed(tmp_path: Path) -> None:
    folder(tmp_path, 50).write_records(records_of)
    assert not (tmp_path / "packed.parquet").exists()


def test_records_that_nothing_has_changed_are_left_alone(tmp_path: Path) -> None:
    store = folder(tmp_path, 5)
    records = tmp_path / "records.jsonl"
    store.write_records(records_of)
    made, written = records.read_bytes(), records.stat().st_mtime_ns
    Store(tmp_path).write_records(records_of)
    assert records.stat().st_mtime_ns == written
    records.write_bytes(b"damaged\n")
    Store(tmp_path).write_records(records_of)
    assert records.read_bytes() == made
    store.refuse(a_cell(2), "asked anew: it was put off before")
    store.write_records(records_of)
    assert b"asked anew" in records.read_bytes()


def test_the_first_reader_packs_a_folder_without_a_pack(store: Store, tmp_path: Path) -> None:
    """From the second on no file of a packed cell is opened."""
    whole = [held(each) for each in store.load()]
    (tmp_path / "packed.parquet").unlink()
    assert [held(each) for each in Store(tmp_path).load()] == whole
    assert (tmp_path / "packed.parquet").exists()
    opened: list[str] = []
    plain_read = format.read_cell_file

    def noted(file: Path, *_: object) -> FinishedCell:
        opened.append(file.stem)
        return plain_read(file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(format, "read_cell_file", noted)
        assert [held(each) for each in Store(tmp_path).load()] == whole
    assert len(opened) == 1  # the large one


def test_a_reader_packs_nothing_of_some_cells_by_name_nor_where_it_may_not_write(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "packed.parquet").unlink()
    names = sorted(cell_file_states(tmp_path / "cells"))
    assert len(Store(tmp_path).load(names[:80])) == 80
    assert not (tmp_path / "packed.parquet").exists()

    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(packed, "write_bytes", refused)
    assert len(Store(tmp_path).load()) == len(names)
    assert not (tmp_path / "packed.parquet").exists()
