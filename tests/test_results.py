"""Committed results are what the committed records give: nothing in them is typed."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from lexbench.commands import main
from lexbench.core.record import Record
from lexbench.stats.records import build_records, records_of
from tests.records_schema import records_schema
from tests.report.fake_run import finished, keep
from tests.report.pictures import drawn
from tools import keep_samples, recompute, smollm2_page
from tools.keep_records import keep_records, read_records

RESULTS = Path(__file__).parent.parent / "results"
REFERENCE = RESULTS / "reference"
PAGES = sorted(file.with_suffix(".md") for file in REFERENCE.glob("*.parquet"))
"""Pages whose cells were taken out: their records stand beside them."""
DIFFERENCES = "Each entry is a method's value minus the baseline's"
"""Begins the part of a page that is a report's tables/differences.md."""
Table = tuple[str, str, list[str], dict[str, list[str]]]
"""Task and model, metric and unit, lengths, and cells by method."""


def rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def tables(text: str) -> Iterator[Table]:
    """Every table of differences."""
    task = metric = ""
    for block in text.split("\n\n"):
        if block.startswith("## "):
            task = block[3:].splitlines()[0]
        elif block.startswith("### "):
            metric = block[4:].splitlines()[0]
        elif block.startswith("| method"):
            head, _, *lines = ([each.strip() for each in line.split("|")[1:-1]] for line in block.splitlines())
            yield task, metric, [each.split(" ")[0] for each in head[1:]], {name: cells for name, *cells in lines}


def differences(page: Path) -> str:
    return page.read_text().partition(DIFFERENCES)[2]


