"""Datasets from folders on disk (no hub is asked here), and what is said where there are none."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import datasets
import pytest

import lexbench
from lexbench.core import registry
from lexbench.corpora import Document, hub
from lexbench.corpora.hub import Hub
from tests.corpora import stand_in_hub

ROWS = {"text": ["first", " ", None, "fourth"], "n": [1, 2, 3, 4]}


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rows").mkdir()
    datasets.Dataset.from_dict(ROWS).to_parquet(tmp_path / "rows" / "test.parquet")
    return tmp_path / "rows"


def test_rows_with_text_are_documents(folder: Path) -> None:
    corpus = Hub(str(folder))
    assert list(corpus.documents()) == [Document("test#0", "first"), Document("test#3", "fourth")]
    assert list(Hub(str(folder), split="test[:2]").documents()) == [Document("test[:2]#0", "first")]


def test_what_save_to_disk_wrote_is_read_whole_or_by_split(tmp_path: Path, folder: Path) -> None:
    rows = datasets.Dataset.from_dict(ROWS)
    rows.save_to_disk(tmp_path / "whole")
    datasets.DatasetDict({"test": rows, "train": rows.select([0])}).save_to_disk(tmp_path / "splits")
    expected = list(Hub(str(folder)).documents())
    assert list(Hub(str(tmp_path / "whole")).documents()) == expected
    assert list(Hub(str(tmp_path / "splits")).documents()) == expected
    assert list(Hub(str(tmp_path / "splits"), split="train").documents()) == [Document("train#0", "first")]
    with pytest.raises(
        ValueError, match=r"""cannot be loaded \(Unknown split "dev".* \['test', 'train'\]\.\): check"""
    ):
        list(Hub(str(tmp_path / "splits"), split="dev").documents())


@pytest.mark.parametrize("split", ["test[:2]", "test[2:]", "test[75%:]", "test[-1:]", "test[:1]+test[3:]"])
def test_a_slice_of_what_save_to_disk_wrote_is_that_of_the_same_rows_in_parquet(
    tmp_path: Path, folder: Path, split: str
) -> None:
    rows = datasets.Dataset.from_dict(ROWS)
    rows.save_to_disk(tmp_path / "whole")
    datasets.DatasetDict({"test": rows}).save_to_disk(tmp_path / "splits")
    expected = list(Hub(str(folder), split=split).documents())
    assert list(Hub(str(tmp_path / "whole"), split=split).documents()) == expected
    assert list(Hub(str(tmp_path / "splits"), split=split).documents()) == expected


def test_the_fingerprint_follows_the_texts(tmp_path: Path, folder: Path) -> None:
    before = Hub(str(folder)).fingerprint()
    (tmp_path / "other").mkdir()
    datasets.Dataset.from_dict({"text": ["first", "second"]}).to_parquet(tmp_path / "other" / "test.parquet")
    assert Hub(str(tmp_path / "other")).fingerprint() != before == Hub(str(folder)).fingerprint()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"field": "body"}, "has no field 'body': choose corpus.field from text, n"),
        ({"field": "body.text"}, "has no field 'body': choose corpus.field from text, n"),
        ({"field": "n"}, "row 0 has no text in field 'n', it is int"),
        ({"begins": "("}, r"corpus.begins must be a regular expression, got '\(' \(.*\)"),
        ({"split": "test[1:3]"}, r"holds no text in test\[1:3\]: choose another corpus.split"),
        ({"split": "dev"}, "cannot be loaded .*: check name, config, split and network"),
    ],
)
def test_what_cannot_be_had_is_said_in_one_line(folder: Path, parameters: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        list(Hub(str(folder), **parameters).documents())
    assert "\n" not in str(error.value)


def test_lists_and_objects_in_rows_are_read_by_path_and_form(tmp_path: Path) -> None:
    turns = [{"who": "A", "said": "x"}, {"who": "B", "said": "y"}]
    rows = [{"talk": {"title": "T", "turns": turns}, "a.b": "dot"}, {"talk": {"title": None, "turns": []}, "a.b": ""}]
    (tmp_path / "talks").mkdir()
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "talks" / "test.parquet")
    folder = str(tmp_path / "talks")
    assert list(Hub(folder, field="talk.turns", form="{who}: {said}").documents()) == [Document("test#0", "A: x\nB: y")]
    assert list(Hub(folder, field="talk.title").documents()) == [Document("test#0", "T")]
    assert list(Hub(folder, field="a.b").documents()) == [Document("test#0", "dot")]


def of_lines(folder: Path, lines: list[str], begins: str) -> list[Document]:
    folder.mkdir()
    datasets.Dataset.from_dict({"text": lines}).to_parquet(folder / "test.parquet")
    return list(Hub(str(folder), begins=begins).documents())


def test_rows_that_are_lines_are_joined_into_documents(tmp_path: Path) -> None:
    lines = ["", "# One", "a", "", "b\n", "# Two", "# Three", "c # no"]
    one, two, three = "# One\na\n\nb\n", "# Two\n", "# Three\nc # no\n"
    found = [Document("test#1", one), Document("test#5", two), Document("test#6", three)]
    assert of_lines(tmp_path / "lines", lines, "^# ") == found
    assert of_lines(tmp_path / "begun", lines[1:], "^# ")[0] == Document("test#0", one)
    assert of_lines(tmp_path / "headless", ["preface", *lines], "^# ")[0] == Document("test#0", "preface\n\n")
    assert of_lines(tmp_path / "nowhere", ["a", "b"], "^# ") == [Document("test#0", "a\nb\n")]


def test_wikitext_is_cut_into_its_sixty_articles(tmp_path: Path, shared: Path) -> None:
    """60 articles in WikiText-2's test split (Merity et al. 2016, table 1); one has lines that look like titles.

    On the hub an empty line is an empty row, and the others keep their line ends.
    """
    raw = (shared / "text/wikitext2_test.txt").read_text().splitlines(keepends=True)
    lines = ["" if line.isspace() else line for line in raw]
    articles = of_lines(tmp_path / "wikitext", lines, registry.read_named_config("corpus", "wikitext")["begins"])
    assert len(articles) == 60
    assert articles[0].text.startswith(" = Robert <unk> = \n")
    assert sum(len(article.text.split()) for article in articles) == sum(len(line.split()) for line in raw)


@pytest.mark.parametrize("name", ["pg19", "proof_pile", "gov_report", "wikitext"])
def test_datasets_of_the_registry_are_read_from_the_hub(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    field = {"gov_report": "report"}.get(name, "text")
    rows = datasets.Dataset.from_dict({field: ["a text"], "other": ["no"]})
    asked: list[tuple[Any, ...]] = []

    def load_dataset(*names: str | None, **options: str | None) -> datasets.Dataset:
        asked.append((*names, options))
        return rows

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    corpus = lexbench.corpus(name)
    assert [document.text.strip() for document in corpus.documents()] == ["a text"]
    assert [str(each[0]).count("/") for each in asked] == [1]
    revision = asked[0][2].pop("revision")
    assert asked[0][2] == {"split": "test"}
    assert revision is None if name == "proof_pile" else re.fullmatch("[0-9a-f]{40}", revision)


READ = """
import sys, lexbench
pinned = lexbench.corpus("pg19")
newest = lexbench.corpus("pg19", revision=None)
copied = lexbench.corpus("pg19", dataset=sys.argv[1])
print([[document.text for document in each.documents()] for each in (pinned, newest, copied)])
print(pinned.fingerprint() == copied.fingerprint())
"""


@pytest.mark.slow
def test_a_pinned_revision_is_read_from_a_hub_whose_newest_is_another(tmp_path: Path) -> None:
    """In a process of its own: the hub's clients read the address once. A folder of the files is the same text."""
    revision, newest = registry.read_named_config("corpus", "pg19")["revision"], "a" * 40
    commits = {}
    for commit, texts in ((newest, ["changed"]), (revision, ["a book", "another"])):
        file = tmp_path / commit / "data" / "test-00000-of-00001.parquet"
        file.parent.mkdir(parents=True)
        datasets.Dataset.from_dict({"text": texts}).to_parquet(file)
        commits[commit] = {"README.md": b"# Books\n", "data/test-00000-of-00001.parquet": file.read_bytes()}
    with stand_in_hub.hub("emozilla/pg19-test", commits) as address:
        own = {
            "HF_ENDPOINT": address,
            "HF_HUB_OFFLINE": "0",
            "HF_HOME": str(tmp_path / "home"),
            "NO_PROXY": "127.0.0.1",
        }
        command = [sys.executable, "-c", READ, str(tmp_path / revision)]
        done = subprocess.run(command, env={**os.environ, **own}, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[['a book', 'another'], ['changed'], ['a book', 'another']]", "True"]


def test_a_folder_that_does_not_exist_is_an_error_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be loaded") as error:
        list(Hub(str(tmp_path / "nowhere")).documents())
    assert "\n" not in str(error.value)


def test_a_hub_out_of_reach_is_said_in_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing listens at the address: the hub's client alone would try for half a minute."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "hub_is_reached", lambda: False)
    started = time.monotonic()
    with pytest.raises(ValueError, match=r"^dataset nobody/nothing cannot be loaded \(.*\): check name, config, split"):
        list(Hub("nobody/nothing").documents())
    assert time.monotonic() - started < 5
    assert datasets.config.HF_HUB_OFFLINE is False
