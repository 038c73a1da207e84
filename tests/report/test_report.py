"""A report is made from run folders alone: no model, no torch."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from markdown_it import MarkdownIt

from lexbench.core.record import Sample
from lexbench.report import report, select
from lexbench.report.leaderboard.leaderboard import leaderboard_text
from lexbench.report.report import write_report
from lexbench.stats.records import build_records, records_dataframe
from lexbench.stats.tables import build_tables
from lexbench.store import format, store
from lexbench.store.format import FinishedCell
from tests.report.fake_run import cell, finished, keep, passkey_sample

pytestmark = pytest.mark.usefixtures("undrawn")
FEW = [finished("passkey", method, length, n=4) for method in ("none", "pi") for length in (128, 512)]


def test_the_page_links_what_it_wrote_and_says_what_is_missing(tmp_path: Path) -> None:
    kept = keep(tmp_path, FEW)
    kept.append(cell("passkey", "yarn", 256), passkey_sample(0, 256, 0.0))
    damaged = tmp_path / "cells" / f"{FEW[-1].cell.id}.parquet"
    damaged.write_bytes(b"PAR1")
    page = write_report([tmp_path])
    assert page == tmp_path / "report/report.md"
    text = page.read_text()
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert sorted(links) == sorted(
        str(f.relative_to(page.parent)) for f in page.parent.rglob("*.*") if f.name not in (page.name, "first.json")
    )
    assert "3 cells, 1 of them refused" in text
    assert "**Unfinished, not shown: yarn passkey at 256." in text
    assert f"**Not readable: cell {damaged}" in text
    assert "refused: passkey needs at least 145 tokens" in text
    assert "Protocol: passkey of 5 digits in noise" in text


@pytest.mark.slow
def test_records_are_made_anew_from_the_samples(tmp_path: Path) -> None:
    keep(tmp_path, FEW)
    before = (tmp_path / "records.jsonl").read_bytes()
    (tmp_path / "records.jsonl").write_text('{"value": 1.0}\n')
    write_report([tmp_path])
    assert (tmp_path / "records.jsonl").read_bytes() == before


@pytest.mark.slow
def test_a_report_elsewhere_leaves_the_run_folder_as_it_is(tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    for folder in (run, other):
        keep(folder, FEW)
        (folder / "records.jsonl").write_text('{"value": 1.0}\n')
    before = {file: file.read_bytes() for file in tmp_path.rglob("*.*") if file.is_file()}
    assert write_report([run, other], tmp_path / "elsewhere") == tmp_path / "elsewhere/report.md"
    assert "8 cells" not in (tmp_path / "elsewhere/report.md").read_text()
    write_report([other, run], other / "report")
    changed = {file for file, content in before.items() if file.read_bytes() != content}
    assert changed == {other / "records.jsonl"}
    assert not (run / "report").exists()


def test_names_in_pictures_and_headings_are_text(tmp_path: Path) -> None:
    """Markup of HTML and of Markdown, a link that would end the picture's own, marks that turn the text around."""
    task = "passkey <img src=x onerror=alert(1)> ](https://a.example/x.png) [b](https://b.example) \u202e&lt;"
    metric = "acc](https://c.example)<b>"
    made = []
    for method in ("none", "pi"):
        for length in (128, 512):
            this = finished("passkey", method, length, n=8) if (method, length) != ("none", 128) else FEW[0]
            samples = [replace(each, scores={metric: each.scores["accuracy"]}) for each in this.samples]
            made.append(FinishedCell(cell(task, method, length, n=len(samples) or 8), samples, this.refused))
    kept = keep(tmp_path, made)
    kept.append(cell(task, "yarn", 256), passkey_sample(0, 256, 0.0))
    for file in [write_report([tmp_path]), tmp_path / "report/tables/differences.md"]:
        page = file.read_text()
        assert "\u202e" not in page
        shown = MarkdownIt("commonmark", {"html": True}).enable("table").render(page)
        assert set(re.findall(r"<([a-z]+)", shown)) & {"b", "script"} == set()
        assert "onerror" not in "".join(re.findall(r"<img[^>]*>", re.sub(r'(alt|src)="[^"]*"', "", shown)))
        for source in re.findall(r'(?:src|href)="([^"]*)"', shown):
            assert re.fullmatch(r"(plots|tables)/[\w.-]+", source), source
    pictures = re.findall(
        r'<img src="[^"]*" alt="([^"]*)"', MarkdownIt().render((tmp_path / "report/report.md").read_text())
    )
    assert pictures and all("passkey &lt;img src=x onerror=alert(1)&gt; ](https" in text for text in pictures)


def test_methods_of_several_folders_meet_in_one_table(tmp_path: Path) -> None:
    for method in ("none", "pi"):
        keep(tmp_path / method, [finished("passkey", method, 512, n=4)])
    text = write_report([tmp_path / "none", tmp_path / "pi"], tmp_path / "out").read_text()
    assert text.count("## passkey on lexlet\n") == 1
    assert re.search(r"\| none +\|.*\n\| pi +\|", text)


def test_a_report_holds_what_the_leaderboard_says_of_its_curves(tmp_path: Path) -> None:
    keep(tmp_path, [finished("last_segment", method, 512, n=8) for method in ("none", "pi")])
    text = write_report([tmp_path]).read_text()
    assert "(tables/summaries.md), [numbers](tables/summaries.csv)" in text
    tables = tmp_path / "report/tables"
    assert leaderboard_text([tmp_path], columns="summary") in (tables / "summaries.md").read_text()
    assert (tables / "summaries.csv").read_text() == leaderboard_text([tmp_path], columns="summary", form="csv")


