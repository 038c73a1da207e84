"""The standard library as a corpus."""

import sysconfig
from pathlib import Path

import pytest

from lexbench.corpora.stdlib import Stdlib


def test_documents_are_the_modules_of_python_and_train_and_test_divide_them() -> None:
    texts = {document.name: document.text for document in Stdlib(split="all").documents()}
    root = Path(sysconfig.get_paths()["stdlib"])
    for name in ("argparse.py", "json/decoder.py", "asyncio/tasks.py"):
        assert texts[name] == (root / name).read_text(encoding="utf-8")
    assert list(texts) == sorted(texts)
    assert not any({"test", "site-packages", "idlelib"} & set(name.split("/")[:-1]) for name in texts)
    train, test = ([document.name for document in Stdlib(split=split).documents()] for split in ("train", "test"))
    assert sorted(train + test) == list(texts)
    assert 0.10 < len(test) / len(texts) < 0.20


def test_an_unknown_split_is_an_error() -> None:
    with pytest.raises(ValueError, match="must be train, test or all, got dev"):
        Stdlib(split="dev")
