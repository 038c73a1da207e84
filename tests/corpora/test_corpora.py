"""What all corpora share: names in yamls, hashes, splits by name."""

import hashlib

import pytest

import lexbench
from lexbench import Document
from lexbench.core import objects, registry
from lexbench.corpora import OF_THIS_MACHINE, hash_documents, is_held_out


@pytest.mark.parametrize("name", ["stdlib", "pydoc", "synthetic"])
def test_a_corpus_of_the_registry_has_documents(name: str) -> None:
    documents = list(lexbench.corpus(name).documents())
    assert len(documents) > 5
    assert all(document.text for document in documents if document.name[-11:] != "__init__.py")


@pytest.mark.parts
def test_the_list_says_what_each_corpus_needs() -> None:
    listed = {name: objects.docstring_summary("corpus", name) for name in registry.registered_names("corpus")}
    assert all("; needs " in line for line in listed.values()), listed
    assert {name for name, line in listed.items() if "make texts" in line} == {"novels", "manuals"}
    assert {name for name, line in listed.items() if "this machine's text" in line} == set(OF_THIS_MACHINE)
    assert "[dataset=emozilla/pg19-test, revision=c5e39bf32e33f9111323aa68d7d9000d22722035]" in listed["pg19"]


def test_the_hash_is_of_names_and_texts() -> None:
    page = "a\0é\0b\0text\0".encode()
    documents = [Document("a", "é"), Document("b", "text")]
    assert hash_documents(iter(documents)) == hashlib.sha256(page).hexdigest()[:16]


def test_about_the_asked_share_of_names_is_held_out() -> None:
    """10000 names: the standard error of 0.15 is 0.0036."""
    names = [f"module_{place}.py" for place in range(10_000)]
    assert sum(map(is_held_out, names)) / 10_000 == pytest.approx(0.15, abs=0.015)
    assert [is_held_out("argparse.py"), is_held_out("argparse.py", share=0.0), is_held_out("argparse.py", share=1.0)][
        1:
    ] == [
        False,
        True,
    ]
