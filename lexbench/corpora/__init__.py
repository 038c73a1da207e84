"""Sources of text. A corpus is a frozen dataclass with `documents()` and `fingerprint()`."""

import hashlib
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lexbench.core.errors import ConfigError


@dataclass(frozen=True)
class Document:
    """Text with a name; samples that are drawn from one document form a cluster."""

    name: str
    text: str


class Corpus(Protocol):
    """Source of documents in a fixed order, with a hash of all of them."""

    def documents(self) -> Iterator[Document]:
        """All documents, in the same order on every call; ConfigError where there are none."""

    def fingerprint(self) -> str:
        """Hash of all documents: part of a cell's identity."""

    def __hash__(self) -> int:
        """Hash of the parameters: a cache of encoded texts has corpora as keys."""


OF_THIS_MACHINE = ("packages", "pydoc", "stdlib")
"""Names of corpora of texts that are installed on this machine; another one may have others."""
MAX_STDLIB_LENGTH_TOKENS = 4096
"""Longest length in tokens for which a run without a named corpus reads the standard library."""


def default_corpus(longest: int) -> str:
    """The corpus of a run that names none: stdlib up to 4096 tokens, packages where a longer length is asked for."""
    return "stdlib" if longest <= MAX_STDLIB_LENGTH_TOKENS else "packages"


def for_lengths(corpus: Corpus, lengths: Sequence[int]) -> Corpus:
    """The corpus with those parameters set that depend on all lengths of a run; most have none."""
    settle = getattr(corpus, "for_lengths", None)
    settled: Corpus = settle(lengths) if settle else corpus
    return settled


def python_files(root: Path, left_out: Collection[str]) -> Iterator[str]:
    """Paths of all Python files below a folder, relative to it, unsorted; folders named in `left_out` are skipped."""
    for place, below, files in os.walk(root):
        below[:] = (name for name in below if name not in left_out)  # in place: os.walk enters what is left
        within = Path(place).relative_to(root)
        yield from ((within / name).as_posix() for name in files if name.endswith(".py"))


def hash_documents(documents: Iterator[Document]) -> str:
    """Hash of names and texts."""
    digest = hashlib.sha256()
    for document in documents:
        # A file's name may hold bytes that are no UTF-8, which Python reads as surrogates.
        digest.update(f"{document.name}\0{document.text}\0".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]


def check_split(split: str) -> None:
    """ConfigError unless the split is train, test or all."""
    if split not in ("train", "test", "all"):
        raise ConfigError(f"corpus.split must be train, test or all, got {split}")


def is_in_split(name: str, split: str) -> bool:
    """Whether a document belongs to a split: train, test or all."""
    return split == "all" or is_held_out(name) == (split == "test")


def is_held_out(name: str, share: float = 0.15) -> bool:
    """Whether a document belongs to the test split: by a hash of its name, the same on every machine."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") < share * 2**32
