"""What cannot be a baseline: an outage, and numbers that no answer has."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lexbench.commands.main import main
from lexbench.report.check.check import check_runs
from lexbench.stats import baseline
from lexbench.stats.cell_outcomes import outcomes_of_cell
from lexbench.store.format import FinishedCell
from lexbench.store.store import Store
from tests.report.outcomes import answers, folder, right, texts

GOOD = texts("none", [3.0, 2.5, 2.0, 2.25, 3.25, 2.75])


def test_an_outage_is_no_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "b.json"
    run = folder(tmp_path / "run", GOOD)
    Store(run[0]).defer(answers("yarn", right(8, 8)).cell, "server is down")
    assert main(["check", str(run[0]), "--baseline", str(file), "--update"]) == 2
    assert "run has 1 cell that could not be measured (server is down)" in capsys.readouterr().err
    lost = replace(GOOD, samples=[replace(each, failed="HTTP 500", nll=None) for each in GOOD.samples])
    failed = folder(tmp_path / "failed", lost)
    assert main(["check", str(failed[0]), "--baseline", str(file), "--update"]) == 2
    assert "run has no answer of none last_segment at 512 (HTTP 500)" in capsys.readouterr().err
    assert not file.exists()


@pytest.mark.parametrize("amount", ["NaN", "Infinity", "1e308", "-5.0", "1e999"])
def test_numbers_that_no_answer_has_are_no_baseline(
    amount: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = folder(tmp_path / "run", GOOD)
    file = tmp_path / "b.json"
    content = baseline.baseline_text([outcomes_of_cell(GOOD)], [])
    assert '"amount":[12,' in content
    file.write_text(content)
    assert main(["check", str(run[0]), "--baseline", str(file)]) == 0
    file.write_text(content.replace('"amount":[12,', f'"amount":[{amount},'))
    assert main(["check", str(run[0]), "--baseline", str(file)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    said = "NaN is no number" if amount == "NaN" else "an answer has a nll of"
    assert "cannot be read" in line and said in line


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"targets":[', '"units":[', "cannot be read"),
        ('"outcomes":{"nll":', '"outcomes":{},"more":{"nll":', "a measured cell has no answers"),
    ],
)
def test_a_baseline_that_lost_a_part_is_one_line(
    old: str, new: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = folder(tmp_path / "run", GOOD)
    file = tmp_path / "b.json"
    content = baseline.baseline_text([outcomes_of_cell(GOOD)], [])
    assert old in content
    file.write_text(content.replace(old, new))
    assert main(["check", str(run[0]), "--baseline", str(file)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert said in line


def edited(change: Callable[[dict[str, Any]], Any], checksum: bool) -> str:
    """The good baseline's text after a change, as an older version or an editor leaves it."""
    page = json.loads(baseline.baseline_text([outcomes_of_cell(GOOD)], []))
    if not checksum:
        del page["checksum"]
    change(page)
    return json.dumps(page)


