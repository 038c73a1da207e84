"""A run folder keeps samples exactly, even if its process is killed."""

import errno
import fcntl
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lexbench.commands import main
from lexbench.core.record import Cell, Sample
from lexbench.stats import costs
from lexbench.stats.records import records_of
from lexbench.store.format import FinishedCell, read_cell_table
from lexbench.store.store import Store, _derived
from tests.report.fake_run import cell, finished, keep, likelihood_sample
from tools.keep_records import read_records

ODD = np.array([0.0, -0.0, 1e-45, 3.4028235e38, np.inf, -np.inf, 1 / 3], np.float32)
PAYLOAD = np.array([0x7FC01234], np.uint32).view(np.float32)  # a NaN that is not the usual one
SAMPLES = [
    Sample(index=0, cluster="a", tokens=7, nll=np.concatenate([ODD, PAYLOAD]), bytes=12, words=3),
    Sample(index=1, cluster='ü "|\u2028\n', tokens=8, nll=np.empty(0, np.float32), failed="no\nanswer"),
    Sample(
        index=2,
        cluster="c",
        tokens=9,
        truncated=True,
        scores={"accuracy": 0.1, "contains": 1 / 3},
        output="\x00 12 \U0001f600",
        hit_room=True,
        depth=2 / 3,
        facts={"expected": "12", "place": [1, {"deep": None}], "ratio": 1e-300},
    ),
    Sample(index=3, cluster="", tokens=10, scores={}, output="", hit_room=False, depth=0.0),
    Sample(
        index=4,
        cluster="e",
        tokens=11,
        scores={"accuracy": 0.5},
        chance=1 / 9,
        prompt="\x00 where?\n",
        parts=("words 0-4k", 'ü "|\n'),
        statistics={
            "option_nll": np.concatenate([ODD, PAYLOAD]),
            "cube": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
            "turned": np.arange(6, dtype=np.float32).reshape(2, 3).T,
            "nothing": np.empty((0, 3), np.float32),
            "one": np.array(1.5, np.float32),
        },
    ),
]


def plain(sample: Sample) -> dict[str, Any]:
    """Fields of a sample; arrays as their bits."""
    row = {field.name: getattr(sample, field.name) for field in fields(sample)}
    statistics = {name: (array.shape, bits(array)) for name, array in sample.statistics.items()}
    return {**row, "nll": None if sample.nll is None else bits(sample.nll), "statistics": statistics}


def indices(samples: list[Sample]) -> list[int]:
    return [sample.index for sample in samples]


def bits(array: np.ndarray) -> tuple[str, bytes]:
    return str(array.dtype), array.tobytes()


def fill(folder: Path, this: Cell, samples: list[Sample]) -> Store:
    store = Store(folder)
    for sample in samples:
        store.append(this, sample)
    return store


def test_samples_come_back_bit_for_bit_before_and_after_a_cell_is_finished(tmp_path: Path) -> None:
    this = cell("last_segment", "none", 256)
    store = fill(tmp_path, this, SAMPLES)
    expected = [plain(sample) for sample in SAMPLES]
    assert [plain(sample) for sample in store.resume(this)] == expected
    assert not store.is_finished(this)
    store.finish(this, indices(SAMPLES))
    [found] = Store(tmp_path).load()
    assert [plain(sample) for sample in found.samples] == expected
    assert (found.cell, found.refused) == (this, None)
    assert store.is_finished(this)
    assert store.resume(this) == []


def test_numbers_of_numpy_in_facts_become_plain_ones(tmp_path: Path) -> None:
    this = cell("passkey", "none", 256)
    facts = {"place": np.int64(3), "share": np.float32(0.5), "row": np.array([1, 2])}
    store = fill(tmp_path, this, [Sample(index=0, cluster="a", tokens=1, facts=facts)])
    assert store.resume(this)[0].facts == {"place": 3, "share": 0.5, "row": [1, 2]}
    with pytest.raises(TypeError, match="facts must hold JSON values"):
        store.append(this, Sample(index=1, cluster="a", tokens=1, facts={"folder": tmp_path}))


