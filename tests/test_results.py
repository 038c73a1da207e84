"""Committed results are what the committed records give: nothing in them is typed."""

import shutil
from pathlib import Path

import pytest

from lexbench import cli

REFERENCE = Path(__file__).parent.parent / "results" / "reference"
RUNS = sorted(page.stem for page in REFERENCE.glob("*.md"))
"""Run folders, each with its page beside it."""


@pytest.mark.slow
@pytest.mark.parametrize("folder", RUNS)
def test_a_reference_table_is_the_report_of_its_records(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(REFERENCE / folder, tmp_path / "run")
    assert cli.main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "report")]) == 0
    assert (tmp_path / "run" / "records.jsonl").read_text() == (REFERENCE / folder / "records.jsonl").read_text()
    page = (REFERENCE / f"{folder}.md").read_text()
    table = (tmp_path / "report" / "tables" / "differences.md").read_text()
    assert table.split("\n", 1)[1].strip() in page  # all but its title