@pytest.mark.slow
def test_the_records_of_the_committed_run_are_those_of_its_cells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And its report has figures, and the differences that the page of all methods shows, but for their stars."""
    shutil.copytree(REFERENCE / "lexlet", tmp_path / "run")
    with drawn() as figures:  # they are made, and left white
        assert main.main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "report")]) == 0
    assert figures
    known = {(each.cell, each.metric, each.part): vars(each) for each in read_records(REFERENCE / "lexlet.parquet")}
    made_anew = [each.as_row() for each in build_records([tmp_path / "run"])]
    assert len({row["cell"] for row in made_anew}) == len(list((tmp_path / "run" / "cells").glob("[!.]*")))
    derived = [each for each in made_anew if (each["cell"], each["metric"], each["part"]) not in known]
    assert {each["metric"] for each in derived} == {"in_place", "reached"}  # of the answers; younger than the records
    keys = recompute.read_cells(recompute.MEASURED_KEYS)
    for one in derived:
        method = str(next(each["method"] for each in known.values() if each["cell"] == one["cell"]))
        told = keys["passkey", "lexlet", method, one["length"]].values(one["metric"])
        assert one["value"] == pytest.approx(told.mean)
    for one in [each for each in made_anew if each not in derived]:
        two = known[one["cell"], one["metric"], one["part"]]
        assert one.keys() == two.keys()
        for name, value in two.items():  # sums may end in another bit on another processor
            assert one[name] == (pytest.approx(value, rel=1e-12) if isinstance(value, float) else value), name
    shown = {each[:2]: each[3] for each in tables(differences(REFERENCE / "lexlet.md"))}
    made = list(tables((tmp_path / "report/tables/differences.md").read_text()))
    kept = [each for each in made if each[:2] in shown]
    assert (len(kept), len(shown), len(made)) == (3, 3, 5)  # two of scores that are younger than the page
    for task, metric, _, by_method in kept:  # stars are corrected for the number of methods, notes are numbered
        for method, cells in by_method.items():
            plain = [
                [re.sub(r"\*| \(\d.*\)$", "", each) for each in both] for both in (cells, shown[task, metric][method])
            ]
            for one, two in zip(*plain, strict=True):  # what is one function was compared with itself
                same = one == "same attention" and float(two.partition(" ")[0]) == 0
                assert same or one == two, (task, metric, method)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_tables_of_a_page_have_the_hash_that_a_run_made_again_must_give(page: Path) -> None:
    [named] = re.findall(r"`([0-9a-f]{64})`", page.read_text())
    assert f"grep '^|' runs/{page.stem}/report/tables/differences.md | sha256sum" in page.read_text()
    shown = "".join(f"{line}\n" for line in differences(page).splitlines() if line.startswith("|"))
    assert hashlib.sha256(shown.encode()).hexdigest() == named


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_differences_of_a_page_are_those_of_its_records(page: Path) -> None:
    """Of the mean over all samples: a score is shown in points, hundredths of it."""
    known: dict[tuple[str, str, str, str], Record] = {}
    for record in read_records(page.with_suffix(".parquet")):
        if record.part is None and record.metric:
            known[f"{record.task} on {record.model}", record.metric, str(record.method), str(record.length)] = record
    count = 0
    for task, metric, lengths, by_method in tables(differences(page)):
        name, _, unit = metric.rstrip(")").partition(" (")
        for method, cells in by_method.items():
            for length, cell in zip(lengths, cells, strict=True):
                shown = re.match(r"[+-]?[\d.]+", cell)
                if not shown:
                    continue
                value = known[task, name, method.removesuffix(" (value)"), length].value
                base = 0.0 if method.endswith(" (value)") else known[task, name, "none", length].value
                assert value is not None and base is not None
                digits = len(shown[0].partition(".")[2])
                assert float(shown[0]) == pytest.approx(
                    (100 if unit == "points" else 1) * (value - base), abs=0.5000001 * 10**-digits
                ), (task, metric, method, length)
                count += 1
    assert count >= 40


@pytest.mark.parametrize(
    "page", [REFERENCE / "small_models.md", REFERENCE / "leaderboard.md"], ids=lambda page: page.stem
)
def test_values_with_intervals_on_a_page_are_those_of_records(page: Path) -> None:
    names = ["lexlet", "stories260K"] if page.stem == "leaderboard" else [page.stem]
    known = [
        record for name in names for record in read_records(REFERENCE / f"{name}.parquet") if record.value is not None
    ]
    shown: dict[str, set[str]] = {}
    for record in known:
        ends = (record.value, record.low, record.high)
        if None not in ends:
            for digits in (2, 3):
                one, low, high = (f"{each:.{digits}f}" for each in ends)
                shown.setdefault(str(record.method), set()).add(f"{one} [{low}, {high}]")
    count = 0
    for block in page.read_text().partition(DIFFERENCES)[0].split("\n\n"):
        lines = [[each.strip() for each in line.split("|")[1:-1]] for line in block.splitlines() if line[0] == "|"]
        columns = [
            place for place, each in enumerate(lines[0] if lines else ()) if re.fullmatch(r"\d+ \([\d.]+x\)", each)
        ]
        for method, *cells in lines[2:]:
            for place in columns:
                if "[" in (cell := re.sub(r"\*|≈", "", cells[place - 1])):
                    assert cell in shown[method], (method, cell)
                    count += 1
    assert count > 20


@pytest.mark.parametrize(
    "file", [*(page.with_suffix(".parquet") for page in PAGES), REFERENCE / "today/records.parquet"]
)
def test_kept_records_are_records_of_eight_samples_and_more(file: Path) -> None:
    records = read_records(file)
    assert all(record.refused or record.n >= 8 for record in records)
    validator = jsonschema.Draft202012Validator(records_schema())
    for record in {record.metric: record for record in records}.values():
        validator.validate(vars(record))
    for machine in json.loads(pq.read_schema(file).metadata[b"provenance"]):
        assert {"processor", "packages", "python", "git", "corpus_fingerprint"} <= machine.keys()


def test_records_come_back_from_the_file_that_keeps_them(tmp_path: Path) -> None:
    run = REFERENCE / "lexlet"
    keep_records(run, tmp_path / "kept.parquet")
    assert [vars(record) for record in read_records(tmp_path / "kept.parquet")] == [
        each.as_row() for each in build_records([run])
    ]
    spent: dict[str, float] = {}
    for row in rows(run / "costs.jsonl"):
        spent[row["cell"]] = spent.get(row["cell"], 0.0) + row["seconds"]
    kept = pq.read_table(tmp_path / "kept.parquet", columns=["cell", "seconds"]).to_pylist()
    assert {row["cell"]: row["seconds"] for row in kept} == pytest.approx(spent)


def test_puzzles_of_today_are_above_chance_as_their_page_says() -> None:
    """Real weights inside their trained length: on one model the intervals of four made tasks lie above chance."""
    records = read_records(REFERENCE / "today" / "records.parquet")
    page = (REFERENCE / "today" / "README.md").read_text()
    found = [each for each in records if each.metric == "accuracy"]
    above = [each for each in found if (each.low or 0) > (each.chance or 0)]
    assert len([each for each in above if (each.model, each.length) == ("gemma-3-270m", 256)]) >= 4
    assert all(each.length <= each.trained_length for each in found)
    for each in found:
        cells = [each.model, f"`{each.task}`", str(each.length)]
        cells += [f"{value:.2f}" for value in (each.value, each.low, each.high, each.chance)]
        marked = "yes" if each in above else "no"
        assert f"| {' | '.join([*cells, str(each.n), marked])} |" in page
    ours = [each for each in records if not each.task.startswith("graph_walk(")]
    made = "".join(f"| none   | {each.value:.3f} [{each.low:.3f}, {each.high:.3f}] |\n" for each in ours)
    assert f"`{hashlib.sha256(made.encode()).hexdigest()}`" in page


def test_results_are_light_enough_to_be_copied_in_seconds() -> None:
    """What the tree may weigh: a figure twice, or a run's cells, would be noticed here."""
    files = [file for file in RESULTS.rglob("*") if file.is_file() and "report" not in file.parts]
    assert len(files) <= 250 and sum(file.stat().st_size for file in files) < 12_000_000
    assert not [file for file in files if file.suffix == ".png"]


