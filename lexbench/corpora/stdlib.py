"""The source of the running Python's standard library: real text on every machine, without a download."""

import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lexbench.corpora import Document, check_split, hash_documents, in_split

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
        check_split(self.split)

    def documents(self) -> Iterator[Document]:
        """Modules in the order of their names."""
        root = Path(sysconfig.get_paths()["stdlib"])
        names = sorted(_names(root))
        if not names:
            raise ValueError(f"corpus stdlib finds no source under {root}: use corpus=synthetic")
        for name in names:
            if in_split(name, self.split):
                yield Document(name, (root / name).read_text(encoding="utf-8", errors="replace"))

    def fingerprint(self) -> str:
        """Hash of the texts; it changes with the version of Python."""
        return hash_documents(self.documents())


def _names(root: Path) -> Iterator[str]:
    """Names of modules, unsorted; folders in LEFT_OUT are not entered, because they may be large."""
    for place, below, files in os.walk(root):
        below[:] = (name for name in below if name not in LEFT_OUT)
        within = Path(place).relative_to(root)
        yield from ((within / name).as_posix() for name in files if name.endswith(".py"))
