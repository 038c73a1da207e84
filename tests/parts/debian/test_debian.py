"""Packages of Debian as texts: what is read of them, what is refused, and the same questions from any folder."""

import hashlib
import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

import lexbench
from lexbench import Corpus, Loglikelihood
from lexbench.checkpoints.tokenizer import FastTokenizer, load_tokenizer
from lexbench.parts.debian import packages as debian
from lexbench.parts.debian.packages import DEBIAN_PACKAGES, files_of
from lexbench.runner.cells import Component
from tests.parts.debian import debs


def test_files_right_in_a_folder_are_read_sorted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEXBENCH_TEXTS", str(tmp_path))
    files = {"usr/b": b"two", "usr/a": b"one", "usr/deep/c": b"no", "a": b"no", "usr/z": b"odd"}
    debs.put(tmp_path, monkeypatch, "anarchism", files)
    assert list(files_of("anarchism", "usr").items()) == [("a", b"one"), ("b", b"two"), ("z", b"odd")]


@pytest.mark.skipif(not shutil.which("dpkg-deb"), reason="no dpkg-deb")
def test_dpkg_reads_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that dpkg-deb has built is read, too."""
    (tmp_path / "made/DEBIAN").mkdir(parents=True)
    about = "Package: p\nVersion: 1\nArchitecture: all\nMaintainer: m\nDescription: d\n"
    (tmp_path / "made/DEBIAN/control").write_text(about)
    (tmp_path / "made/usr").mkdir()
    (tmp_path / "made/usr/page.html").write_text("a page")
    build = ["dpkg-deb", "-Zxz", "--root-owner-group", "--build", "made", "anarchism_1_all.deb"]
    subprocess.run(build, cwd=tmp_path, check=True, capture_output=True)
    sha256 = hashlib.sha256((tmp_path / build[-1]).read_bytes()).hexdigest()
    monkeypatch.setitem(DEBIAN_PACKAGES, "anarchism", debian.Deb("anarchism", "1", sha256))
    monkeypatch.setenv("LEXBENCH_TEXTS", str(tmp_path))
    assert files_of("anarchism", "usr") == {"page.html": b"a page"}


@pytest.mark.parametrize("name", ["r-cran-janeaustenr", "anarchism", "debian-reference-en"])
def test_a_real_package_has_the_files_that_dpkg_finds_in_it(name: str) -> None:
    debs.need_real()
    if not shutil.which("dpkg-deb"):
        pytest.skip("no dpkg-deb")
    unpack = ["dpkg-deb", "--fsys-tarfile", str(debian.packages_folder() / DEBIAN_PACKAGES[name].file)]
    packed = subprocess.run(unpack, check=True, capture_output=True).stdout
    under = {"anarchism": debs.ESSAYS, "debian-reference-en": debs.CHAPTERS}.get(name, str(Path(debs.NOVELS).parent))
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        inside = [each for each in tar if each.isfile() and Path(each.name).parent == Path(under)]
        expected = {Path(each.name).name: tar.extractfile(each).read() for each in inside}  # type: ignore[union-attr]
    assert files_of(name, under) == expected


def hash_questions(corpus: Corpus, tokenizer: FastTokenizer, lengths: Sequence[int], n: int) -> str:
    """Hash of tokens, first targets and clusters of last_segment's questions."""
    task = lexbench.task("last_segment", corpus=corpus).for_lengths(lengths)
    digest = hashlib.sha256()
    for each in (each for length in lengths for each in task.questions(tokenizer, length, n, 0)):
        assert isinstance(each, Loglikelihood)
        digest.update(
            each.tokens.astype("<i8").tobytes() + each.first_target.to_bytes(8, "little") + each.cluster.encode()
        )
    return digest.hexdigest()[:16]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "expected"), [("novels", "17201e7095b1b0fd"), ("manuals", "01eb2b61431f688a")])
def test_the_real_texts_give_the_questions_of_another_clone(name: str, expected: str) -> None:
    """The hashes of a clone with Python 3.12.1, numpy 2.0.2 and tokenizers 0.20.3, and another LEXBENCH_TEXTS."""
    debs.need_real()
    tokenizer = load_tokenizer(Path(lexbench.__file__).parent / "lexlet")
    assert hash_questions(lexbench.corpus(name), tokenizer, [1024, 8192], 8) == expected