def test_the_same_samples_give_the_same_bytes_in_whatever_order_they_came(tmp_path: Path) -> None:
    this = cell("last_segment", "none", 256)
    contents = []
    for number, samples in enumerate([SAMPLES, SAMPLES[::-1]]):
        fill(tmp_path / str(number), this, samples).finish(this, indices(samples))
        contents.append((tmp_path / str(number) / "cells" / f"{this.id}.parquet").read_bytes())
    assert contents[0] == contents[1]


def test_a_file_states_its_cell_once_and_its_schema_is_that_of_older_files(tmp_path: Path) -> None:
    this = cell("passkey", "none", 256)
    fill(tmp_path, this, [Sample(index=0, cluster="a", tokens=1)]).finish(this, [0])
    file = tmp_path / "cells" / f"{this.id}.parquet"
    table = read_cell_table(file)
    assert file.read_bytes().count(table.schema.metadata[b"cell"]) == 1
    assert b"ARROW:schema" not in file.read_bytes()
    pq.write_table(pq.read_table(file), tmp_path / "older.parquet")  # as files were written before
    older = read_cell_table(tmp_path / "older.parquet")
    assert older.equals(table) and older.schema.equals(table.schema, check_metadata=True)


def test_losses_take_hardly_more_than_their_four_bytes_each(tmp_path: Path) -> None:
    this = cell("last_segment", "none", 256)
    samples = [likelihood_sample(index, 256, 0.0, targets=1024) for index in range(16)]
    fill(tmp_path, this, samples).finish(this, indices(samples))
    assert (tmp_path / "cells" / f"{this.id}.parquet").stat().st_size < 1.1 * 4 * 16 * 1024


LIKELIHOODS = [likelihood_sample(index, 256, 0.0, targets=3) for index in range(3)]


@pytest.mark.parametrize("samples", [LIKELIHOODS, SAMPLES], ids=["likelihoods", "odd"])
def test_a_process_may_die_at_any_byte_and_the_next_one_goes_on(tmp_path: Path, samples: list[Sample]) -> None:
    this = cell("last_segment", "none", 256)
    fill(tmp_path / "whole", this, samples).finish(this, indices(samples))
    whole = (tmp_path / "whole/cells" / f"{this.id}.parquet").read_bytes()
    fill(tmp_path / "torn", this, samples)
    file = tmp_path / "torn/cells" / f"{this.id}.jsonl"
    content = file.read_bytes()
    for size in range(0, len(content), 41):
        file.write_bytes(content[:size])
        store = Store(tmp_path / "torn")
        done = store.resume(this)
        assert len(done) == max(0, content[:size].count(b"\n") - 1)
        for sample in samples[len(done) :]:
            store.append(this, sample)
        store.finish(this, indices(samples))
        assert [entry.name for entry in file.parent.glob("[!.]*")] == [f"{this.id}.parquet"]
        assert file.with_suffix(".parquet").read_bytes() == whole
        file.with_suffix(".parquet").unlink()


