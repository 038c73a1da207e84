"""What all corpora share: names in yamls, hashes, splits by name."""

import hashlib

import pytest

import lexbench
from lexbench import Document
from lexbench.corpora import hash_documents, held_out


@pytest.mark.parametrize("name", ["stdlib", "pydoc", "synthetic"])
def test_a_corpus_of_the_registry_has_documents(name: str) -> None:
    documents = list(lexbench.corpus(name).documents())
    assert len(documents) > 5
    assert all(document.text for document in documents if document.name[-11:] != "__init__.py")


def test_the_hash_is_of_names_and_texts() -> None:
    page = "a\0é\0b\0text\0".encode()
    documents = [Document("a", "é"), Document("b", "text")]
    assert hash_documents(iter(documents)) == hashlib.sha256(page).hexdigest()[:16]


def test_about_the_asked_share_of_names_is_held_out() -> None:
    """10000 names: the standard error of 0.15 is 0.0036."""
    names = [f"module_{place}.py" for place in range(10_000)]
    assert sum(map(held_out, names)) / 10_000 == pytest.approx(0.15, abs=0.015)
    assert [held_out("argparse.py"), held_out("argparse.py", share=0.0), held_out("argparse.py", share=1.0)][1:] == [
        False,
        True,
    ]
