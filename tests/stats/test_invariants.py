"""What holds of every finished cell; a cell that breaks it is not shown, ranked or compared."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lexbench.commands.main import main
from lexbench.core.method_key import parse_label
from lexbench.report.doctor import examine_runs
from lexbench.stats import records
from lexbench.stats.invariants import record_problems, sample_faults
from lexbench.store.cell_rows import read_key
from lexbench.store.format import FinishedCell, cell_line, cell_parquet
from lexbench.store.store import Store
from tests.report.fake_run import cell, fake_cells, finished, keep
from tests.report.outcomes import answers, folder, right, texts

GOOD = texts("none", [3.0, 2.5, 2.0])


def changed(index: int, **fields: Any) -> FinishedCell:
    """The good cell with one sample changed."""
    return replace(GOOD, samples=[replace(each, **fields) if each.index == index else each for each in GOOD.samples])


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (replace(GOOD, samples=GOOD.samples[:2]), "2 of 3 samples"),
        (replace(GOOD, samples=[]), "0 of 3 samples"),
        (replace(GOOD, samples=[*GOOD.samples, replace(GOOD.samples[0], index=3)]), "4 of 3 samples"),
        (replace(GOOD, samples=[GOOD.samples[0], *GOOD.samples[:2]]), "an index twice"),
        (replace(GOOD, asked=5), "3 of 5 samples"),
        (FinishedCell(cell("a_users_own", "none", 512, n=2), GOOD.samples, asked=4), "3 of 4 samples"),
        (FinishedCell(cell("a_users_own", "none", 512, n=2), [], asked=0), "0 of 0 samples"),
        (replace(GOOD, refused="too short"), "samples, though it is refused"),
        (changed(1, nll=np.array([1, -0.5, 1, 1], np.float32)), "sample 1 with a negative log-likelihood of -0.5"),
        (changed(1, nll=np.array([1, np.nan, 1, 1], np.float32)), "sample 1 with a negative log-likelihood of -inf"),
        (changed(1, nll=np.array([1, np.inf, 1, 1], np.float32)), "must be finite and at least 0"),
        (changed(2, tokens=513), "sample 2 with 513 tokens, more than the length"),
        (changed(2, floors={"bigram": -1.0}), "bigram floor -1"),
        (changed(2, depth=1.25), "depth 1.25, which must be in [0, 1]"),
        (replace(GOOD, cell=replace(GOOD.cell, length=1024)), "length 1024, though its identity says 512"),
        (replace(GOOD, cell=replace(GOOD.cell, n=2)), "n 2, though its identity says 3"),
        (replace(GOOD, cell=replace(GOOD.cell, dtype="bfloat16")), "dtype bfloat16, though its identity says float32"),
        (
            replace(GOOD, cell=replace(GOOD.cell, method=parse_label("yarn"))),
            "method yarn, though its identity says none",
        ),
        (answers("none", [1.0, 1.5]), "sample 1 with accuracy 1.5, which must be in [0, 1]"),
        (answers("none", [float("nan"), 1.0]), "sample 0 with accuracy nan"),
        (answers("none", [float("inf")], metric="entropy"), "sample 0 with entropy inf, which must be finite"),
        (changed(1, failed=""), "sample 1 with failed without a reason"),
        (changed(1, nll=None), "nll for sample 0 and not for sample 1"),
        (changed(1, scores={"accuracy": 1.0}), "accuracy for sample 1 and not for sample 0"),
    ],
)
def test_what_cannot_be_is_said(broken: FinishedCell, said: str) -> None:
    [line] = record_problems([broken]).values()
    assert said in line
    assert f"delete cells/{broken.cell.id}.parquet and run the same command again" in line


def test_good_cells_break_nothing() -> None:
    assert record_problems(fake_cells()) == {}
    assert record_problems([GOOD, changed(1, nll=np.full(4, np.nan, np.float32), failed="no finite likelihood")]) == {}
    assert record_problems([answers("none", [7.5, -3.0], metric="entropy")]) == {}  # a measure has no bounds
    assert record_problems([FinishedCell(cell("passkey", "none", 128), [], "too short")]) == {}
    assert list(sample_faults(replace(GOOD.samples[0], nll=np.array([-1e-4, 0.0], np.float32)))) == []  # rounding
    assert (
        record_problems([FinishedCell(cell("longbench(dataset=qasper)", "none", 512, n=500), GOOD.samples)]) == {}
    )  # all there are
    assert (
        record_problems([FinishedCell(cell("a_users_own", "none", 512, n=2), GOOD.samples)]) == {}
    )  # an old file: any number
    assert (
        record_problems([FinishedCell(cell("passkey", "none", 512, n=2), GOOD.samples, asked=3)]) == {}
    )  # its file says so


@pytest.mark.parametrize(
    ("shown", "part", "right"),
    [
        ("yarn", {"name": "yarn"}, True),
        ("yarn(factor=8.0)", {"name": "yarn", "factor": 8.0}, True),
        ("yarn(factor=8.0)+log_n", {"name": "yarn+log_n"}, True),
        ("yarn+log_n(at=512)", {"name": "yarn+log_n", "at": 512}, True),
        ("pi for 384", {"name": "pi", "method": "PI(factor=None)", "length": 384}, True),
        ("pi(factor=2.0) for 384", {"name": "pi", "length": 384}, True),
        ("yarn(beta_fast=16)+log_n for 384", {"name": "yarn+log_n", "length": 384}, True),
        ("yarn at 512", {"name": "yarn", "set_to": 512}, True),
        ("mine at 5 (new)", {"name": "mine at 5"}, False),
        ("mine at 5(new=1)", {"name": "mine at 5"}, True),
        ("pi for 384", {"name": "pi"}, False),
        ("pi for 512", {"name": "pi", "length": 384}, False),
        ("yarn at 384", {"name": "yarn", "length": 384}, True),
        ("yarn+log_n", {"name": "yarn"}, False),
        ("yarn(factor=8.0)", {"name": "yarn+log_n"}, False),
        ("yarn_paper", {"name": "yarn"}, False),
        ("ntk", {"name": "ntk_fixed"}, False),
    ],
)
def test_a_shown_method_is_the_identitys_with_its_parameters_and_its_length(
    shown: str, part: dict[str, Any], right: bool
) -> None:
    cell_ = replace(GOOD.cell, method=read_key(shown, None, part), identity={**GOOD.cell.identity, "method": part})
    assert (record_problems([replace(GOOD, cell=cell_)]) == {}) == right


def test_cells_that_were_asked_the_same_hold_the_same_questions() -> None:
    others = [texts(method, [3.0, 2.5, 2.0]) for method in ("ntk", "yarn")]
    assert record_problems([GOOD, *others]) == {}
    moved = replace(others[0], samples=[replace(each, cluster="another") for each in others[0].samples])
    [(name, line)] = record_problems([GOOD, moved, others[1]]).items()
    assert name == moved.cell.id and "other questions than cells that were asked the same" in line
    other_length = texts("pi", [3.0, 2.5, 2.0], 1024)
    assert (
        record_problems(
            [GOOD, replace(other_length, samples=[replace(each, cluster="b") for each in other_length.samples])]
        )
        == {}
    )


def test_a_cell_with_an_index_too_many_is_wrong_and_its_neighbours_are_not() -> None:
    more = texts("ntk", [3.0, 2.5, 2.0])
    more = replace(more, samples=[*more.samples, replace(more.samples[0], index=9)], asked=3)
    [(name, line)] = record_problems([GOOD, more]).items()
    assert name == more.cell.id and "4 of 3 samples" in line


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"nll": np.full(2, 3.0, np.float32)}, "sample 1 with 2 targets, which is 4"),
        ({"bytes": 26}, "sample 1 with 26 bytes, which is 13"),
        ({"words": 3}, "sample 1 with 3 words, which is 2"),
        ({"tokens": 256}, "sample 1 with 256 tokens, which is 512"),
    ],
)
def test_the_size_of_a_question_is_that_of_cells_that_were_asked_the_same(fields: dict[str, Any], said: str) -> None:
    others = [texts(method, [3.0, 2.5, 2.0]) for method in ("ntk", "yarn")]
    [(name, line)] = record_problems([changed(1, **fields), *others]).items()
    assert name == GOOD.cell.id and f"has {said} in cells that were asked the same" in line
    lost = changed(1, **{"nll": None, **fields, "failed": "lost"})
    assert record_problems([lost, *others]) == {}


def test_of_two_cells_that_were_asked_the_same_the_one_with_fewer_targets_is_wrong() -> None:
    cut = texts("ntk", [3.0, 2.5, 2.0])
    cut = replace(cut, samples=[replace(each, nll=np.full(1, 2.0, np.float32)) for each in cut.samples])
    assert list(record_problems([GOOD, cut])) == list(record_problems([cut, GOOD])) == [cut.cell.id]


def test_as_many_targets_as_the_identity_states_are_in_every_sample() -> None:
    task = {**GOOD.cell.identity["task"], "targets": 64}
    stated = replace(GOOD, cell=replace(GOOD.cell, identity={**GOOD.cell.identity, "task": task}))
    [line] = record_problems([stated]).values()
    assert "has 4 targets, though its identity says 64" in line
    stated = replace(
        stated, cell=replace(stated.cell, identity={**stated.cell.identity, "task": {**task, "targets": 4}})
    )
    assert record_problems([stated]) == {}
    # The rows of another length, in every cell: no neighbour can tell.
    short = [replace(each, tokens=256) for each in stated.samples]
    [line] = record_problems([replace(stated, samples=short)]).values()
    assert "has 256 tokens, though its questions have 512" in line
    own = replace(stated, cell=replace(stated.cell, task="mine", identity={"task": {**task, "name": "mine"}}))
    assert record_problems([own]) == {}  # a task of the user's own may mean something else


def test_a_cell_that_holds_half_of_its_questions_is_in_no_table_and_no_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = [texts(method, [3.0 - index / 10 for index in range(12)]) for method in ("none", "yarn")]
    folder(tmp_path / "whole", *whole)
    folder(tmp_path / "half", *whole)
    half = cell_parquet(whole[1].cell, whole[1].samples[:6], None, asked=12)
    (tmp_path / "half" / "cells" / f"{whole[1].cell.id}.parquet").write_bytes(half)
    file = tmp_path / "b.json"
    assert main(["check", str(tmp_path / "whole"), "--baseline", str(file), "--update"]) == 0
    assert main(["check", str(tmp_path / "half"), "--baseline", str(file)]) == 2
    assert main(["check", str(tmp_path / "half"), "--baseline", str(tmp_path / "c.json"), "--update"]) == 2
    assert not (tmp_path / "c.json").exists()
    assert "6 of 12 samples" in capsys.readouterr().err
    loaded = records.load_cells([tmp_path / "half"])
    assert [str(each.cell.method) for each in loaded.finished] == ["none"] and "6 of 12 samples" in loaded.problems[0]


def test_doctor_says_what_is_wrong_and_gives_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(tmp_path / "good", fake_cells(["passkey"]))
    assert main(["doctor", str(tmp_path / "good")]) == 0
    assert ": all sound (" in capsys.readouterr().out
    folder(tmp_path / "bad", GOOD, changed_name := answers("yarn", [*right(3, 4), 2.0]))
    assert main(["doctor", str(tmp_path / "bad")]) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("2 finished cells in 1 run folder: 1 wrong (")
    assert changed_name.cell.id in second and "accuracy 2, which must be in [0, 1]" in second
    assert main(["doctor", str(tmp_path / "bad"), str(tmp_path / "good"), "--json"]) == 1
    assert len(json.loads(capsys.readouterr().out)["faults"]) == 1
    assert main(["doctor", str(tmp_path)]) == 1
    assert main(["doctor", str(tmp_path / "nowhere")]) == 2


def test_records_that_do_not_follow_from_their_cells_are_found(tmp_path: Path) -> None:
    run = tmp_path / "run"
    keep(run, fake_cells(["passkey"]))
    assert examine_runs([run]).faults == []
    file = run / "records.jsonl"
    lines = file.read_text().splitlines()
    file.write_text("\n".join(lines[1:]) + "\n")
    [fault] = examine_runs([run]).faults
    assert f"lacks 1 of {len(lines)} records" in fault
    damaged = next((run / "cells").glob("*.parquet"))
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-40])
    assert any("cannot be read" in fault for fault in examine_runs([run]).faults)
    damaged.write_bytes(whole)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda rows: [{**rows[0], "value": 0.75}, *rows[1:]], "has 1 records that are not those of their samples"),
        (lambda rows: [{**rows[0], "high": 1.0}, *rows[1:]], "has 1 records that are not those of their samples"),
        (lambda rows: [{**rows[0], "n": True}, *rows[1:]], "has 1 records that are not those of their samples"),
        (lambda rows: [*rows, rows[0]], "has 1 records twice"),
        (lambda rows: [*rows, {**rows[0], "metric": "mine"}], "has 1 records that its cells do not have"),
    ],
)
def test_lines_of_records_that_were_edited_or_doubled_are_found_and_a_report_mends_them(
    change: Any, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    keep(run, [finished("passkey", "ntk", 1024), finished("passkey", "yarn(factor=8.0)", 1024)])
    file = run / "records.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert rows[0]["value"] not in (None, 0.75) and rows[0]["high"] not in (None, 1.0) and rows[0]["n"] == 32
    file.write_text("".join(f"{json.dumps(row)}\n" for row in change(rows)))
    [fault] = examine_runs([run]).faults
    assert fault.endswith(f"records.jsonl {said}: lexbench report {run} writes it anew")
    records.load_cells([run], afresh=[run])  # as a report does
    assert examine_runs([run]).faults == []


def test_a_numbers_last_digits_may_differ_between_processors(tmp_path: Path) -> None:
    keep(tmp_path, [finished("passkey", "ntk", 1024)])
    file = tmp_path / "records.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[0]["value"] = np.nextafter(rows[0]["value"], 1)
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert examine_runs([tmp_path]).faults == []


def test_every_line_of_an_unfinished_cell_is_examined(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for sample in GOOD.samples[:2]:
        store.append(GOOD.cell, sample)
    file = tmp_path / "cells" / f"{GOOD.cell.id}.jsonl"
    good = file.read_bytes()
    file.write_bytes(good + b'{"index": 2, "clus')  # it is being written
    assert (examine_runs([tmp_path]).faults, examine_runs([tmp_path]).unfinished) == ([], 1)
    head, first, second = good.splitlines(keepends=True)
    other = cell_line(texts("yarn", [3.0, 2.5, 2.0]).cell)
    for content, said in (
        (head + first + b"junk\n" + second, "must hold JSON lines"),
        (head + first.replace(b'"tokens": 512', b'"tokens": 513'), "sample 0 with 513 tokens, more than the length"),
        (head + first.replace(b'"tokens": 512', b'"tokens": "x"'), "hold a wrong line"),
        (other + first, "are of another cell"),
        (b"[1]\n", "must hold JSON lines"),
        (b'{"model": 1}\n', "another version of lexbench"),
    ):
        file.write_bytes(content)
        [fault] = examine_runs([tmp_path]).faults
        assert said in fault and file.name in fault


def test_a_cell_whose_file_is_gone_is_found_by_its_records(tmp_path: Path) -> None:
    run = tmp_path / "run"
    keep(run, fake_cells(["passkey"]))
    lost = sorted(file.stem for file in (run / "cells").glob("*.parquet"))[2:4]
    for name in lost:
        (run / f"cells/{name}.parquet").unlink()
    [fault] = examine_runs([run]).faults
    said = f"names cells that have no file (2 in all, first {lost[0]}): repeat the run command to measure them"
    assert fault.endswith(f"records.jsonl {said}")