def test_a_line_that_is_damaged_inside_the_file_is_named(tmp_path: Path) -> None:
    this = cell("last_segment", "none", 256)
    store = fill(tmp_path, this, SAMPLES)
    file = tmp_path / "cells" / f"{this.id}.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([lines[0], b"{torn\n", *lines[2:]]))
    with pytest.raises(ValueError, match=rf"{file.name} must hold JSON lines: delete it"):
        store.resume(this)


def test_a_refusal_is_a_finished_cell_without_samples(tmp_path: Path) -> None:
    this = cell("passkey", "none", 16)
    store = fill(tmp_path, this, SAMPLES[2:])
    store.refuse(this, "too short: raise length")
    [found] = store.load()
    assert (found.cell, found.samples, found.refused) == (this, [], "too short: raise length")
    assert store.is_finished(this)
    assert store.unfinished_cells() == []


def test_what_is_begun_and_not_finished_is_listed(tmp_path: Path) -> None:
    store = keep(tmp_path, [finished("passkey", "none", 256, n=2)])
    left = [cell("passkey", "ntk", 256), cell("passkey", "pi", 256)]
    for this in left:
        store.append(this, SAMPLES[2])
    (tmp_path / "cells/0000.jsonl").write_bytes(b'{"mod')
    assert {this.id for this in store.unfinished_cells()} == {this.id for this in left}


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped", "other words"])
def test_a_damaged_file_is_named_and_the_others_are_read(tmp_path: Path, damage: str) -> None:
    good, bad = finished("last_segment", "none", 256, n=4), finished("last_segment", "ntk", 256, n=4)
    store = keep(tmp_path, [good, bad])
    file = tmp_path / "cells" / f"{bad.cell.id}.parquet"
    content = bytearray(file.read_bytes())
    if damage == "flipped":
        content[4:200] = bytes(196)
    other = file.read_bytes().replace(b"context grows", b"context shows")  # no part of the identity
    assert other != file.read_bytes()
    damages = {
        "cut": bytes(content[: len(content) // 2]),
        "empty": b"",
        "flipped": bytes(content),
        "other words": other,
    }
    file.write_bytes(damages[damage])
    assert [each.cell.id for each in store.load()] == [good.cell.id]
    [problem] = store.problems
    assert str(file) in problem
    assert "\n" not in problem
    assert not store.is_finished(bad.cell)
    assert store.is_finished(good.cell)


def test_a_damaged_file_is_replaced_by_measuring_again(tmp_path: Path) -> None:
    this = finished("last_segment", "none", 256, n=4)
    store = keep(tmp_path, [this])
    (tmp_path / "cells" / f"{this.cell.id}.parquet").write_bytes(b"PAR1")
    keep(tmp_path, [this])
    assert len(store.load()) == 1
    assert store.problems == []


def test_a_cell_of_another_version_is_a_problem_with_a_remedy(tmp_path: Path) -> None:
    begun, done = cell("passkey", "none", 256), finished("passkey", "none", 512, n=2)
    store = keep(tmp_path, [done])
    fill(tmp_path, begun, SAMPLES[2:])
    lines, table = tmp_path / "cells" / f"{begun.id}.jsonl", tmp_path / "cells" / f"{done.cell.id}.parquet"
    lines.write_bytes(lines.read_bytes().replace(b'"protocol"', b'"procedure"', 1))
    written = pq.read_table(table)
    about = {key: value.replace(b'"protocol"', b'"procedure"', 1) for key, value in written.schema.metadata.items()}
    del about[b"digest"]
    pq.write_table(written.replace_schema_metadata(about), table)
    assert store.load() == []
    assert store.unfinished_cells() == []
    assert len(store.problems) == 2
    assert all("another version of lexbench (differs in procedure, protocol)" in said for said in store.problems)


def test_a_full_disk_leaves_what_was_there_and_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    earlier, this = finished("passkey", "none", 256, n=3), cell("passkey", "ntk", 256)
    store = keep(tmp_path, [earlier])
    for sample in SAMPLES:
        store.append(this, sample)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            store.finish(this, indices(SAMPLES))
        with pytest.raises(OSError, match="No space left"):
            store.refuse(this, "no")
        with pytest.raises(OSError, match="No space left"):
            store.write_records(lambda _: [], afresh=True)
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before
    store.finish(this, indices(SAMPLES))
    assert len(store.load()) == 2


def test_a_cell_that_another_process_has_finished_stays_as_it_is(tmp_path: Path) -> None:
    this = cell("passkey", "none", 256)
    fill(tmp_path, this, SAMPLES).finish(this, indices(SAMPLES))
    before = (tmp_path / "cells" / f"{this.id}.parquet").read_bytes()
    fill(tmp_path, this, SAMPLES[:1]).finish(this, indices(SAMPLES))  # the slower one's last sample
    assert {file.name: file.read_bytes() for file in (tmp_path / "cells").glob("[!.]*")} == {
        f"{this.id}.parquet": before
    }


def test_a_cell_that_lacks_samples_is_not_finished(tmp_path: Path) -> None:
    this = cell("passkey", "none", 256)
    store = fill(tmp_path, this, SAMPLES[:2])
    with pytest.raises(ValueError, match=rf"cell {this.id} of .* has 2 of 5 samples: run the same command again"):
        store.finish(this, range(5))
    assert not store.is_finished(this) and len(store.resume(this)) == 2
    for sample in SAMPLES[2:]:
        store.append(this, sample)
    store.finish(this, range(5))
    assert store.is_finished(this)


def test_a_cell_states_how_many_questions_were_asked_and_so_does_its_twin(tmp_path: Path) -> None:
    this, twin = cell("passkey", "none", 256), cell("passkey", "pi", 256)
    store = fill(tmp_path, this, SAMPLES)
    store.finish(this, indices(SAMPLES))
    assert store.adopt_twin(twin, this.id)
    assert [each.asked for each in store.load()] == [5, 5]
    store.refuse(cell("passkey", "yarn", 256), "no")
    assert sorted(str(each.asked) for each in store.load()) == ["5", "5", "None"]


def test_a_cost_that_a_killed_process_has_torn_spoils_no_other(tmp_path: Path) -> None:
    store, seconds = Store(tmp_path), [1.0, 2.0, 4.0]
    cells = [cell("passkey", method, 256) for method in ("none", "pi", "yarn")]
    for this, each in zip(cells, seconds, strict=True):
        store.cost(this, seconds=each, tokens=1, peak_bytes=1)
        if this is cells[1]:
            file = tmp_path / "costs.jsonl"
            file.write_bytes(file.read_bytes()[:-9])
    found = costs.costs_of_file(tmp_path / "costs.jsonl")
    assert {name: each.seconds for name, each in found.items()} == {cells[0].id: 1.0, cells[2].id: 4.0}


def test_only_a_cell_that_was_measured_is_adopted(tmp_path: Path) -> None:
    this, refused, absent = (cell("passkey", method, 256) for method in ("none", "pi", "yarn"))
    store = Store(tmp_path)
    store.refuse(refused, "no")
    assert not store.adopt_twin(this, refused.id) and not store.adopt_twin(this, absent.id)
    assert [each.cell.id for each in store.load()] == [refused.id]


@pytest.mark.parametrize("moved", ["cell", "cells", "folder"])
def test_a_claimed_cell_whose_file_has_vanished_is_not_begun_anew(tmp_path: Path, moved: str) -> None:
    this, store, away = cell("passkey", "none", 256), Store(tmp_path / "run"), tmp_path / "away"
    file = tmp_path / "run/cells" / f"{this.id}.jsonl"
    place = {"cell": file, "cells": file.parent, "folder": tmp_path / "run"}[moved]
    said = "run folder .*run was moved or removed while it was measured: put it back, or run the same command again"
    with store.claim(this):
        for sample in SAMPLES[:2]:
            store.append(this, sample)
        place.rename(away)
        acts: list[Callable[[], None]] = [
            lambda: store.append(this, SAMPLES[2]),
            lambda: store.finish(this, indices(SAMPLES)),
            lambda: store.refuse(this, "no"),
            lambda: store.defer(this, "not now"),
        ]
        for act in acts:
            with pytest.raises(ValueError, match=said):
                act()
    assert not file.exists() and not place.exists()
    if moved != "cell":
        with pytest.raises(ValueError, match=said), store.claim(cell("passkey", "none", 512)):
            pass
        with pytest.raises(ValueError, match=said):
            store.cost(this, 1.0, 1, None)
        with pytest.raises(ValueError, match=said):
            store.write_records(records_of)
    assert not place.exists()
    away.rename(place)
    again = Store(tmp_path / "run")
    assert indices(again.resume(this)) == indices(SAMPLES[:2])


def test_a_cell_that_another_process_finishes_meanwhile_needs_no_more_samples(tmp_path: Path) -> None:
    """If the file system does not support locks, both measure the cell."""
    this, store = cell("passkey", "none", 256), Store(tmp_path)
    with store.claim(this):
        store.append(this, SAMPLES[0])
        fill(tmp_path, this, SAMPLES[1:]).finish(this, indices(SAMPLES))
        store.append(this, SAMPLES[1])
        store.finish(this, indices(SAMPLES))
    assert store.is_finished(this) and store.unfinished_cells() == []
    [found] = store.load()
    assert indices(found.samples) == indices(SAMPLES)


def test_leftovers_of_a_process_killed_while_it_finished_a_cell_are_cleared(tmp_path: Path) -> None:
    this = finished("passkey", "none", 256, n=3)
    store = keep(tmp_path, [this])
    lines, temporary = (tmp_path / "cells" / name for name in (f"{this.cell.id}.jsonl", f".{this.cell.id}.parquet.ab1"))
    lines.write_bytes(b"{}\n")
    temporary.write_bytes(b"PAR1")
    written = tmp_path / "cells" / f".{cell('passkey', 'none', 512).id}.parquet.ab2"
    with written.open("wb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)  # as whoever is about to put it in its place
        store.write_records(lambda _: [])
        assert written.exists()
    assert not lines.exists()
    assert not temporary.exists()
    (tmp_path / "records.jsonl").unlink()
    store.write_records(lambda _: [])
    assert not written.exists()
    assert [file.name for file in (tmp_path / "cells").glob("[!.]*")] == [f"{this.cell.id}.parquet"]


@pytest.mark.slow
def test_writers_of_different_cells_do_not_hurt_one_another(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.report.fake_run import LENGTHS, finished, keep\n"
        "keep(Path(sys.argv[1]), [finished('last_segment', sys.argv[2], length, n=8) for length in LENGTHS])"
    )
    root = Path(__file__).parent.parent.parent
    environment = {**os.environ, "PYTHONPATH": str(root)}
    writers = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "both"), method], env=environment)
        for method in ("none", "ntk")
    ]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    keep(tmp_path / "one", [finished("last_segment", m, k, n=8) for m in ("none", "ntk") for k in (128, 256, 512)])
    both = {file.name: file.read_bytes() for file in (tmp_path / "both/cells").glob("[!.]*")}
    one = {file.name: file.read_bytes() for file in (tmp_path / "one/cells").glob("[!.]*")}
    assert len(both) == 10
    assert one.items() <= both.items()
    assert len((tmp_path / "both/costs.jsonl").read_text().splitlines()) == 10


