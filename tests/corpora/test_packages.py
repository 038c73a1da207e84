"""The packages that are installed with lexbench as a corpus."""

import ast
import sys
from pathlib import Path

import pytest

import lexbench
from lexbench.corpora import default_corpus, for_lengths
from lexbench.corpora.packages import MAX_DEFAULT_LENGTH_TOKENS, Packages
from lexbench.corpora.stdlib import Stdlib


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two packages: `one` of five files with 100 characters each, their paths included, `two` of one file."""
    files = ["one/__init__.py", "one/a.py", "one/b/c.py", "one/b/d.py", "one/z.py", "two/__init__.py"]
    for name in [*files, "one/tests/t.py", "one/__config__.py", "one/a.txt"]:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"x = '{name}'".ljust(100 - len(f"# {name}\n\n"), "#"))
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("small")
def test_files_are_joined_in_the_order_of_their_paths_until_a_document_is_long_enough() -> None:
    first, other, last = Packages(names=("one", "two"), size=200).documents()
    assert [len(first.text), len(other.text), len(last.text)] == [200, 100, 300]
    assert [document.name for document in (first, other, last)] == ["one/__init__.py", "two/__init__.py", "one/b/c.py"]
    lines = [line for line in (first.text + last.text).splitlines() if line.startswith("# ")]
    assert lines == ["# one/__init__.py", "# one/a.py", "# one/b/c.py", "# one/b/d.py", "# one/z.py"]
    assert ast.literal_eval(ast.parse(last.text).body[2].value) == "one/z.py"  # type: ignore[attr-defined]


@pytest.mark.usefixtures("small")
def test_a_package_of_too_few_characters_is_one_document_and_count_ends_the_list() -> None:
    assert [len(document.text) for document in Packages(names=("one",), size=301).documents()] == [500]
    assert [len(document.text) for document in Packages(names=("one",), size=251).documents()] == [500]
    assert [len(document.text) for document in Packages(names=("one",), size=1, count=3).documents()] == [100] * 3


def test_the_size_follows_the_longest_length_up_to_131072_tokens() -> None:
    sizes = [for_lengths(Packages(), [128, longest]).size for longest in (8192, 8193, 131072, 1 << 20)]  # type: ignore[attr-defined]
    assert sizes == [5 * 8192, 5 * 16384, 5 * 131072, 5 * 131072]
    assert for_lengths(Packages(size=7), [8192]) == Packages(size=7)
    assert for_lengths(Stdlib(), [8192]) == Stdlib()


def test_the_default_packages_have_more_documents_than_a_cell_has_samples() -> None:
    found = list(Packages().documents())
    assert len(found) >= 32
    assert min(len(document.text) for document in found) >= 5 * MAX_DEFAULT_LENGTH_TOKENS
    assert len({document.name for document in found}) == len(found)
    assert {document.name.split("/")[0] for document in found} <= sys.modules.keys() | set(Packages().names)
    read = {document.name for document in Stdlib(split="all").documents()}
    assert not any(f"# {name}\n" in document.text for document in found[:3] for name in read if "/" in name)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"names": ()}, "corpus.names must list packages, got"),
        ({"names": "numpy"}, "corpus.names must list packages, got 'numpy'"),
        ({"names": ("numpy", "pandas", "numpy")}, "corpus.names must name each package once, got numpy again"),
        ({"size": 0}, "corpus.size must be at least 1, got 0"),
        ({"count": 0}, "corpus.count must be at least 1, got 0"),
    ],
)
def test_wrong_parameters_are_errors(given: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Packages(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["no_such_package", "../numpy", "no.such.part"])
def test_a_package_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=f"corpus packages finds no source of {name}: install it"):
        list(Packages(names=(name,)).documents())


def test_a_run_without_a_corpus_reads_modules_or_packages_by_its_longest_length() -> None:
    assert [default_corpus(longest) for longest in (2, 4096, 4097, 1 << 20)] == [*["stdlib"] * 2, *["packages"] * 2]


def test_synthetic_documents_of_many_words() -> None:
    """A recall is due up to 65536 words later: some are more than half of that."""
    corpus = lexbench.corpus("synthetic_long", count=1)
    [document] = corpus.documents()
    words = document.text.split()
    assert 131072 <= len(words) < 131072 + 10
    stated: dict[tuple[str, str], int] = {}
    distances = []
    for place in range(len(words) - 5):
        if words[place + 1] == "owns":
            stated[words[place], words[place + 4].rstrip(".")] = place
        elif words[place + 2] == "of" and words[place + 4] == "is":
            distances.append(place - stated[words[place + 3], words[place + 1]])
    assert max(distances) > 32768