def test_cells_are_read_once_and_figures_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a bound of one, only the first table has figures, and all have numbers."""
    keep(tmp_path, [finished(task, "none", 512, n=4) for task in ("passkey", "needle")])
    read: list[Path] = []

    def counted(file: Path, table: None = None) -> FinishedCell:
        read.append(file)
        return format.read_cell_file(file, table)

    monkeypatch.setattr(report, "MAX_TABLES_WITH_FIGURES", 1)
    monkeypatch.setattr(store, "format", SimpleNamespace(**{**vars(format), "read_cell_file": counted}))
    text = write_report([tmp_path]).read_text()
    assert sorted(read) == sorted((tmp_path / "cells").glob("*.parquet"))
    first, *others = text.split("\n### ")[1:]
    assert f"{len(others) + 1} tables: only the first 1 have figures." in text and len(others) >= 2
    assert "](plots/" in first and not any("](plots/" in each for each in others)
    assert all("All fields: [" in each for each in others)


@pytest.mark.slow
def test_large_reports_have_fewer_figures_unless_more_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(tmp_path, [finished("passkey", "none", 512, n=4, seed=seed) for seed in range(4)])
    monkeypatch.setattr(report, "MAX_TABLES_WITH_FIGURES", 3)
    monkeypatch.setattr(report, "MAX_FIGURES_OF_MANY_CELLS", 1)
    for large, figures, count in ((4, None, 3), (3, None, 1), (3, 2, 2), (3, 0, 0)):
        monkeypatch.setattr(report, "MAX_CELLS_WITH_ALL_FIGURES", large)
        text = write_report([tmp_path], tmp_path / f"out {large} {figures}", figures=figures).read_text()
        assert f"only the first {count} have figures" in text
        assert sum("](plots/" in each for each in text.split("\n### ")) == count
    with pytest.raises(ValueError, match="figures must be a number of tables"):
        write_report([tmp_path], figures=-1)


def test_of_many_cells_the_first_tables_of_each_task_are_shown_and_the_others_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = [finished(task, "none", 512, n=4, seed=seed) for seed in range(4) for task in ("passkey", "recall")]
    keep(tmp_path, every)
    monkeypatch.setattr(select, "MAX_TABLES_OF_MANY_CELLS", 3)
    settings = len({table.setting for table in build_tables(every)})
    tables = len(build_tables(every))
    assert settings == 8 and tables >= 8
    for large, asked, count in ((8, None, tables), (7, None, 3), (7, 5, 5)):
        monkeypatch.setattr(select, "MAX_CELLS_WITH_ALL_TABLES", large)
        out = tmp_path / f"out {large} {asked}"
        text = write_report([tmp_path], out, figures=0, tables=asked).read_text()
        told = f"{tables} tables: only {count} are shown, the first of each model and task. lexbench report --tables N"
        assert (told in text) == (count < tables) and text.count("\n### ") == count
        if count == 5:
            assert {f"{task} on" in text for task in ("passkey", "recall")} == {True}
    with pytest.raises(ValueError, match="tables must be a number of tables"):
        write_report([tmp_path], tables=0)
    page = leaderboard_text([tmp_path])
    assert "8 tables: only 3 are shown" in page and page.count("\n| method") == 3
    assert len(json.loads(leaderboard_text([tmp_path], form="json"))["boards"]) == 8


def test_a_report_is_made_anew_where_a_cell_was_added(tmp_path: Path) -> None:
    for name in ("none", "pi"):
        keep(tmp_path, [finished("last_segment", name, 512, n=2)])
        assert name in write_report([tmp_path]).read_text()


def test_a_report_of_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no cells"):
        write_report([tmp_path])


@pytest.mark.slow
def test_no_torch_is_loaded_to_report(tmp_path: Path) -> None:
    keep(tmp_path, [finished("passkey", "pi", 512, n=4)])
    code = (
        "import sys; from pathlib import Path; from lexbench.report.report import write_report\n"
        "write_report([Path(sys.argv[1])]); print([m for m in ('torch', 'transformers', 'hydra') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_frame_of_a_folder_agrees_with_its_lines(tmp_path: Path) -> None:
    keep(tmp_path, FEW)
    rows = [json.loads(line) for line in (tmp_path / "records.jsonl").open()]
    frame = records_dataframe(build_records([tmp_path]))
    assert sorted(frame.value.dropna()) == sorted(row["value"] for row in rows if row["value"] is not None)


def test_attention_is_drawn_where_samples_carry_it(tmp_path: Path) -> None:
    measured = {
        "curve": np.linspace(1, -1, 256, dtype=np.float32),
        "edges": np.array([0, 1, 2, 4, 256], np.float32),
        "mass": np.full((2, 3, 4), 0.25, np.float32),
    }
    sample = Sample(index=0, cluster="a", tokens=256, scores={"resolution": 0.01, "entropy": 2.0}, statistics=measured)
    keep(tmp_path, [FinishedCell(cell("resolution", "none", 256, n=1), [sample])])
    text = write_report([tmp_path]).read_text()
    assert text.count("-curves.svg)") == 1  # once a setting
    assert (tmp_path / "report/plots/lexlet-resolution-resolution-curves.csv").exists()


def test_a_page_of_somebody_else_is_not_overwritten(tmp_path: Path) -> None:
    keep(tmp_path / "run", FEW)
    (tmp_path / "paper").mkdir()
    notes = tmp_path / "paper" / "report.md"
    notes.write_text("my own notes")
    with pytest.raises(ValueError, match=r"paper/report.md is not of lexbench report, which would replace it"):
        write_report([tmp_path / "run"], tmp_path / "paper")
    assert notes.read_text() == "my own notes"
    notes.unlink()
    for _ in range(2):  # its own is replaced
        write_report([tmp_path / "run"], tmp_path / "paper")
