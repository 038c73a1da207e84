"""Small packages in Debian's format, written here by its definition (deb(5), ar(5)), and where the real ones are."""

import hashlib
import io
import struct
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from lexbench.parts.debian import packages as debian
from lexbench.parts.debian.packages import DEBIAN_PACKAGES, Deb

NOVELS = "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"
ESSAYS, CHAPTERS = "usr/share/doc/anarchism/html", "usr/share/debian-reference"


def archive(files: Mapping[str, bytes]) -> bytes:
    """A .deb: an ar archive of the format's number, nothing about the package, and a tar archive of its files."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"./{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    members = {"debian-binary": b"2.0\n", "control.tar.xz": b"odd", "data.tar.xz": packed.getvalue()}
    parts = [
        f"{name:16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode() + content + b"\n" * (len(content) % 2)
        for name, content in members.items()
    ]
    return b"!<arch>\n" + b"".join(parts)


def database(*objects: Sequence[str]) -> bytes:
    """A database of R's vectors of strings: each after its size, by zlib; flags of ASCII 0x40009, of UTF-8 0x8009."""
    return b"".join(struct.pack(">I", len(each)) + zlib.compress(each) for each in map(vector, objects))


def vector(lines: Sequence[str]) -> bytes:
    head = b"X\n" + struct.pack(">4I5sII", 3, 0x040201, 0x030500, 5, b"UTF-8", 16, len(lines))
    flags = {True: 0x40009, False: 0x8009}
    texts = [line.encode() for line in lines]
    return head + b"".join(struct.pack(">2I", flags[text.isascii()], len(text)) + text for text in texts)


def put(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, files: Mapping[str, bytes]) -> None:
    """Put a package into a folder, and make it the one that is wanted by this name."""
    content = archive(files)
    deb = Deb(name, "1-1", hashlib.sha256(content).hexdigest())
    monkeypatch.setitem(DEBIAN_PACKAGES, name, deb)
    folder.mkdir(exist_ok=True)
    (folder / deb.file).write_bytes(content)


def put_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put small packages of all texts in English into a folder, and read them from there."""
    monkeypatch.setenv("LEXBENCH_TEXTS", str(folder))
    novels = [[f"NOVEL {number}", *["a line of it, and what comes then"] * 40] for number in range(3)]
    put(folder, monkeypatch, "r-cran-janeaustenr", {NOVELS: database(*novels)})
    for name, under, pages in (
        ("anarchism", ESSAYS, ["secA1.html", "secB2.html"]),
        ("debian-reference-en", CHAPTERS, ["ch01.en.html", "ch02.en.html"]),
    ):
        page = "<html><body><h1>{}</h1>" + "<p>It is so, and it was not otherwise.</p>" * 40 + "</body></html>"
        put(folder, monkeypatch, name, {f"{under}/{each}": page.format(each).encode() for each in pages})


def need_real() -> None:
    """Skip a test where `make texts` has not put the packages."""
    if lacking := [deb.file for deb in DEBIAN_PACKAGES.values() if not (debian.packages_folder() / deb.file).is_file()]:
        pytest.skip(f"no {lacking[0]} here: make texts")
