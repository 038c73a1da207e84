"""What holds of every finished cell; a cell that breaks it is not shown, ranked or compared."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lexbench.commands.main import main
from lexbench.core.method_key import key_from
from lexbench.report.doctor import examine
from lexbench.stats import records
from lexbench.stats.invariants import sample_faults, wrong
from lexbench.store.format import Finished, parquet
from tests.report.fake_run import cell, fake_cells, keep
from tests.report.outcomes import answers, folder, right, texts

GOOD = texts("none", [3.0, 2.5, 2.0])


def changed(index: int, **fields: Any) -> Finished:
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
        (Finished(cell("a_users_own", "none", 512, n=2), GOOD.samples, asked=4), "3 of 4 samples"),
        (Finished(cell("a_users_own", "none", 512, n=2), [], asked=0), "0 of 0 samples"),
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
        (replace(GOOD, cell=replace(GOOD.cell, method=key_from("yarn"))), "method yarn, though its identity says none"),
        (answers("none", [1.0, 1.5]), "sample 1 with accuracy 1.5, which must be in [0, 1]"),
        (answers("none", [float("nan"), 1.0]), "sample 0 with accuracy nan"),
        (answers("none", [float("inf")], metric="entropy"), "sample 0 with entropy inf, which must be finite"),
        (changed(1, failed=""), "sample 1 with failed without a reason"),
        (changed(1, nll=None), "nll for sample 0 and not for sample 1"),
        (changed(1, scores={"accuracy": 1.0}), "accuracy for sample 1 and not for sample 0"),
    ],
)
def test_what_cannot_be_is_said(broken: Finished, said: str) -> None:
    [line] = wrong([broken]).values()
    assert said in line
    assert f"delete cells/{broken.cell.id}.parquet and run the same command again" in line


def test_good_cells_break_nothing() -> None:
    assert wrong(fake_cells()) == {}
    assert wrong([GOOD, changed(1, nll=np.full(4, np.nan, np.float32), failed="no finite likelihood")]) == {}
    assert wrong([answers("none", [7.5, -3.0], metric="entropy")]) == {}  # a measure has no bounds
    assert wrong([Finished(cell("passkey", "none", 128), [], "too short")]) == {}
    assert list(sample_faults(replace(GOOD.samples[0], nll=np.array([-1e-4, 0.0], np.float32)))) == []  # rounding
    assert wrong([Finished(cell("longbench(dataset=qasper)", "none", 512, n=500), GOOD.samples)]) == {}  # all there are
    assert wrong([Finished(cell("a_users_own", "none", 512, n=2), GOOD.samples)]) == {}  # an old file: any number
    assert wrong([Finished(cell("passkey", "none", 512, n=2), GOOD.samples, asked=3)]) == {}  # its file says so


def test_cells_that_were_asked_the_same_hold_the_same_questions() -> None:
    others = [texts(method, [3.0, 2.5, 2.0]) for method in ("ntk", "yarn")]
    assert wrong([GOOD, *others]) == {}
    moved = replace(others[0], samples=[replace(each, cluster="another") for each in others[0].samples])
    [(name, line)] = wrong([GOOD, moved, others[1]]).items()
    assert name == moved.cell.id and "other questions than cells that were asked the same" in line
    other_length = texts("pi", [3.0, 2.5, 2.0], 1024)
    assert (
        wrong([GOOD, replace(other_length, samples=[replace(each, cluster="b") for each in other_length.samples])])
        == {}
    )


def test_a_cell_that_holds_half_of_its_questions_is_in_no_table_and_no_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = [texts(method, [3.0 - index / 10 for index in range(12)]) for method in ("none", "yarn")]
    folder(tmp_path / "whole", *whole)
    folder(tmp_path / "half", *whole)
    half = parquet(whole[1].cell, whole[1].samples[:6], None, asked=12)
    (tmp_path / "half" / "cells" / f"{whole[1].cell.id}.parquet").write_bytes(half)
    file = tmp_path / "b.json"
    assert main(["check", str(tmp_path / "whole"), "--baseline", str(file), "--update"]) == 0
    assert main(["check", str(tmp_path / "half"), "--baseline", str(file)]) == 2
    assert main(["check", str(tmp_path / "half"), "--baseline", str(tmp_path / "c.json"), "--update"]) == 2
    assert not (tmp_path / "c.json").exists()
    assert "6 of 12 samples" in capsys.readouterr().err
    loaded = records.load([tmp_path / "half"])
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
    assert examine([run]).faults == []
    file = run / "records.jsonl"
    lines = file.read_text().splitlines()
    file.write_text("\n".join(lines[1:]) + "\n")
    [fault] = examine([run]).faults
    assert f"lacks 1 of {len(lines)} records" in fault
    damaged = next((run / "cells").glob("*.parquet"))
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-40])
    assert any("cannot be read" in fault for fault in examine([run]).faults)
    damaged.write_bytes(whole)


def test_a_cell_whose_file_is_gone_is_found_by_its_records(tmp_path: Path) -> None:
    run = tmp_path / "run"
    keep(run, fake_cells(["passkey"]))
    lost = sorted(file.stem for file in (run / "cells").glob("*.parquet"))[2:4]
    for name in lost:
        (run / f"cells/{name}.parquet").unlink()
    [fault] = examine([run]).faults
    said = f"names cells that have no file (2 in all, first {lost[0]}): repeat the run command to measure them"
    assert fault.endswith(f"records.jsonl {said}")