@pytest.mark.slow
def test_the_page_of_smollm2_is_what_its_cells_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2_page, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(smollm2_page, "FIGURE", tmp_path / "curves.svg")
    monkeypatch.setattr(smollm2_page, "COMPARISONS", tmp_path / "comparisons.parquet")
    smollm2_page.main([])
    assert (tmp_path / "page.md").read_text() == (REFERENCE / "smollm2.md").read_text()
    assert (tmp_path / "curves.svg").read_bytes() == (REFERENCE / "smollm2" / "curves.svg").read_bytes()
    kept = pq.read_table(REFERENCE / "smollm2" / "comparisons.parquet")
    made = pq.read_table(tmp_path / "comparisons.parquet").to_pandas()
    pd.testing.assert_frame_equal(made, kept.to_pandas(), rtol=1e-12, atol=1e-12)  # sums may end in another bit
    assert min(len(each.samples) for each in smollm2_page.kept_cells()) >= 16


def test_no_method_of_smollm2_is_compared_with_itself() -> None:
    """By hand: up to 8,192 tokens factors and groups are 1, and rerope's window is 4,096; at 16,384 all six differ."""
    rows = pq.read_table(REFERENCE / "smollm2" / "comparisons.parquet").to_pylist()
    found = {
        each["length"]: {(row["first"], row["second"]) for row in rows if row["length"] == each["length"]}
        for each in rows
    }
    assert found[8192] == {("none", "rerope")} and found.keys() == {8192, 16384} and len(found[16384]) == 15


