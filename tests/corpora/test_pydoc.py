"""Python's documentation as a corpus."""

from pydoc_data.topics import topics

import pytest

from lexbench.corpora.pydoc import Pydoc


def test_documents_are_the_topics_of_help() -> None:
    assert {document.name: document.text for document in Pydoc(split="all").documents()} == topics


def test_train_and_test_divide_all() -> None:
    train, test = ([d.name for d in Pydoc(split=split).documents()] for split in ("train", "test"))
    assert sorted(train + test) == sorted(topics)
    assert 0.05 < len(test) / len(topics) < 0.25


def test_an_unknown_split_is_an_error() -> None:
    with pytest.raises(ValueError, match="must be train, test or all, got dev"):
        Pydoc(split="dev")
