"""Datasets from folders on disk (no hub is asked here), and what is said where there are none."""

from pathlib import Path

import datasets
import pytest

from lexbench.corpora import Document
from lexbench.corpora.hub import Hub

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
    with pytest.raises(ValueError, match=r"cannot be loaded \(no split 'dev' in test, train\): check"):
        list(Hub(str(tmp_path / "splits"), split="dev").documents())


def test_the_fingerprint_follows_the_texts(tmp_path: Path, folder: Path) -> None:
    before = Hub(str(folder)).fingerprint()
    (tmp_path / "other").mkdir()
    datasets.Dataset.from_dict({"text": ["first", "second"]}).to_parquet(tmp_path / "other" / "test.parquet")
    assert Hub(str(tmp_path / "other")).fingerprint() != before == Hub(str(folder)).fingerprint()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"field": "body"}, "has no field 'body': choose corpus.field from text, n"),
        ({"field": "n"}, "has int in field 'n', not text: choose another corpus.field"),
        ({"split": "test[1:3]"}, r"holds no text in test\[1:3\]: choose another corpus.split"),
        ({"split": "dev"}, "cannot be loaded .*: check name, config, split and network"),
    ],
)
def test_what_cannot_be_had_is_said_in_one_line(folder: Path, parameters: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        list(Hub(str(folder), **parameters).documents())
    assert "\n" not in str(error.value)


def test_a_folder_that_does_not_exist_is_an_error_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be loaded") as error:
        list(Hub(str(tmp_path / "nowhere")).documents())
    assert "\n" not in str(error.value)
