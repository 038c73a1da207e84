"""The source of the running Python's standard library: real text on every machine, without a download."""

import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lexbench.core.errors import ConfigError
from lexbench.corpora import Document, check_split, hash_documents, is_in_split, python_files

LEFT_OUT = {
    "test",
    "tests",
    "idlelib",
    "lib2to3",
    "encodings",
    "site-packages",
    "__pycache__",
    "pydoc_data",
    "turtledemo",
}
"""Folders that are not entered."""


@dataclass(frozen=True)
class Stdlib:
    """Modules of the standard library, one document each, by name; needs nothing, and is this machine's text.

    Args:
        split: train, test (about 15 % of the modules, chosen by a hash of their names) or all.
    """

    split: str = "test"

    def __post_init__(self) -> None:
        check_split(self.split)

    def documents(self) -> Iterator[Document]:
        """Modules in the order of their names."""
        root = Path(sysconfig.get_paths()["stdlib"])
        names = sorted(python_files(root, LEFT_OUT))
        if not names:
            raise ConfigError(f"corpus stdlib finds no source under {root}: use corpus=synthetic")
        for name in names:
            if is_in_split(name, self.split):
                yield Document(name, (root / name).read_text(encoding="utf-8", errors="replace"))

    def fingerprint(self) -> str:
        """Hash of the texts; it changes with the version of Python."""
        return hash_documents(self.documents())