def answer(page: dict[str, Any], name: str, value: Any) -> None:
    """Change the second of six answers."""
    columns = page["cells"][0]["outcomes"]["nll"]
    columns.setdefault(name, [0] * 6)[1] = value


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda page: page.update(schema=-5), "its schema must be a whole number of at least 1, got -5"),
        (lambda page: page.update(schema=0.5), "its schema must be a whole number of at least 1, got 0.5"),
        (lambda page: page.update(schema=True), "its schema must be a whole number of at least 1, got True"),
        (lambda page: page.update(schema=float("nan")), "NaN is no number"),
        (lambda page: page["cells"][0]["cell"].update(identity={}), "a cell's identity has no model"),
        (lambda page: page["cells"][0]["cell"]["identity"].update(method="none"), "a cell's identity has no method"),
        (lambda page: page["cells"][0]["cell"].update(length=1024), "a cell has length 1024, though its identity"),
        (lambda page: answer(page, "failed", 1), "nll of question 1 is failed, though it has 10"),
        (lambda page: answer(page, "failed", 2), "an answer has failed 2, which must be 0 or 1"),
        (lambda page: answer(page, "truncated", "yes"), "an answer has truncated 'yes', which must be 0 or 1"),
        (lambda page: answer(page, "amount", None), "nll of question 1 is none, and has not failed"),
        (lambda page: next(iter(page["questions"].values()))["index"].__setitem__(1, 0), "a question stands there"),
    ],
)
def test_what_no_baseline_can_say_is_refused_without_a_checksum_too(
    change: Any, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = folder(tmp_path / "run", GOOD)
    file = tmp_path / "b.json"
    file.write_text(edited(change, checksum=False))
    assert main(["check", str(run[0]), "--baseline", str(file)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert said in line and "--update" in line


def test_an_edit_that_could_be_true_is_found_by_the_checksum(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = folder(tmp_path / "run", GOOD)
    file = tmp_path / "b.json"
    file.write_text(edited(lambda page: answer(page, "amount", 110), checksum=True))
    assert main(["check", str(run[0]), "--baseline", str(file)]) == 2
    assert "it was edited: its checksum is another one" in capsys.readouterr().err
    file.write_text(edited(lambda page: page["measured"].append({"dtype": "float32"}), checksum=True))
    assert main(["check", str(run[0]), "--baseline", str(file)]) == 2


def test_a_baseline_without_a_checksum_is_read_with_a_note_and_update_adds_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = folder(tmp_path / "run", GOOD)
    file = tmp_path / "b.json"
    file.write_text(edited(lambda page: None, checksum=False))
    assert main(["check", str(run[0]), "--baseline", str(file)]) == 0
    assert f"{file} has no checksum to tell an edit: --update adds one" in capsys.readouterr().out
    assert main(["check", str(run[0]), "--baseline", str(file), "--update"]) == 0
    content = file.read_text()
    assert main(["check", str(run[0]), "--baseline", str(file)]) == 0
    assert "no checksum" not in capsys.readouterr().out
    laid_out = json.dumps(json.loads(content), indent=4, sort_keys=False).replace('"amount": [\n', '"amount":[')
    assert '"length": 512,' in laid_out
    file.write_text(laid_out.replace('"length": 512,', '"length": 512, ').replace(" 12,\n", " 12.0,\n"))
    assert main(["check", str(run[0]), "--baseline", str(file)]) == 0, "the same, laid out by another program"


def test_a_text_without_a_target_is_written_and_read_again(tmp_path: Path) -> None:
    """It has 0 nats of 0 targets, and adds nothing: 11 of 12 texts lose 0.5 nats per token."""
    sides = []
    for level in (3.0, 3.5):
        made = texts("pi", [level] * 12)
        cut = [
            replace(each, nll=each.nll[:0]) if each.nll is not None and not each.index else each
            for each in made.samples
        ]
        sides.append(folder(tmp_path / str(level), FinishedCell(made.cell, cut)))
    baseline.update_baseline(sides[0], tmp_path / "b.json")
    [verdict] = check_runs(sides[1], tmp_path / "b.json").verdicts
    assert verdict.found is not None and verdict.found.difference == 0.5
    assert verdict.status.value == "regressed"


def test_targets_and_the_name_of_a_corpus_are_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = folder(tmp_path / "run", GOOD)
    file = tmp_path / "b.json"
    page = json.loads(baseline.baseline_text([outcomes_of_cell(GOOD)], []))
    [asked] = page["questions"].values()
    del asked["targets"]
    file.write_text(json.dumps(page))
    assert main(["check", str(run[0]), "--baseline", str(file)]) == 2
    assert "an answer has an nll and no targets" in capsys.readouterr().err
    page = json.loads(baseline.baseline_text([outcomes_of_cell(GOOD)], []))
    page["cells"][0]["cell"]["identity"]["corpus"] = {"fingerprint": "0"}
    file.write_text(json.dumps(page))
    assert main(["check", str(run[0]), "--baseline", str(file)]) == 2
    assert "a cell's corpus has no name" in capsys.readouterr().err


def test_what_waits_for_its_server_is_not_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = folder(tmp_path / "base", GOOD, answers("yarn", right(8, 8)))
    file = tmp_path / "b.json"
    assert main(["check", str(base[0]), "--baseline", str(file), "--update"]) == 0
    run = folder(tmp_path / "run", GOOD)
    Store(run[0]).defer(answers("yarn", right(8, 8)).cell, "server is down")
    capsys.readouterr()
    assert main(["check", str(run[0]), "--baseline", str(file)]) == 2
    assert "not measured yet, server is down: repeat the run command" in capsys.readouterr().out
