"""The committed pages of studies are what their records give; run as a program, this writes them anew."""

import functools
import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pyarrow.parquet as pq
import pytest

from lexbench.core.method_key import BASELINE_METHOD
from lexbench.parts.lab.study import page
from lexbench.parts.lab.study.page.curves import build_curves
from lexbench.parts.lab.study.page.shapes import MAX_FLAT_CHANGE_NATS, MIN_EXPLODING_CHANGE_NATS, SHAPE_RULE_TEXT
from lexbench.parts.lab.study.page.tables import format_change
from lexbench.parts.lab.study.page.texts import INTERVALS_TEXT
from tests.report.pictures import drawn

ROOT = Path(__file__).parents[4]
FOLDERS = sorted(file.parent for file in (ROOT / "results" / "reference").glob("*/measured.parquet"))
FOLDER = ROOT / "results" / "reference" / "encodings2"


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_page_is_what_the_records_give(folder: Path, tmp_path: Path) -> None:
    for name in ("measured.parquet", "models.json"):
        shutil.copy(folder / name, tmp_path / name)
    with drawn() as figures:
        page.write_page(tmp_path)
    for place in (0, -1):  # of each kind one
        figures[place].savefig(tmp_path / f"{place}.svg")
    anew = f"write it anew: python {Path(__file__).relative_to(ROOT)}"
    assert (tmp_path / "README.md").read_text() == (folder / "README.md").read_text(), anew
    shown = {Path(link).name for link in re.findall(r"\]\((plots/[^)]+)\)", (folder / "README.md").read_text())}
    assert shown == {file.name for file in (folder / "plots").iterdir()}, "a figure is missing, or stands on no page"
    assert shown < {file.name for file in (tmp_path / "plots").iterdir()}


@pytest.mark.slow
def test_a_page_says_where_published_tables_stand_beside_another_protocol(tmp_path: Path) -> None:
    """The laboratory compares windows as the tables have them; one that compares the same targets says so."""
    about, names = json.loads((FOLDER / "models.json").read_text()), ["rope-seed0", "nope-seed0", "alibi-seed0"]
    about["models"] = [model for model in about["models"] if model["name"] in names]
    measured = pq.read_table(FOLDER / "measured.parquet", filters=[("model", "in", names)])
    pq.write_table(measured, tmp_path / "measured.parquet")
    assert about["compare"] == "non_overlapping"
    said = "Shapes and orders of ours are those of `last_segment`"
    assert said not in (FOLDER / "README.md").read_text()
    (tmp_path / "models.json").write_text(json.dumps({**about, "compare": "last_segment"}))
    with drawn():
        assert said in page.write_page(tmp_path).read_text()


@pytest.mark.everyday("algorithms", "parity")
@pytest.mark.parametrize("name", ["addition", "algorithms", "parity"])
def test_shares_of_whole_strings_stand_below_those_of_symbols(name: str) -> None:
    folder = FOLDER.with_name(name)
    columns = ["model", "task", "length", "metric", "value"]
    values: dict[tuple[str, str], dict[tuple[int, str], float]] = {}
    for row in pq.read_table(folder / "measured.parquet", columns=columns).to_pylist():
        found = values.setdefault((row["task"], row["metric"]), {})
        found[row["length"], row["model"].removesuffix("-seed0")] = row["value"]
    text = (folder / "README.md").read_text()
    for task in {task for task, _ in values}:
        section = text.partition(f"\n### {task}\n")[2].partition("\n##")[0]
        shown = dict(re.findall(r"^\| (\w+) +\|(.*)\|$", section.partition("\nexact:\n")[2], re.MULTILINE))
        several = values[task, "accuracy"] != values.get((task, "exact"), values[task, "accuracy"])
        assert several == bool(shown), task
        for entry in {entry for _, entry in values[task, "exact"]} if several else ():
            own = [value for (_, each), value in sorted(values[task, "exact"].items()) if each == entry]
            assert re.findall(r"(\S+) \[", shown[entry]) == [f"{value:.2f}" for value in own]


def documented(heading: str) -> list[list[str]]:
    """The rows of the table of results/encodings.md whose first cell is that heading."""
    text = (ROOT / "results" / "encodings.md").read_text()
    lines = text.split(f"| {heading} |")[1].split("\n\n")[0].splitlines()[2:]
    return [[each.strip() for each in line.split("|")[1:-1]] for line in lines]


