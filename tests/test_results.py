"""Committed results are what the committed records give: nothing in them is typed."""

import inspect
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lexbench
from lexbench.commands import main
from lexbench.core.record import Sample
from lexbench.store.store import Store
from tests.report.pictures import drawn
from tests.smollm2.page import page as smollm2

REFERENCE = Path(__file__).parent.parent / "results" / "reference"
RUNS = sorted(cells.parent.name for cells in REFERENCE.glob("*/cells"))
"""Run folders; most have a page beside them."""


def rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("folder", RUNS)
def test_a_reference_table_is_the_report_of_its_records(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(REFERENCE / folder, tmp_path / "run")
    if folder != "lexlet_quick":
        monkeypatch.setattr("lexbench.report.report.DRAWN", 0)
    with drawn() as figures:  # they are made, and left white
        assert main.main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "report")]) == 0
    assert bool(figures) == (folder == "lexlet_quick")
    ours, theirs = (rows(where / "records.jsonl") for where in (tmp_path / "run", REFERENCE / folder))
    assert len(ours) == len(theirs)
    for one, two in zip(ours, theirs, strict=True):
        assert one.keys() == two.keys()
        for name, value in two.items():  # sums may end in another bit on another processor
            assert one[name] == (pytest.approx(value, rel=1e-12) if isinstance(value, float) else value), name
    if not (REFERENCE / f"{folder}.md").exists():
        return  # the page of another folder shows it
    page = (REFERENCE / f"{folder}.md").read_text()
    table = (tmp_path / "report" / "tables" / "differences.md").read_text()
    assert table.split("\n", 1)[1].strip() in page  # all but its title
    if folder == "smollm2":
        assert page == smollm2(tmp_path / "report")


def test_puzzles_of_today_are_above_chance_as_their_page_says() -> None:
    """Real weights inside their trained length: on one model the intervals of four made tasks lie above chance."""
    folder = REFERENCE / "today"
    found = [row for row in rows(folder / "records.jsonl") if row["metric"] == "accuracy"]
    page = (folder / "README.md").read_text()
    above = [(row["model"], row["length"], row["task"]) for row in found if row["low"] > row["chance"]]
    assert len([each for each in above if each[:2] == ("gemma-3-270m", 256)]) >= 4
    assert all(row["length"] <= row["trained_length"] for row in found)
    for row in found:
        cells = [row["model"], f"`{row['task']}`", str(row["length"])]
        cells += [f"{row[name]:.2f}" for name in ("value", "low", "high", "chance")]
        marked = "yes" if (row["model"], row["length"], row["task"]) in above else "no"
        assert f"| {' | '.join([*cells, str(row['n']), marked])} |" in page
    [cell] = {row["cell"] for row in found if row["task"].startswith("conflicting_needles")}
    [finished] = Store(folder).load({cell})
    firsts = sum(chosen_word(sample) == first_word(sample) for sample in finished.samples)
    assert f"chose the first in {firsts} of {len(finished.samples)} samples" in " ".join(page.split())


def first_word(sample: Sample) -> str:
    """The first word of the person that `conflicting_needles` asks for."""
    [asked] = re.findall(r"Which word of (\w+) counts", str(sample.prompt))
    said: list[tuple[str, str]] = re.findall(r"(\w+) says the word (\w+)", str(sample.prompt))
    return next(word for name, word in said if name == asked)


def chosen_word(sample: Sample) -> str:
    """The likeliest of the words, which are the options in the order of the alphabet."""
    words: list[str] = sorted(re.findall(r"says the word (\w+)", str(sample.prompt)))
    return words[int(np.argmin(sample.statistics["option_nll"]))]


@pytest.mark.parametrize("folder", ["today", "smollm2_associative"])
def test_choices_of_committed_puzzles_are_of_the_version_that_is_here(folder: str) -> None:
    """Written answers of these tasks are scored otherwise by now, and have a version of their own."""
    for cell in {each.cell.id: each.cell for each in Store(REFERENCE / folder).load()}.values():
        given = cell.identity["task"]
        if given["name"].startswith("graph_walk"):
            continue  # measured before version 2 of its choice
        taken = {name: value for name, value in given.items() if name not in ("name", "version", "corpus")}
        parameters = inspect.signature(type(lexbench.task(given["name"]))).parameters
        form = {name: value for name, value in taken.items() if name in parameters}
        assert lexbench.task(given["name"], **form).edition == given["version"], cell.task