def test_a_few_cells_can_be_loaded_by_their_ids(tmp_path: Path) -> None:
    cells = [finished("passkey", "none", length, n=2) for length in (256, 512)]
    store = keep(tmp_path, cells)
    assert [each.cell for each in store.load([cells[1].cell.id])] == [cells[1].cell]


def test_records_are_sorted_and_their_lines_are_strict_json(tmp_path: Path) -> None:
    cells = [
        finished(task, m, k, n=4) for task in ("passkey", "last_segment") for m in ("pi", "none") for k in (512, 256)
    ]
    keep(tmp_path, cells)

    def strict(constant: str) -> None:
        raise AssertionError(constant)

    rows = [json.loads(line, parse_constant=strict) for line in (tmp_path / "records.jsonl").open()]
    order = [(row["model"], row["task"], row["method"], row["length"], row["metric"]) for row in rows]
    assert order == sorted(order)
    assert len(rows) == 4 * 4 + 4 * 4  # four metrics of a likelihood; two scores of a passkey, two that follow


def test_costs_are_kept_apart(tmp_path: Path) -> None:
    this = finished("passkey", "none", 256, n=2)
    store = keep(tmp_path, [this])
    before = {file.name: file.read_bytes() for file in (tmp_path / "cells").glob("[!.]*")}
    store.cost(this.cell, seconds=2.0, tokens=512, peak_bytes=1 << 30)
    rows = [json.loads(line) for line in (tmp_path / "costs.jsonl").open()]
    assert rows[1] == {
        "cell": this.cell.id,
        "seconds": 2.0,
        "tokens": 512,
        "peak_bytes": 1 << 30,
        "own_peak": False,
        "timings": [],
    }
    assert {file.name: file.read_bytes() for file in (tmp_path / "cells").glob("[!.]*")} == before