@functools.cache
def laboratory() -> dict[tuple[str, str, int], list[float]]:
    """Values of all seeds without a method, by entry, task and length."""
    found: dict[tuple[str, str, int], list[float]] = {}
    for row in page.read_page_data(FOLDER)[0]:
        each = row.record
        if each.method == BASELINE_METHOD and each.metric in ("nll", "accuracy") and each.value is not None:
            entry, task = each.model.partition("-seed")[0], each.task.partition("(")[0]
            found.setdefault((entry, task, each.length), []).append(each.value)
    return found


@pytest.mark.slow
def test_the_documentation_shows_the_models_trained_further_as_their_records_do() -> None:
    entries = {
        "RoPE": "rope_further",
        "ABF": "abf",
        "PI": "pi",
        "PoSE": "pose",
        "CLEX": "clex_further",
        "DroPE": "drope",
    }
    columns = [("last_segment", 128, 3), ("last_segment", 1024, 3), ("copy", 1024, 2), ("passkey", 1024, 2)]
    values = laboratory()
    assert {name.split()[0].strip(","): shown for name, _, *shown in documented("trained further")} == {
        name: [f"{mean(values[entry, task, length]):.{digits}f}" for task, length, digits in columns]
        for name, entry in entries.items()
    }


@pytest.mark.slow
def test_the_documentation_shows_what_content_decides_beside_others_as_their_records_do() -> None:
    values, rows = laboratory(), documented("encoding, seeds")
    judged = build_curves(*page.read_page_data(FOLDER))
    changes = {
        curve.entry: change
        for curve in judged
        if (curve.task_name, curve.method) == ("last_segment", BASELINE_METHOD) and (change := curve.points[-1].change)
    }
    assert len(rows) == 35
    for label, *shown in rows:
        name, seeds = label.strip("`").split("`, ")
        assert len(values[name, "last_segment", 128]) == {"one": 1, "three": 3}[seeds]
        near, far, copies, keys = (
            mean(values[name, task, length])
            for task, length in (("last_segment", 128), ("last_segment", 1024), ("copy", 1024), ("passkey", 1024))
        )
        assert shown == [f"{near:.3f}", f"{far:.3f}", format_change(changes[name]), f"{copies:.2f}", f"{keys:.2f}"]


@pytest.mark.slow
def test_the_documentation_shows_what_seeds_change_as_their_records_do() -> None:
    values, said = laboratory(), (ROOT / "results" / "encodings.md").read_text().replace("\n", " ")

    def changes(entry: str) -> list[float]:
        near, far = (values[entry, "last_segment", length] for length in (128, 1024))
        return [after - before for before, after in zip(near, far, strict=True)]

    first, second, third = changes("alibi")
    assert f"Seed 0 alone rose by {first:.3f} and" in said
    assert f"seeds 1 and 2 change by {second:.3f} and {third:.3f}." in " ".join(said.split())
    _, second, third = changes("rope")
    assert f"with seeds 1 and 2 it is {second:.2f} and {third:.2f}." in " ".join(said.split())


def test_the_documentation_states_the_rule_of_the_page() -> None:
    stated = (ROOT / "docs" / "encodings.md").read_text()
    assert SHAPE_RULE_TEXT in stated
    for said in ("approximate 95 % intervals", "Student's t, S - 1 degrees of", "rough with few seeds or documents"):
        assert said in stated.replace("\n", " ") and said in INTERVALS_TEXT.replace("\n", " ")


def test_the_rule_says_the_numbers_that_judge() -> None:
    assert f"Above ln 2 = {MIN_EXPLODING_CHANGE_NATS:.2f}, 2 times the perplexity" in SHAPE_RULE_TEXT
    assert (
        f"above {MAX_FLAT_CHANGE_NATS:g} it" in SHAPE_RULE_TEXT
        and f"below -{MAX_FLAT_CHANGE_NATS:g} it" in SHAPE_RULE_TEXT
    )


@pytest.mark.slow
def test_two_versions_of_a_task_are_refused_on_one_page() -> None:
    rows, _ = page.read_page_data(FOLDER)
    first, second = [row for row in rows if row.record.task == "resolution"][:2]
    page.check_protocols([first, second], FOLDER)
    other = replace(second, record=replace(second.record, protocol="version 2"))
    with pytest.raises(
        ValueError, match=r"must hold one protocol of resolution, .*version 2.*give another results=DIR"
    ):
        page.check_protocols([first, other], FOLDER)


if __name__ == "__main__":
    for folder in FOLDERS:
        shown = page.write_page(folder)
        for file in {*(folder / "plots").iterdir()} - {
            folder / link for link in re.findall(r"plots/[\w.-]+", shown.read_text())
        }:
            file.unlink()
        print(shown, file=sys.stderr)