def test_the_same_text_in_another_folder_gives_the_same_questions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizer: FastTokenizer
) -> None:
    """As a second clone reads it: fingerprints, questions and identities have equal hashes."""

    def asked_there() -> list[object]:
        corpora = {name: lexbench.corpus(name) for name in ("novels", "manuals")}
        named = [Component(name, corpus, name) for name, corpus in corpora.items()]
        identities = [(each.identity, each.fingerprint) for each in named]
        return [*identities, *(hash_questions(corpus, tokenizer, [32, 64], 6) for corpus in corpora.values())]

    debs.put_all(tmp_path / "one", monkeypatch)
    first = asked_there()
    shutil.copytree(tmp_path / "one", tmp_path / "other")
    shutil.rmtree(tmp_path / "one")
    monkeypatch.setenv("LEXBENCH_TEXTS", str(tmp_path / "other"))
    assert asked_there() == first
    monkeypatch.setenv("LEXBENCH_TEXTS", str(tmp_path / "one"))
    with pytest.raises(ValueError, match="run `make texts`"):
        asked_there()


@pytest.mark.parametrize("name", ["novels", "manuals"])
def test_a_text_that_is_not_there_is_one_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEXBENCH_TEXTS", str(tmp_path))
    file = {"novels": "r-cran-janeaustenr_1.0.0-1_all.deb", "manuals": "anarchism_15.3-3_all.deb"}[name]
    with pytest.raises(ValueError, match=rf"^{file} of Debian must be in .*, it is not: run `make texts`$"):
        list(lexbench.corpus(name).documents())


def test_another_package_of_the_same_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    debs.put_all(tmp_path, monkeypatch)
    with (tmp_path / DEBIAN_PACKAGES["anarchism"].file).open("ab") as file:
        file.write(b"\n")
    with pytest.raises(ValueError, match=r"must have the SHA-256 .*, it has .*: delete it and run `make texts`$"):
        list(lexbench.corpus("manuals").documents())


APT = """#!/bin/sh
echo "$@" >>asked
for wanted in "$@"; do
    test -f "$0-${wanted%%=*}" && cp "$0-${wanted%%=*}" "${wanted%%=*}_${wanted##*=}_all.deb"
done
test -f "$0-anarchism" || { echo "E: Version '15.3-3' for 'anarchism' was not found" >&2; exit 100; }
"""
"""An apt-get that has the packages which lie beside it."""


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "bin").mkdir()
    apt = tmp_path / "bin/apt-get"
    apt.write_text(APT)
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", f"{apt.parent}:{os.environ['PATH']}")
    debs.put_all(tmp_path / "archive", monkeypatch)
    for name in [name for name in DEBIAN_PACKAGES if not (tmp_path / "archive" / DEBIAN_PACKAGES[name].file).exists()]:
        monkeypatch.delitem(DEBIAN_PACKAGES, name)
    for deb in DEBIAN_PACKAGES.values():
        shutil.copy(tmp_path / "archive" / deb.file, f"{apt}-{deb.name}")
    monkeypatch.setenv("LEXBENCH_TEXTS", str(tmp_path / "texts"))
    return apt


def test_packages_are_fetched_once_by_name_and_version(apt: Path, tmp_path: Path) -> None:
    files = debian.download_packages()
    assert [file.name for file in files] == [deb.file for deb in DEBIAN_PACKAGES.values()]
    assert debian.download_packages() == files
    files[0].write_bytes(b"broken off")
    debian.download_packages()
    wanted = [f"{deb.name}={deb.version}" for deb in DEBIAN_PACKAGES.values()]
    asked = (tmp_path / "texts/asked").read_text().splitlines()
    assert asked == [f"download --quiet {' '.join(wanted)}", f"download --quiet {wanted[0]}"]
    assert len(list(lexbench.corpus("novels").documents())) == 3


def test_what_an_archive_has_no_longer_is_named(apt: Path) -> None:
    Path(f"{apt}-anarchism").unlink()
    with pytest.raises(
        ValueError, match=r"^apt-get does not bring anarchism_1-1_all.deb \(E: Version '15.3-3'"
    ) as said:
        debian.download_packages()
    assert f"anarchism_1-1_all.deb (SHA-256 {DEBIAN_PACKAGES['anarchism'].sha256})" in str(said.value)


def test_without_apt_the_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEXBENCH_TEXTS", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(
        ValueError, match=r"^the texts need apt-get, which is not there; put into .*: r-cran-janeaustenr_1"
    ):
        debian.download_packages()