def test_other_tools_read_a_cell_as_a_table(tmp_path: Path) -> None:
    this = cell("last_segment", "none", 256)
    fill(tmp_path, this, [replace(sample, failed=None) for sample in SAMPLES]).finish(this, indices(SAMPLES))
    table = pd.read_parquet(tmp_path / "cells" / f"{this.id}.parquet")
    assert list(table.columns) == [field.name for field in fields(Sample)]
    assert list(table["tokens"]) == [7, 8, 9, 10, 11]
    assert list(table["parts"][4]) == ["words 0-4k", 'ü "|\n']
    assert json.loads(table["statistics"][4])["cube"]["shape"] == [2, 3, 4]
    assert table["nll"][0].dtype == np.float32
    assert json.loads(table["scores"][2]) == {"accuracy": 0.1, "contains": 1 / 3}


NEW = ("chance", "parts", "statistics", "prompt")
"""Fields that the oldest files lack."""


def test_files_of_older_versions_are_read(tmp_path: Path) -> None:
    this = cell("last_segment", "none", 256)
    store = fill(tmp_path, this, SAMPLES)
    lines = tmp_path / "cells" / f"{this.id}.jsonl"
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    older = [{name: value for name, value in row.items() if name not in NEW} for row in rows]
    lines.write_text("".join(f"{json.dumps(row)}\n" for row in older))
    expected = [plain(replace(sample, chance=None, parts=(), statistics={}, prompt=None)) for sample in SAMPLES]
    assert [plain(sample) for sample in store.resume(this)] == expected
    fill(tmp_path / "new", this, SAMPLES).finish(this, indices(SAMPLES))
    written = pq.read_table(tmp_path / "new/cells" / f"{this.id}.parquet")
    about = {key: value for key, value in written.schema.metadata.items() if key in (b"cell", b"refused")}
    pq.write_table(written.drop_columns(list(NEW)).replace_schema_metadata(about), lines.with_suffix(".parquet"))
    [found] = store.load()
    assert [plain(sample) for sample in found.samples] == expected
    assert (found.cell, found.asked, store.problems) == (this, None, [])


