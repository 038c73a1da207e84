"""What cannot be a baseline: an outage, and numbers that no answer has."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lexbench.commands.main import main
from lexbench.report.check.check import check
from lexbench.stats import baseline
from lexbench.stats.cell_outcomes import kept
from lexbench.store.format import Finished
from lexbench.store.store import Store
from tests.report.outcomes import answers, folder, right, texts

GOOD = texts("none", [3.0, 2.5, 2.0, 2.25, 3.25, 2.75])


def test_an_outage_is_no_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "b.json"
    run = folder(tmp_path / "run", GOOD)
    Store(run[0]).defer(answers("yarn", right(3, 4)).cell, "server is down")
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
    content = baseline.as_text([kept(GOOD)], [])
    assert '"amount":[12,' in content
    file.write_text(content)
    assert main(["check", str(run[0]), "--baseline", str(file)]) == 0
    file.write_text(content.replace('"amount":[12,', f'"amount":[{amount},'))
    assert main(["check", str(run[0]), "--baseline", str(file)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "cannot be read" in line and "an answer has a nll of" in line


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
    content = baseline.as_text([kept(GOOD)], [])
    assert old in content
    file.write_text(content.replace(old, new))
    assert main(["check", str(run[0]), "--baseline", str(file)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_text_without_a_target_is_written_and_read_again(tmp_path: Path) -> None:
    """It has 0 nats of 0 targets, and adds nothing: 11 of 12 texts lose 0.5 nats per token."""
    sides = []
    for level in (3.0, 3.5):
        made = texts("pi", [level] * 12)
        cut = [
            replace(each, nll=each.nll[:0]) if each.nll is not None and not each.index else each
            for each in made.samples
        ]
        sides.append(folder(tmp_path / str(level), Finished(made.cell, cut)))
    baseline.update(sides[0], tmp_path / "b.json")
    [verdict] = check(sides[1], tmp_path / "b.json").verdicts
    assert verdict.found is not None and verdict.found.difference == 0.5
    assert verdict.status == "regressed"


def test_targets_and_the_name_of_a_corpus_are_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = folder(tmp_path / "run", GOOD)
    file = tmp_path / "b.json"
    page = json.loads(baseline.as_text([kept(GOOD)], []))
    [asked] = page["questions"].values()
    del asked["targets"]
    file.write_text(json.dumps(page))
    assert main(["check", str(run[0]), "--baseline", str(file)]) == 2
    assert "an answer has an nll and no targets" in capsys.readouterr().err
    page = json.loads(baseline.as_text([kept(GOOD)], []))
    page["cells"][0]["cell"]["identity"]["corpus"] = {"fingerprint": "0"}
    file.write_text(json.dumps(page))
    assert main(["check", str(run[0]), "--baseline", str(file)]) == 2
    assert "a cell's corpus has no name" in capsys.readouterr().err


def test_what_waits_for_its_server_is_not_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = folder(tmp_path / "base", GOOD, answers("yarn", right(3, 4)))
    file = tmp_path / "b.json"
    assert main(["check", str(base[0]), "--baseline", str(file), "--update"]) == 0
    run = folder(tmp_path / "run", GOOD)
    Store(run[0]).defer(answers("yarn", right(3, 4)).cell, "server is down")
    capsys.readouterr()
    assert main(["check", str(run[0]), "--baseline", str(file)]) == 2
    assert "not measured yet, server is down: repeat the run command" in capsys.readouterr().out
