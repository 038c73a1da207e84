"""Packages of Debian as sources of text: the same bytes for everybody, by version and SHA-256.

`python -m lexbench.parts.debian.packages` (`make texts`) downloads them by apt-get, without root. They are read as they
are, by Python alone. A .deb (deb(5)) is an ar archive; its member data.tar.xz holds the files of the package.
"""

import functools
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

from lexbench.core.errors import ConfigError
from lexbench.core.registry import PACKAGE_FOLDER

REFERENCE_LANGUAGES = ("en", "de", "es", "fr", "id", "it", "ja", "pt", "pt-br", "zh-cn", "zh-tw")
"""Language codes of the editions of the Debian Reference."""
_REFERENCE = (
    "9f31d3a17df505de09689ca255512ea58c1fc47c59bb1b0c7bf1c23362e9743f",
    "3b0ce65fd63e75ddf8eb07ca36293425135080e690a07e06a6ac8bc8040ef0aa",
    "a59b68c96f83d3cf29a476c847aee38364764603ea62eee592791e0a843a269e",
    "01424cba9bfa2e13166da22d3d692d33a22ec7d8ef935ec81fd8802746087f65",
    "3848a0593476c4f8429698c93eb0e367320d8bd78147304666eff3a82a5df3e2",
    "7894062a5e9203a57ec6cb8d6a47d5ffb58c41dc004766522f1b4d78b2a8e0c6",
    "f67140e0b994409413bd5fcc8dfcce832445c99d724401f0275fa238daf30325",
    "c9c5d30a8608485bad60f7bd7ce6c755af4a129c2b30511ee733b90ac17e7dfa",
    "da2d405b1c9af9177d620e6ff478bb987bcf2ac906d884aa87faad3f25874116",
    "6d2d8d9a646397e28b04cdff23d2e4374101ebf9be348e35961af62c8a2d0977",
    "d2785bbfcb9c3eb6343a37520df595a720bb30fa634d4cf0750d1c04a0226057",
)
"""SHA-256 of each edition, in the order of `REFERENCE_LANGUAGES`."""


@dataclass(frozen=True)
class Deb:
    """A package of Debian, for all architectures, in one version."""

    name: str
    version: str
    sha256: str

    @property
    def file(self) -> str:
        """Name of the file."""
        return f"{self.name}_{self.version}_all.deb"


DEBIAN_PACKAGES = {
    deb.name: deb
    for deb in (
        Deb("r-cran-janeaustenr", "1.0.0-1", "df6bddf211906d1ff404f8ff662c21b34e6660e7f54a311084e749050c019c95"),
        Deb("anarchism", "15.3-3", "cf21c10948b00e923c62eb31c39a3390413fa26c5ee0e3b925feb0ec7fe42948"),
        *(
            Deb(f"debian-reference-{each}", "2.100", sha)
            for each, sha in zip(REFERENCE_LANGUAGES, _REFERENCE, strict=True)
        ),
    )
}
"""Packages by name."""


def packages_folder() -> Path:
    """The place of the packages: LEXBENCH_TEXTS, or .texts beside lexbench's own folder."""
    return Path(os.environ.get("LEXBENCH_TEXTS") or PACKAGE_FOLDER.parent / ".texts").expanduser()


def files_of(name: str, under: str) -> dict[str, bytes]:
    """Contents of the files right in a folder of a package, by name, sorted.

    Args:
        name: of the package.
        under: path of the folder, as it is installed: `usr/share/doc/anarchism/html`.

    Raises ConfigError where the package is not there, or is another one.
    """
    deb = DEBIAN_PACKAGES[name]
    place = packages_folder() / deb.file
    if not place.is_file():
        raise ConfigError(f"{deb.file} of Debian must be in {place.parent}, it is not: run `make texts`")
    return _files(place, deb.sha256, under)


@functools.lru_cache(maxsize=4)
def _files(place: Path, sha256: str, under: str) -> dict[str, bytes]:
    content = place.read_bytes()
    if (found := hashlib.sha256(content).hexdigest()) != sha256:
        raise ConfigError(f"{place} must have the SHA-256 {sha256}, it has {found}: delete it and run `make texts`")
    inside: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(_data(content))) as archive:
            for member in archive:
                path, _, file = member.name.removeprefix("./").rpartition("/")
                if path == under and (stream := archive.extractfile(member)):
                    inside[file] = stream.read()
    except tarfile.CompressionError:
        raise ConfigError(
            f"{place.name} needs Python's module lzma, which this Python lacks: take another one"
        ) from None
    return dict(sorted(inside.items()))


def _data(deb: bytes) -> bytes:
    """The member data.tar.* of an ar archive: headers have 60 bytes, members begin at even places."""
    place = len(b"!<arch>\n")
    while place < len(deb):
        name, size = deb[place : place + 16], int(deb[place + 48 : place + 58])
        place += 60
        if name.startswith(b"data.tar"):
            return deb[place : place + size]
        place += size + size % 2
    raise AssertionError("a .deb of a known hash holds data.tar")


def download_packages() -> list[Path]:
    """Download the packages that are not there yet; ConfigError where apt-get has not exactly these."""
    place = packages_folder()
    place.mkdir(parents=True, exist_ok=True)
    files = {deb: place / deb.file for deb in DEBIAN_PACKAGES.values()}
    lacking = {deb: file for deb, file in files.items() if not _is_package_file(file, deb)}
    if lacking:
        wanted = ", ".join(f"{deb.file} (SHA-256 {deb.sha256})" for deb in lacking)
        remedy = f"put into {place} what is not there: {wanted}"
        if not shutil.which("apt-get"):
            raise ConfigError(f"the texts need apt-get, which is not there; {remedy}")
        command = ["apt-get", "download", "--quiet", *(f"{deb.name}={deb.version}" for deb in lacking)]
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
        if lost := [file for deb, file in lacking.items() if not _is_package_file(file, deb)]:
            said = next((line for line in done.stderr.splitlines() if line.startswith("E:")), f"rc {done.returncode}")
            raise ConfigError(f"apt-get does not bring {lost[0].name} ({said}): run apt-get update, or {remedy}")
    return list(files.values())


def _is_package_file(file: Path, deb: Deb) -> bool:
    return file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() == deb.sha256


if __name__ == "__main__":
    try:
        print(f"{len(download_packages())} packages of text are in {packages_folder()}")
    except ValueError as error:
        sys.exit(f"error: {error}")