def test_a_cell_that_is_finished_while_it_is_looked_at_is_not_unfinished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, done = cell("passkey", "none", 256), cell("passkey", "ntk", 256)
    for each in (begun, done):
        fill(tmp_path, each, SAMPLES[2:])
    listed = sorted((tmp_path / "cells").glob("*.jsonl"))
    Store(tmp_path).finish(done, indices(SAMPLES[2:]))
    monkeypatch.setattr(Path, "glob", lambda folder, pattern: listed)
    assert Store(tmp_path).unfinished_cells() == [begun]


def test_files_of_newer_versions_are_problems_with_a_remedy(tmp_path: Path) -> None:
    done, begun = finished("passkey", "none", 256, n=2), cell("passkey", "none", 512)
    store = keep(tmp_path, [done])
    table = tmp_path / "cells" / f"{done.cell.id}.parquet"
    written = pq.read_table(table)
    pq.write_table(written.append_column("mood", written.column("output")), table)
    fill(tmp_path, begun, SAMPLES[2:])
    lines = tmp_path / "cells" / f"{begun.id}.jsonl"
    lines.write_text(lines.read_text().replace('"hit_room"', '"mood": 1, "hit_room"'))
    said = r"written by a newer version of lexbench \(it has mood\): use that version"
    assert store.load() == []
    assert re.search(said, store.problems[0])
    with pytest.raises(ValueError, match=said):
        store.resume(begun)


def test_committed_cells_are_such_files_and_give_records() -> None:
    store = Store(Path(__file__).parent.parents[1] / "results/reference/lexlet")
    names = sorted(file.stem for file in (store.folder / "cells").glob("[!.]*"))[:8]
    found = store.load(names)
    assert [each.cell.id for each in found] == names
    assert store.problems == []
    known = {(each.cell, each.metric): vars(each) for each in read_records(store.folder.with_suffix(".parquet"))}
    for each in found:
        old = each.cell.task.startswith("last_segment")
        assert all((sample.parts, sample.statistics) == ((), {}) for sample in each.samples)
        assert all((sample.chance is None) == old for sample in each.samples)
        found_now = {record.metric: record for record in records_of(each)}
        found_then = {metric for cell, metric in known if cell == each.cell.id}
        # Since then two scores of a passkey follow from its samples.
        assert found_now.keys() - found_then == (set() if old else {"in_place", "reached"})
        for metric in found_then:
            record, row = found_now[metric], known[each.cell.id, metric]
            assert (record.part, record.chance, record.n) == (row["part"], row["chance"], row["n"])
            for name in ("value", "low"):  # the last bits differ between processors
                assert getattr(record, name) == (row[name] and pytest.approx(row[name], rel=1e-12)), name


def test_records_are_written_where_something_has_changed(tmp_path: Path) -> None:
    cells = [finished("passkey", "none", length, n=3) for length in (256, 512)]
    keep(tmp_path, [*cells, FinishedCell(cell("passkey", "pi", 256), [], "no way")])
    file = tmp_path / "records.jsonl"
    for left in (tmp_path / "cells").glob("[!.]*"):
        os.utime(left, (1, 1))  # long before
    whole, first = file.read_text(), file.stat().st_mtime_ns

    def again() -> str:
        _derived.clear()  # as another process
        Store(tmp_path).write_records(records_of)
        return file.read_text()

    assert (again(), file.stat().st_mtime_ns) == (whole, first)
    file.write_text(whole + '{"cell": "half a li')
    assert again() == whole
    file.write_text("".join(whole.splitlines(keepends=True)[:4]))  # of one cell
    assert again() == whole
    file.write_text("".join(reversed(whole.splitlines(keepends=True))))
    assert again() == whole
    (tmp_path / f"cells/{cells[0].cell.id}.parquet").unlink()
    assert [json.loads(line)["length"] for line in again().splitlines()] == [512, 512, 512, 512, 256]


