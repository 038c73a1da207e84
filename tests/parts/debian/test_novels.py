"""Novels out of R's format, by hand and in the real package."""

from pathlib import Path

import pytest

import lexbench
from lexbench import Document
from tests.parts.debian import debs


def test_a_vector_of_strings_is_a_novel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEXBENCH_TEXTS", str(tmp_path))
    novels = [["ONE", "", "£5, she said."], ["Two", "The end"]]
    debs.put(tmp_path, monkeypatch, "r-cran-janeaustenr", {debs.NOVELS: debs.database(*novels)})
    documents = [Document("ONE", "ONE\n\n£5, she said.\n"), Document("Two", "Two\nThe end\n")]
    assert list(lexbench.corpus("novels").documents()) == documents


def test_the_real_novels_are_those_that_rdata_reads() -> None:
    """Lines of each and the hash of all, as PyPI's rdata 1.1.0 reads the six vectors."""
    debs.need_real()
    corpus = lexbench.corpus("novels")
    lines = {document.name: document.text.count("\n") for document in corpus.documents()}
    assert lines == {
        "EMMA": 16235,
        "MANSFIELD PARK": 15349,
        "NORTHANGER ABBEY": 7856,
        "Persuasion": 8328,
        "PRIDE AND PREJUDICE": 13030,
        "SENSE AND SENSIBILITY": 12624,
    }
    assert corpus.fingerprint() == "c0d0e8efd199e755"