@pytest.mark.slow
def test_every_page_is_recomputed_from_its_samples_without_lexbench() -> None:
    """In another process, in which lexbench cannot be imported."""
    tool = RESULTS.parent / "tools" / "recompute.py"
    code = (
        "import sys, runpy; sys.modules['lexbench'] = None; sys.argv = ['recompute']; "
        f"runpy.run_path({str(tool)!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(f"{name}: " in done.stdout for name in recompute.PAGES)


def test_a_figure_that_differs_from_its_samples_is_a_fault() -> None:
    """Of 16 texts 8 are right: 0.50, of two in three texts each end within 19 points of the percentile bootstrap's."""
    values = recompute.Values(
        (np.arange(16) % 2).astype(np.float64), np.ones(16), [str(each) for each in range(16)], True
    )
    assert recompute.fault_of("0.50 [0.28, 0.72]", values, 1.0) is None
    assert recompute.fault_of("8 of 16 [28, 72 %]", values, 1.0) is None
    assert recompute.fault_of("**50.0** [28.0, 72.0]", values, 100.0) is None
    for wrong in ("0.51 [0.28, 0.72]", "9 of 16 [28, 72 %]", "8 of 15", "0.50 [0.02, 0.72]"):
        assert recompute.fault_of(wrong, values, 1.0) is not None, wrong


def test_scores_of_likelihoods_are_counted_by_hand() -> None:
    """Two of four options tie at the least; of three tokens the first is none of the key, and one of two is first."""
    facts = {"expected_option": 2, "taught": [[7, 0], [8, 1], [9, 1]], "taught_ranks": [5, 0, 3]}
    row = {"option_nll": [4.0, 3.0, 3.0, 5.0], "facts": json.dumps(facts)}
    assert (recompute.is_chosen(row), recompute.share_forced(row)) == (0.5, 0.5)
    assert recompute.is_chosen({**row, "option_nll": [2.0, 3.0, 3.0, 5.0]}) == 0.0


def test_scores_of_keys_are_counted_by_hand() -> None:
    def row(cluster: str, output: str, expected: str) -> dict[str, Any]:
        return {"cluster": cluster, "output": output, "expected": [expected], "keys": None}

    rows = [
        row("a", " 40231.\nThe", "40213"),
        row("a", " 40213.", "55555"),
        row("b", " is is", "12345"),
        row("b", " 2345", "12345"),
    ]
    found = recompute.key_scores(rows)
    assert [each["in_place"] for each in found] == [0.6, 0.0, 0.0, 0.0]  # 402 of 40213; one digit short shifts all
    assert [each["reached"] for each in found] == [0.0, 1.0, 0.0, 0.0]
    assert [recompute.is_whole(text, ["40213"]) for text in (" 40213.\n", "402135", "40213, 7", "'40213'")] == [
        True,
        False,
        False,
        True,
    ]


def test_the_kept_questions_of_a_board_give_the_records_of_its_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smollm2_page, "QUESTIONS", tmp_path / "kept.parquet")
    cells = [finished("last_segment", "none", 512), finished("passkey", "pi", 512)]
    keep(tmp_path / "one", cells)
    keep_samples.add_rows(smollm2_page.QUESTIONS, keep_samples.rows_of_run(tmp_path / "one"))
    later = [finished("passkey", "pi", 512, n=8), finished("passkey", "ntk", 512)]
    keep(tmp_path / "two", [cells[1], *later])
    keep_samples.add_rows(smollm2_page.QUESTIONS, keep_samples.rows_of_run(tmp_path / "two"))
    kept = smollm2_page.kept_cells()
    assert sorted(each.cell.id for each in kept) == sorted(each.cell.id for each in [*cells, later[1]])
    for mine in kept:
        (whole,) = (each for each in [*cells, *later] if each.cell.id == mine.cell.id)
        shown = {record.metric: record for record in records_of(mine)}
        for record in records_of(whole):
            if record.metric in ("nll", "accuracy"):
                other = shown[record.metric]
                assert (other.value, other.low, other.high) == pytest.approx((record.value, record.low, record.high))