def test_records_of_parts_stand_behind_those_of_the_whole(tmp_path: Path) -> None:
    this = finished("passkey", "none", 256, n=4)
    parts = [("words 8k+",), ("words 0-4k", "code"), (), ("words 0-4k",)]
    samples = [replace(sample, parts=part) for sample, part in zip(this.samples, parts, strict=True)]
    keep(tmp_path, [replace(this, samples=samples)])
    rows = [json.loads(line) for line in (tmp_path / "records.jsonl").open()]
    assert [(row["metric"], row["part"], row["n"]) for row in rows] == [
        (metric, *part)
        for metric in ("accuracy", "contains", "in_place", "reached")
        for part in ((None, 4), ("code", 1), ("words 0-4k", 2), ("words 8k+", 1))
    ]


def test_a_cell_that_is_put_off_is_refused_for_now_and_keeps_its_samples(tmp_path: Path) -> None:
    this = cell("last_segment", "none", 256)
    store = fill(tmp_path, this, SAMPLES[:2])
    store.defer(this, "server is down")
    [found] = store.load()
    assert (found.refused, found.samples) == ("server is down", [])
    assert not store.is_finished(this)
    store.write_records(records_of)
    assert [plain(sample) for sample in Store(tmp_path).resume(this)] == [plain(sample) for sample in SAMPLES[:2]]
    for sample in SAMPLES[2:]:
        store.append(this, sample)
    store.finish(this, indices(SAMPLES))
    [found] = store.load()
    assert found.refused is None and store.is_finished(this)
    assert [plain(sample) for sample in found.samples] == [plain(sample) for sample in SAMPLES]


def test_a_claim_that_ends_early_leaves_its_samples_and_one_without_samples_leaves_nothing(tmp_path: Path) -> None:
    this, store = cell("passkey", "none", 256), Store(tmp_path)
    with store.claim(this) as mine:
        assert mine
        with Store(tmp_path).claim(this) as twice:
            assert not twice
    assert list((tmp_path / "cells").glob("[!.]*")) == []
    with store.claim(this):
        store.append(this, SAMPLES[0])
        with Store(tmp_path).claim(this) as twice:
            assert not twice
    assert [plain(each) for each in store.resume(this)] == [plain(SAMPLES[0])]
    with store.claim(this) as mine:
        assert mine  # the lock has ended with the claim


def test_seconds_are_kept_to_milliseconds_and_timings_to_microseconds(tmp_path: Path) -> None:
    Store(tmp_path).cost(cell("passkey", "none", 256), 1.23456, 7, None, timings=[(0.00123456789, 3)])
    [row] = [json.loads(line) for line in (tmp_path / "costs.jsonl").open()]
    assert (row["seconds"], row["timings"]) == (1.235, [[0.001235, 3]])
    assert (row["tokens"], row["peak_bytes"], row["own_peak"]) == (7, None, False)


def pipe(place: Path) -> None:
    os.mkfifo(place)


