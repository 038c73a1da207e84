"""The source of the running Python's standard library: real text on every machine, nothing shipped."""

import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lexbench.corpora import Document, hash_documents, held_out

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


@dataclass(frozen=True)
class Stdlib:
    """Modules of the standard library, one document each, by name.

    Args:
        split: train, test (about 15 % of the modules, chosen by a hash of their names) or all.
    """

    split: str = "test"

    def __post_init__(self) -> None:
        if self.split not in ("train", "test", "all"):
            raise ValueError(f"corpus.split must be train, test or all, got {self.split}")

    def documents(self) -> Iterator[Document]:
        """Modules in the order of their names."""
        root = Path(sysconfig.get_paths()["stdlib"])
        names = sorted(_names(root))
        if not names:
            raise ValueError(f"corpus stdlib finds no source under {root}: use corpus=synthetic")
        for name in names:
            if self.split == "all" or held_out(name) == (self.split == "test"):
                yield Document(name, (root / name).read_text(encoding="utf-8", errors="replace"))

    def fingerprint(self) -> str:
        """Hash of the texts: it changes with the version of Python."""
        return hash_documents(self.documents())


def _names(root: Path) -> Iterator[str]:
    """Of modules, in no order; folders that are left out are not entered, as one of them may hold very much."""
    for place, below, files in os.walk(root):
        below[:] = (name for name in below if name not in LEFT_OUT)
        within = Path(place).relative_to(root)
        yield from ((within / name).as_posix() for name in files if name.endswith(".py"))
