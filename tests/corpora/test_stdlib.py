"""The standard library as a corpus."""

import sysconfig
from pathlib import Path

import pytest

from lexbench.corpora.stdlib import Stdlib


def test_documents_are_the_modules_that_python_itself_has() -> None:
    texts = {document.name: document.text for document in Stdlib(split="all").documents()}
    root = Path(sysconfig.get_paths()["stdlib"])
    for name in ("argparse.py", "json/decoder.py", "asyncio/tasks.py"):
        assert texts[name] == (root / name).read_text(encoding="utf-8")
    assert list(texts) == sorted(texts)
    assert not any({"test", "site-packages", "idlelib"} & set(name.split("/")[:-1]) for name in texts)


def test_train_and_test_divide_all_about_six_to_one() -> None:
    train, test, whole = ([d.name for d in Stdlib(split=split).documents()] for split in ("train", "test", "all"))
    assert sorted(train + test) == sorted(whole)
    assert 0.10 < len(test) / len(whole) < 0.20


def test_an_unknown_split_is_an_error() -> None:
    with pytest.raises(ValueError, match="must be train, test or all, got dev"):
        Stdlib(split="dev")