def loop(place: Path) -> None:
    place.symlink_to(place.name)


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("odd", [pipe, loop, Path.mkdir], ids=["pipe", "loop of links", "folder"])
def test_what_is_no_file_among_cells_is_named_and_the_others_are_read(
    odd: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every command that reads a run folder goes on; to open a pipe would wait for ever."""
    good = [finished("passkey", method, 256, n=4) for method in ("none", "ntk")]
    store = keep(tmp_path / "run", good)
    for name in ("cells/0123.parquet", "cells/4567.jsonl", "packed.parquet"):
        odd(tmp_path / "run" / name)
    assert [each.cell.id for each in store.load()] == sorted(each.cell.id for each in good)
    [unread] = store.problems
    assert "cells/0123.parquet cannot be read" in unread
    assert store.unfinished_cells() == [] and "cells/4567.jsonl cannot be read" in store.problems[-1]
    assert len(store.write_records(records_of, afresh=True)) == 2
    for command, code in (("doctor", 1), ("report", 0), ("leaderboard", 0)):
        assert main.main([command, str(tmp_path / "run")]) == code
    (tmp_path / "run/costs.jsonl").unlink()
    for name in ("costs.jsonl", "jobs"):
        odd(tmp_path / "run" / name)
    assert main.main(["report", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    assert costs.load_costs([tmp_path / "run"]) == {}


@pytest.mark.parametrize("odd", [pipe, loop, Path.mkdir], ids=["pipe", "loop of links", "folder"])
def test_where_samples_should_stand_only_a_file_is_opened(odd: Callable[[Path], None], tmp_path: Path) -> None:
    this = cell("passkey", "none", 256)
    (tmp_path / "cells").mkdir()
    odd(tmp_path / f"cells/{this.id}.jsonl")
    with pytest.raises(OSError, match=rf"{this.id}\.jsonl"), Store(tmp_path).claim(this):
        pass
    if odd is not loop:
        with pytest.raises(OSError, match=rf"Not a regular file.*{this.id}\.jsonl"):
            Store(tmp_path).resume(this)


def test_samples_of_another_cell_are_not_taken(tmp_path: Path) -> None:
    this, other = cell("passkey", "none", 256), cell("passkey", "ntk", 256)
    store = fill(tmp_path, other, SAMPLES[2:])
    file = tmp_path / f"cells/{other.id}.jsonl"
    file.rename(file.with_name(f"{this.id}.jsonl"))
    with pytest.raises(ValueError, match=rf"{this.id}\.jsonl are of another cell, {other.id}: delete it, run again"):
        store.resume(this)
    with pytest.raises(ValueError, match="are of another cell"):
        store.finish(this, indices(SAMPLES[2:]))
    assert store.unfinished_cells() == [] and "are of another cell" in store.problems[0]


def test_an_index_that_nobody_asked_is_not_taken(tmp_path: Path) -> None:
    this = cell("passkey", "none", 256)
    store = fill(tmp_path, this, SAMPLES[2:])
    said = rf"{this.id}\.jsonl have index 4, which is not asked: delete it and run the command again"
    with pytest.raises(ValueError, match=said):
        store.resume(this, [2, 3])
    with pytest.raises(ValueError, match=said):
        store.finish(this, [2, 3])
    assert indices(store.resume(this, [1, 2, 3, 4])) == [2, 3, 4]


@pytest.mark.parametrize("few", [True, False], ids=["file", "pack"])
def test_samples_that_another_program_has_changed_are_not_read(few: bool, tmp_path: Path, monkeypatch: Any) -> None:
    """Cut targets, the rows of another cell, a text: the pages of the new file are whole, and so is its metadata."""
    if not few:
        monkeypatch.setattr("lexbench.store.store.MAX_CELLS_READ_SINGLY", 0)
        monkeypatch.setattr("lexbench.store.packed.MIN_NEW_CELLS_TO_PACK", 1)
    one, other = finished("last_segment", "none", 256, n=4), finished("last_segment", "none", 512, n=4)
    store = keep(tmp_path, [one, other])
    file = tmp_path / f"cells/{one.cell.id}.parquet"
    good, foreign = pq.read_table(file), pq.read_table(tmp_path / f"cells/{other.cell.id}.parquet")
    cut = pa.array([each.as_py()[:10] for each in good.column("nll")], pa.list_(pa.float32()))
    place = good.column_names.index("nll")
    said = pa.array(["mine"] * 4)
    for changed in (
        good.set_column(place, good.schema.field("nll"), cut),
        foreign.replace_schema_metadata(good.schema.metadata),
        good.set_column(good.column_names.index("output"), good.schema.field("output"), said),
        good.slice(0, 3),
        pa.concat_tables([good, good.slice(0, 1)]),
    ):
        pq.write_table(changed, file)
        store = Store(tmp_path)
        store.write_records(records_of, afresh=True)
        assert [each.cell.id for each in Store(tmp_path).load()] == [other.cell.id]
        assert "its samples have changed" in store.problems[0]
    pq.write_table(good, file, compression="gzip")  # the same samples, laid out otherwise
    assert len(Store(tmp_path).load()) == 2
